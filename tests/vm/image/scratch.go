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

// Scratch returns an empty directory in the cache that goes with done, or at the latest, should this process be
// killed, with the next one's: it is locked as long as its process lives.
func (c *Cache) Scratch() (dir string, done func() error, err error) {
	if err := c.sweepScratch(); err != nil {
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

// sweepScratch removes directories that nobody locks. One that is being made just now has no lock yet: it is spared
// while it is younger than what that takes.
func (c *Cache) sweepScratch() error {
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
			continue // gone meanwhile, or just made
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
