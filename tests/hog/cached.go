package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// database fills its caches like a database server after its start: it reads its file from the disk twice, so that the
// file cache becomes active, and touches a shared buffer, which is shared memory. Without a rate it touches the buffer
// before it reads, like a server that allocates it in advance; with a rate the buffer grows during and after the reads.
func database(args []string, stderr io.Writer) error {
	fs, parse := flags("database", stderr)
	path := fs.String("path", "", "file to write, and to read after the delay")
	size := fs.Int64("bytes", 0, "size of the file")
	buffer := fs.Int64("buffer", 0, "size of the shared buffer")
	rate := fs.Int64("rate", 0, "bytes of the buffer per second; 0 is as fast as possible, before the reading")
	delay := fs.Duration("delay", 0, "wait between the writing and the rest; SIGUSR1 ends the wait")
	if err := parse(args); err != nil {
		return err
	}
	if *path == "" || *size <= 0 || *buffer <= 0 || *rate < 0 || *delay < 0 {
		return usageError{errors.New("-path is needed, -bytes and -buffer must be positive, -rate and -delay not negative")}
	}
	f, err := uncachedFile(*path, *size)
	if err != nil {
		return err
	}
	defer f.Close()
	// As PostgreSQL maps shared_buffers with shared_memory_type=mmap.
	shared, err := unix.Mmap(-1, 0, int(*buffer), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("map %d shared bytes: %w", *buffer, err)
	}
	wait(*delay)
	touched := make(chan struct{})
	go func() {
		defer close(touched)
		touch(shared, *rate, nil)
	}()
	if *rate == 0 {
		<-touched
	}
	if err := read(f, 2); err != nil {
		return err
	}
	<-touched
	return nil
}

// mapped writes to every page of a mapping of its file, which faults the pages in from the disk, and then reads the file
// twice. With the multi-generational LRU the fault makes a page active (mm/swap.c: folio_add_lru), with the classic
// lists the second read does.
func mapped(args []string, stderr io.Writer) error {
	fs, parse := flags("mapped", stderr)
	path := fs.String("path", "", "file to write, and to map after the delay")
	size := fs.Int64("bytes", 0, "size of the file")
	delay := fs.Duration("delay", 0, "wait between the writing and the mapping; SIGUSR1 ends the wait")
	if err := parse(args); err != nil {
		return err
	}
	if *path == "" || *size <= 0 || *delay < 0 {
		return usageError{errors.New("-path is needed, -bytes must be positive, -delay not negative")}
	}
	f, err := uncachedFile(*path, *size)
	if err != nil {
		return err
	}
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, int(*size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %s: %w", *path, err)
	}
	wait(*delay)
	touch(mem, 0, nil)
	if err := read(f, 2); err != nil {
		return err
	}
	say("mapped %d bytes", *size)
	return nil
}

// uncachedFile writes a file and drops its cache.
func uncachedFile(path string, size int64) (*os.File, error) {
	if err := write(path, size, 0); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open the written file: %w", err)
	}
	// FADV_DONTNEED does not drop dirty pages.
	if err := f.Sync(); err != nil {
		f.Close()
		return nil, fmt.Errorf("sync: %w", err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		f.Close()
		return nil, fmt.Errorf("drop the cache: %w", err)
	}
	return f, nil
}
