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

// fillCache drops the node's page cache and then fills it with so many bytes of active file cache. It reads a sparse
// file, whose pages are cached without blocks on the disk.
func (s *testbed) fillCache(ctx context.Context, bytes int64) error {
	s.cache = bytes
	// The kernel does not drop dirty pages.
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
		return fmt.Errorf("the node has %.1f MiB of active file cache after reading %.1f MiB three times", mebibytes(active), mebibytes(bytes))
	}
	fmt.Fprintf(s.out, "\nActive file cache: %.1f MiB.\n", mebibytes(active))
	return nil
}

// refillCache reads the file again if the node has lost part of its cache. A kernel that reclaims proactively (DAMON,
// mm/damon/reclaim.c) takes gigabytes of it during a series.
func (s *testbed) refillCache(ctx context.Context) error {
	active, err := activeFile()
	if err != nil || active >= s.cache-s.cache/32 {
		return err
	}
	return readActive(ctx, s.cacheFile())
}

func (s *testbed) cacheFile() string { return filepath.Join(s.dir, "cache") }

// activeFile returns the node's active file cache in bytes.
func activeFile() (int64, error) {
	return available(func(i *meminfo.Info) int64 { return int64(i.ActiveFile) })
}

// readActive reads a file three times, so that its cache becomes active: the kernel activates a page on its second read
// (mm/swap.c: folio_mark_accessed) if the page is already on the LRU list, which may not be so before the third.
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

// runReader calls readActive on its start signal.
func runReader(args []string, in io.Reader, out io.Writer) error {
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
