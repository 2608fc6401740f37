package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
)

// logs writes lines to standard output, which the runtime writes to the container's log. Unlike say, it blocks while
// the runtime does not read.
func logs(args []string, stderr io.Writer) error {
	fs, parse := flags("logs", stderr)
	size := fs.Int64("bytes", 0, "bytes to write")
	rate := fs.Int64("rate", 0, "bytes per second; 0 is as fast as possible")
	if err := parse(args); err != nil {
		return err
	}
	if *size <= 0 || *rate < 0 {
		return usageError{errors.New("-bytes must be positive, -rate not negative")}
	}
	line := append(bytes.Repeat([]byte{'x'}, 1023), '\n')
	limiter := newRateLimiter(*rate)
	for done := int64(0); done < *size; {
		n, err := os.Stdout.Write(line[:min(int64(len(line)), *size-done)])
		if err != nil {
			return fmt.Errorf("write after %d bytes: %w", done, err)
		}
		done += int64(n)
		limiter.after(n)
	}
	return nil
}

// files uses inodes and almost no space.
func files(args []string, stderr io.Writer) error {
	fs, parse := flags("files", stderr)
	dir := fs.String("dir", "", "directory for the files")
	n := fs.Int("n", 0, "number of files")
	if err := parse(args); err != nil {
		return err
	}
	if *dir == "" || *n <= 0 {
		return usageError{errors.New("-dir is needed, -n must be positive")}
	}
	for i := range *n {
		f, err := os.Create(filepath.Join(*dir, "hog-"+strconv.Itoa(i)))
		if err != nil {
			return fmt.Errorf("create file %d: %w", i, err)
		}
		f.Close()
	}
	say("holding %d files in %s", *n, *dir)
	return nil
}
