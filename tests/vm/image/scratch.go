package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const scratch = "run-"

// Scratch returns an empty directory in the cache, which done removes. It is locked as long as this process lives: if the
// process is killed, the next call of Scratch removes the directory.
func (c *Cache) Scratch() (dir string, done func() error, err error) {
	if err := c.removeScratch(); err != nil {
		return "", nil, fmt.Errorf("make scratch directory: %w", err)
	}
	if dir, err = os.MkdirTemp(c.dir, scratch); err != nil {
		return "", nil, fmt.Errorf("make scratch directory: %w", err)
	}
	lock, err := os.Open(dir)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("lock scratch directory: %w", err), os.RemoveAll(dir))
	}
	return dir, func() error { return errors.Join(os.RemoveAll(dir), lock.Close()) }, nil
}

// removeScratch removes directories that are not locked, except recent ones, which may be about to be locked.
func (c *Cache) removeScratch() error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), scratch) {
			continue
		}
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()) < 10*time.Second {
			continue // already removed, or recent
		}
		dir := filepath.Join(c.dir, e.Name())
		f, err := os.Open(dir)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			err = os.RemoveAll(dir)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}
