package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/evictd/evictd/kernel/disk"
	"github.com/evictd/evictd/kernel/meminfo"
)

// warm leaves the node with so many bytes of active file cache, and as little more as can be. The file has no content on
// the disk: its pages are cached all the same.
func (s *stage) warm(ctx context.Context, bytes int64) error {
	s.cache = bytes
	// Dirty pages are not dropped.
	if err := disk.Sync(s.dir); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0); err != nil {
		return fmt.Errorf("drop caches: %w", err)
	}
	file := s.cacheFile()
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, bytes), readActive(ctx, file)); err != nil {
		return err
	}
	active, err := activeFile()
	if err != nil {
		return err
	}
	if active < bytes-bytes/16 {
		return fmt.Errorf("%.1f MiB of file cache are active after reading %.1f MiB three times", mebibytes(active), mebibytes(bytes))
	}
	fmt.Fprintf(s.out, "\nActive file cache: %.1f MiB.\n", mebibytes(active))
	return nil
}

// keepWarm reads again what the node has lost of that file cache. A kernel that reclaims memory ahead of pressure (DAMON,
// mm/damon/reclaim.c) takes gigabytes of it while a series runs.
func (s *stage) keepWarm(ctx context.Context) error {
	active, err := activeFile()
	if err != nil || active >= s.cache-s.cache/32 {
		return err
	}
	return readActive(ctx, s.cacheFile())
}

func (s *stage) cacheFile() string { return filepath.Join(s.dir, "cache") }

// activeFile returns the node's active file cache in bytes.
func activeFile() (int64, error) {
	return available(func(i *meminfo.Info) int64 { return int64(i.ActiveFile) })
}

// readActive reads a file until its cache is active: a page is once it has been read a second time (mm/swap.c:
// folio_mark_accessed), if it was on the list by then, which it may not be before the third.
func readActive(ctx context.Context, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	for range 3 {
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, file); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// actReader reads a file on its cue, as readActive does.
func actReader(args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet("read", flag.ContinueOnError)
	file := flags.String("file", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := ready(out); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return err
	}
	return readActive(context.Background(), *file)
}
