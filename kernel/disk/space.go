package disk

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// Space is the size and the free space of a filesystem.
type Space struct {
	// Bytes is its size, Free is the unused part, and Available is Free without the
	// blocks reserved for root, which the kubelet uses.
	Bytes, Free, Available uint64
	// Inodes is the number of inodes and InodesFree the number of unused ones, valid
	// if CountsInodes. Filesystems that allocate inodes dynamically (btrfs) report 0
	// for both, which does not mean a shortage.
	Inodes, InodesFree uint64
	CountsInodes       bool
}

var errImpossible = errors.New("impossible size")

// ReadSpace reads the space of the filesystem that contains path (statfs(2),
// fs/statfs.c).
func ReadSpace(path string) (Space, error) {
	var s unix.Statfs_t
	for {
		err := unix.Statfs(path, &s)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			return Space{}, &os.PathError{Op: "statfs", Path: path, Err: err}
		}
	}
	got, err := spaceOf(&s)
	if err != nil {
		return Space{}, fmt.Errorf("statfs %s: %w", path, err)
	}
	return got, nil
}

// spaceOf converts the counts of statfs(2), whose unit is the fragment size. The
// kernel sets that to the block size if the filesystem has none.
func spaceOf(s *unix.Statfs_t) (Space, error) {
	unit := s.Frsize
	if unit == 0 {
		unit = s.Bsize
	}
	if unit <= 0 || s.Blocks > math.MaxInt64/uint64(unit) || s.Files > math.MaxInt64 {
		return Space{}, errImpossible
	}
	size := uint64(unit)
	// Free can exceed the size for a moment, because a filesystem does not read both
	// under one lock.
	return Space{
		Bytes: s.Blocks * size, Free: min(s.Bfree, s.Blocks) * size, Available: min(s.Bavail, s.Blocks) * size,
		Inodes: s.Files, InodesFree: min(s.Ffree, s.Files), CountsInodes: s.Files > 0,
	}, nil
}
