package disk

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// Space is what a filesystem has, and has left.
type Space struct {
	// Bytes is its size, Free what nobody uses and Available what of that is not
	// kept for root: the number that the kubelet goes by.
	Bytes, Free, Available uint64
	// Inodes is how many it can have and InodesFree how many more it can make,
	// where CountsInodes. Filesystems that make inodes as they need them (btrfs)
	// tell 0 for both, which is neither a size nor a shortage.
	Inodes, InodesFree uint64
	CountsInodes       bool
}

var errImpossible = errors.New("a size that can't be")

// ReadSpace reads the filesystem that path is on (statfs(2), fs/statfs.c).
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

// spaceOf computes in fragments, the unit of the counts. The kernel sets their
// size to that of a block where the filesystem tells none.
func spaceOf(s *unix.Statfs_t) (Space, error) {
	unit := s.Frsize
	if unit == 0 {
		unit = s.Bsize
	}
	if unit <= 0 || s.Blocks > math.MaxInt64/uint64(unit) || s.Files > math.MaxInt64 {
		return Space{}, errImpossible
	}
	size := uint64(unit)
	// A filesystem may count more free than it has for a moment: neither number
	// is taken under a lock.
	return Space{
		Bytes: s.Blocks * size, Free: min(s.Bfree, s.Blocks) * size, Available: min(s.Bavail, s.Blocks) * size,
		Inodes: s.Files, InodesFree: min(s.Ffree, s.Files), CountsInodes: s.Files > 0,
	}, nil
}
