// Package stamp records when a hog has touched each MiB of its memory, in a shared mapped file that other processes
// read.
//
// The hog calls Create, Add for the start, and then Add after each MiB. Another process calls Read at any time, also
// after the hog was killed: a store to a shared mapping outlives the process. Times are CLOCK_MONOTONIC in nanoseconds,
// which is the same for all processes outside of time namespaces, so that they compare with the times in evictd's
// records.
//
// The file is an array of little-endian 64-bit words. Word 0 is the time just before the first touch, word i the time
// just after MiB i was touched. Zero means "not yet".
package stamp

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const word = 8

// Writer adds times to a mapped file. It is not for concurrent use.
type Writer struct {
	words []atomic.Int64
	next  int
}

// Create creates path with room for mebibytes times after the first, and maps it for the lifetime of the process. It
// writes every page once, so that no later Add causes a page fault.
func Create(path string, mebibytes int) (*Writer, error) {
	n := mebibytes + 1
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("create stamp file: %w", err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, n*word)); err != nil {
		return nil, fmt.Errorf("size stamp file: %w", err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, n*word, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map stamp file: %w", err)
	}
	w := &Writer{words: unsafe.Slice((*atomic.Int64)(unsafe.Pointer(&mem[0])), n)}
	for i := range w.words {
		w.words[i].Store(0)
	}
	return w, nil
}

// Add stores the current time in the next word: the first call is the start, call i+1 means that MiB i is touched.
// Calls beyond the room of Create are ignored, and so are calls on a nil Writer.
func (w *Writer) Add() {
	if w == nil || w.next == len(w.words) {
		return
	}
	w.words[w.next].Store(int64(Now()))
	w.next++
}

// Now returns CLOCK_MONOTONIC.
func Now() time.Duration {
	var ts unix.Timespec
	// Can't fail: the clock exists on every kernel, and the pointer is valid.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return time.Duration(ts.Nano())
}

// Times are the times of a stamp file that are set: Times[0] is the start, Times[i] the time of MiB i.
type Times []time.Duration

// Read returns the times so far.
func Read(path string) (Times, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read stamp file: %w", err)
	}
	return parse(b)
}

func parse(b []byte) (Times, error) {
	if len(b) == 0 || len(b)%word != 0 {
		return nil, fmt.Errorf("parse stamp file: %d bytes are not an array of %d-byte words", len(b), word)
	}
	var times Times
	for ; len(b) > 0; b = b[word:] {
		ns := int64(binary.LittleEndian.Uint64(b))
		if ns == 0 {
			break
		}
		if ns < 0 || len(times) > 0 && time.Duration(ns) < times[len(times)-1] {
			return nil, fmt.Errorf("parse stamp file: word %d (%d) is negative or before its predecessor", len(times), ns)
		}
		times = append(times, time.Duration(ns))
	}
	return times, nil
}
