package memcg

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/internal/sys"
)

// target is a cgroup and its hierarchy.
type target struct {
	hierarchy *cgroup.Hierarchy
	cgroup    *cgroup.Cgroup
}

// checkV1 and checkV2 check the version first, so that a missing file means that
// the kernel does not have it.
func (t target) checkV1() error {
	if t.hierarchy.Version == cgroup.V2 {
		return fmt.Errorf("%w: the memory controller is on v2", kernel.ErrUnavailable)
	}
	return nil
}

func (t target) checkV2() error {
	if t.hierarchy.Version != cgroup.V2 {
		return fmt.Errorf("%w: the memory controller is on v1", kernel.ErrUnavailable)
	}
	return nil
}

// openDir opens the directory of the cgroup. It fails with cgroup.ErrGone if the
// path does not exist or is another cgroup now.
func (t target) openDir() (*sys.FD, error) {
	dir, err := sys.Open(t.hierarchy.Memory.Path(t.cgroup.Path()), unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, cgroup.ErrGone
	}
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = dir.Use(func(fd int) error { return unix.Fstat(fd, &st) })
	if err == nil && st.Ino != t.cgroup.ID() {
		err = fmt.Errorf("%w: its path is another cgroup now", cgroup.ErrGone)
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// open opens one file of the cgroup.
func (t target) open(name string, flags int) (*sys.FD, error) {
	dir, err := t.openDir()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return t.openAt(dir, name, flags)
}

// openAt opens a file in the directory of the cgroup. A missing file is
// cgroup.ErrGone if the cgroup was removed, and kernel.ErrUnavailable otherwise.
func (t target) openAt(dir *sys.FD, name string, flags int) (*sys.FD, error) {
	fd, err := dir.OpenAt(name, flags)
	if !errors.Is(err, fs.ErrNotExist) {
		return fd, err
	}
	if gone := t.cgroup.Check(); gone != nil {
		return nil, gone
	}
	return nil, fmt.Errorf("%w: %w", kernel.ErrUnavailable, err)
}

// wrap adds the operation and the cgroup to an error, and turns ENODEV, the error
// of an open file of a removed cgroup, into cgroup.ErrGone.
func (t target) wrap(op string, err error) error {
	if errors.Is(err, unix.ENODEV) {
		err = cgroup.ErrGone
	}
	return fmt.Errorf("%s of cgroup %s: %w", op, t.cgroup.Path(), err)
}

// fdNumber returns the number of a descriptor, or -1 if it is closed.
func fdNumber(fd *sys.FD) int {
	n := -1
	_ = fd.Use(func(fd int) error { n = fd; return nil })
	return n
}
