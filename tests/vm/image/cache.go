package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Cache is a directory of entries, each a directory that is complete once it is there. Several processes may use it.
type Cache struct {
	dir string
	log io.Writer
}

// CacheDir is where a Cache is if nothing else is said: evictd/vm in the user's cache directory.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache directory: %w", err)
	}
	return filepath.Join(dir, "evictd", "vm"), nil
}

// OpenCache returns the cache in dir, which is made if need be. What is being made is told to log.
func OpenCache(dir string, log io.Writer) (*Cache, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("open cache: %w", err)
	}
	return &Cache{dir: dir, log: log}, nil
}

const unfinished = "unfinished-"

// entry returns the directory of an entry, and has it built in another one if it is not there. It waits for whoever
// else builds in this cache. What an interrupted build leaves is removed by the next.
func (c *Cache) entry(ctx context.Context, name, what string, build func(ctx context.Context, dir string) error) (dir string, err error) {
	dir = filepath.Join(c.dir, name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return "", fmt.Errorf("make %s: %w", what, err)
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := c.sweep(); err != nil {
		return "", err
	}
	start := time.Now()
	fmt.Fprintf(c.log, "making %s (once; kept in %s)\n", what, dir)
	building, err := os.MkdirTemp(c.dir, unfinished)
	if err != nil {
		return "", fmt.Errorf("make %s: %w", what, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(building)) }()
	if err := build(ctx, building); err != nil {
		return "", fmt.Errorf("make %s: %w", what, err)
	}
	if err := os.Rename(building, dir); err != nil {
		return "", fmt.Errorf("make %s: %w", what, err)
	}
	fmt.Fprintf(c.log, "made %s in %v\n", what, time.Since(start).Round(time.Second))
	return dir, nil
}

// sweep removes what builds left that were interrupted; the lock is held, so that nobody builds.
func (c *Cache) sweep() error {
	left, err := filepath.Glob(filepath.Join(c.dir, unfinished+"*"))
	for _, dir := range left {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		return fmt.Errorf("remove what is unfinished: %w", err)
	}
	return nil
}

// lock waits until nobody else builds in the cache. The lock goes with the process that holds it.
func (c *Cache) lock(ctx context.Context) (unlock func() error, err error) {
	f, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock cache: %w", err)
	}
	for told := false; ; told = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return f.Close, nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, errors.Join(fmt.Errorf("lock cache: %w", err), f.Close())
		case !told:
			fmt.Fprintf(c.log, "another process makes images in %s: waiting for it\n", c.dir)
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for the cache: %w", context.Cause(ctx)), f.Close())
		case <-time.After(200 * time.Millisecond):
		}
	}
}
