package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
)

// burn computes on some threads without end.
func burn(args []string, stderr io.Writer) error {
	fs, parse := flags("burn", stderr)
	threads := fs.Int("threads", 1, "threads that compute")
	if err := parse(args); err != nil {
		return err
	}
	if *threads < 1 {
		return usageError{errors.New("-threads must be positive")}
	}
	for range *threads {
		go compute()
	}
	say("computing on %d threads", *threads)
	return nil
}

// compute computes on a thread of its own without end. The runtime preempts it.
func compute() {
	runtime.LockOSThread()
	for n := uint64(1); ; n++ {
		n ^= n << 13
		n ^= n >> 7
	}
}

// recordSize is the size of a record of a journal: that of a block.
const recordSize = 4096

// journal writes records to a file and syncs each, like a database at each transaction. It begins again at the start of
// the file when that has its size.
func journal(args []string, stderr io.Writer) error {
	fs, parse := flags("journal", stderr)
	path := fs.String("path", "", "file to write")
	size := fs.Int64("bytes", 0, "size of the file")
	rate := fs.Int64("rate", 0, "bytes per second; 0 is as fast as possible")
	if err := parse(args); err != nil {
		return err
	}
	if *path == "" || *size < recordSize || *rate < 0 {
		return usageError{fmt.Errorf("-path is needed, -bytes must be at least %d, -rate not negative", recordSize)}
	}
	f, err := os.Create(*path)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	defer f.Close()
	limiter := newRateLimiter(*rate)
	return record(f, *size/recordSize, func() { limiter.after(recordSize) })
}

// syncer is a file that can be written and synced.
type syncer interface {
	io.WriterAt
	Sync() error
}

// record writes records with ascending numbers to the places of a file in turn until that fails, and calls written
// after each.
func record(f syncer, places int64, written func()) error {
	buf := make([]byte, recordSize)
	for n := int64(0); ; n++ {
		binary.LittleEndian.PutUint64(buf, uint64(n))
		if _, err := f.WriteAt(buf, n%places*recordSize); err != nil {
			return fmt.Errorf("write record %d: %w", n, err)
		}
		if err := f.Sync(); err != nil {
			return fmt.Errorf("sync record %d: %w", n, err)
		}
		written()
	}
}
