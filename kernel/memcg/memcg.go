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

// place is where files are opened: a cgroup in its tree.
type place struct {
	tree *cgroup.Hierarchy
	of   *cgroup.Cgroup
}

// v1 and v2 make sure of the tree's version, so that a file that is missing says
// that the kernel lacks it.
func (p place) v1() error {
	if p.tree.Version == cgroup.V2 {
		return fmt.Errorf("%w: memory is in a v2 tree", kernel.ErrUnavailable)
	}
	return nil
}

func (p place) v2() error {
	if p.tree.Version != cgroup.V2 {
		return fmt.Errorf("%w: memory is in a v1 tree", kernel.ErrUnavailable)
	}
	return nil
}

// dir opens the cgroup's directory, and no other.
func (p place) dir() (*sys.FD, error) {
	dir, err := sys.Open(p.tree.Memory.Path(p.of.Path()), unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, cgroup.ErrGone
	}
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = dir.Use(func(fd int) error { return unix.Fstat(fd, &st) })
	if err == nil && st.Ino != p.of.ID() {
		err = fmt.Errorf("%w: its path names another one", cgroup.ErrGone)
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// file opens one file of the cgroup.
func (p place) file(name string, flags int) (*sys.FD, error) {
	dir, err := p.dir()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return p.fileIn(dir, name, flags)
}

// fileIn opens a file in the directory. Files vanish with their cgroup; one that
// is missing while the cgroup lives is what the kernel does not have.
func (p place) fileIn(dir *sys.FD, name string, flags int) (*sys.FD, error) {
	fd, err := dir.OpenAt(name, flags)
	if !errors.Is(err, fs.ErrNotExist) {
		return fd, err
	}
	if gone := p.of.Check(); gone != nil {
		return nil, gone
	}
	return nil, fmt.Errorf("%w: %w", kernel.ErrUnavailable, err)
}

// failed names the operation and the cgroup. ENODEV is what an open file of a
// removed one answers.
func (p place) failed(op string, err error) error {
	if errors.Is(err, unix.ENODEV) {
		err = cgroup.ErrGone
	}
	return fmt.Errorf("%s of cgroup %s: %w", op, p.of.Path(), err)
}

// number returns the descriptor's number, or -1 once it is closed.
func number(fd *sys.FD) int {
	n := -1
	_ = fd.Use(func(fd int) error { n = fd; return nil })
	return n
}
