package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// tmpfs writes a file to a tmpfs. Its memory is charged to this cgroup and outlives this process.
func tmpfs(args []string, stderr io.Writer) error {
	fs, parse := flags("tmpfs", stderr)
	dir := fs.String("dir", "/dev/shm", "directory on a tmpfs")
	size := fs.Int64("bytes", 0, "bytes to write")
	rate := fs.Int64("rate", 0, "bytes per second; 0 is as fast as possible")
	delay := fs.Duration("delay", 0, "wait before the first write; SIGUSR1 ends the wait")
	if err := parse(args); err != nil {
		return err
	}
	if *size <= 0 || *rate < 0 || *delay < 0 {
		return usageError{errors.New("-bytes must be positive, -rate and -delay not negative")}
	}
	wait(*delay)
	return write(filepath.Join(*dir, "hog"), *size, *rate)
}

// file fills page cache: writing creates inactive pages, reading them again makes them active. It syncs dirty pages, so
// that all of the cache can be reclaimed.
func file(args []string, stderr io.Writer) error {
	fs, parse := flags("file", stderr)
	path := fs.String("path", "", "file to write")
	size := fs.Int64("bytes", 0, "bytes to write")
	passes := fs.Int("passes", 2, "how often to re-read it")
	rate := fs.Int64("rate", 0, "bytes per second; 0 is as fast as possible")
	if err := parse(args); err != nil {
		return err
	}
	if *path == "" || *size <= 0 || *passes < 0 || *rate < 0 {
		return usageError{errors.New("-path is needed, -bytes must be positive, -passes and -rate not negative")}
	}
	if err := write(*path, *size, *rate); err != nil {
		return err
	}
	f, err := os.Open(*path)
	if err != nil {
		return fmt.Errorf("re-read: %w", err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return read(f, *passes)
}

// read reads the whole file so many times.
func read(f *os.File, passes int) error {
	buf := make([]byte, mebibyte)
	for pass := range passes {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("rewind: %w", err)
		}
		for {
			if _, err := f.Read(buf); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return fmt.Errorf("re-read: %w", err)
			}
		}
		say("pass %d of %d", pass+1, passes)
	}
	return nil
}

// write creates path with size bytes.
func write(path string, size, rate int64) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	defer f.Close()
	buf := make([]byte, mebibyte)
	limiter := newRateLimiter(rate)
	for done := int64(0); done < size; {
		n, err := f.Write(buf[:min(int64(len(buf)), size-done)])
		if err != nil {
			return fmt.Errorf("write after %d bytes: %w", done, err)
		}
		done += int64(n)
		limiter.after(n)
		if done/mebibyte%progressInterval == 0 {
			say("wrote %d bytes", done)
		}
	}
	say("holding %d bytes in %s", size, path)
	return nil
}
