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

// Cache is a directory of entries. An entry is a directory that exists only once it is complete. Several processes may
// use a cache.
type Cache struct {
	dir string
	log io.Writer
}

// CacheDir returns the default directory of a Cache: evictd/vm in the user's cache directory.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache directory: %w", err)
	}
	return filepath.Join(dir, "evictd", "vm"), nil
}

// OpenCache returns the cache in dir, which it creates if it does not exist. Builds are logged to log.
func OpenCache(dir string, log io.Writer) (*Cache, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("open cache: %w", err)
	}
	return &Cache{dir: dir, log: log}, nil
}

const unfinished = "unfinished-"

// entry returns the directory of an entry. If it does not exist, entry builds it in a temporary directory and renames
// that. It waits for other builds in this cache, and removes the remains of interrupted ones.
func (c *Cache) entry(ctx context.Context, name, what string, build func(ctx context.Context, dir string) error) (dir string, err error) {
	dir = filepath.Join(c.dir, name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", what, err)
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := c.sweep(); err != nil {
		return "", err
	}
	start := time.Now()
	fmt.Fprintf(c.log, "building %s (once; cached in %s)\n", what, dir)
	building, err := os.MkdirTemp(c.dir, unfinished)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", what, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(building)) }()
	if err := build(ctx, building); err != nil {
		return "", fmt.Errorf("build %s: %w", what, err)
	}
	if err := os.Rename(building, dir); err != nil {
		return "", fmt.Errorf("build %s: %w", what, err)
	}
	fmt.Fprintf(c.log, "built %s in %v\n", what, time.Since(start).Round(time.Second))
	return dir, nil
}

// sweep removes the remains of interrupted builds. The caller has the lock, so that there is no other build.
func (c *Cache) sweep() error {
	left, err := filepath.Glob(filepath.Join(c.dir, unfinished+"*"))
	for _, dir := range left {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		return fmt.Errorf("remove interrupted builds: %w", err)
	}
	return nil
}

// lock waits until no other process builds in the cache. The lock ends with the process.
func (c *Cache) lock(ctx context.Context) (unlock func() error, err error) {
	f, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock cache: %w", err)
	}
	for logged := false; ; logged = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return f.Close, nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, errors.Join(fmt.Errorf("lock cache: %w", err), f.Close())
		case !logged:
			fmt.Fprintf(c.log, "waiting for another process that builds images in %s\n", c.dir)
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for the cache: %w", context.Cause(ctx)), f.Close())
		case <-time.After(200 * time.Millisecond):
		}
	}
}
