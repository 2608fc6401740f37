package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
)

// ErrNotReclaimed means that the kernel reclaimed less than requested.
var ErrNotReclaimed = errors.New("less was reclaimed than requested")

// Reclaim makes the kernel reclaim the given number of bytes from the subtree,
// least recently used first: file cache, and anonymous memory if there is swap
// (memory.reclaim, mm/vmscan.c: user_proactive_reclaim). It blocks without a
// deadline until that is done, or fails with [ErrNotReclaimed]. It fails with
// [kernel.ErrUnavailable] on v1 and before Linux 5.19.
func (c *Cgroup) Reclaim(bytes uint64) error {
	if err := c.reclaim(bytes); err != nil {
		return fmt.Errorf("reclaim %d bytes of cgroup %s: %w", bytes, c.path, err)
	}
	return nil
}

func (c *Cgroup) reclaim(bytes uint64) error {
	if c.h.v1() {
		return fmt.Errorf("memory.reclaim on v1: %w", kernel.ErrUnavailable)
	}
	fd, err := c.dir.OpenAt("memory.reclaim", unix.O_WRONLY)
	if err == nil {
		err = fd.Write([]byte(strconv.FormatUint(bytes, 10)))
		fd.Close()
	}
	switch {
	case errors.Is(err, unix.EAGAIN):
		return ErrNotReclaimed
	case errors.Is(err, fs.ErrNotExist) && c.Check() == nil:
		return fmt.Errorf("%w: %w", kernel.ErrUnavailable, err)
	case err != nil && removed(err):
		return ErrGone
	}
	return err
}
