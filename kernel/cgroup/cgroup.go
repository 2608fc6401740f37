package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/internal/sys"
)

var (
	// ErrGone says that the cgroup does not exist any more.
	ErrGone = errors.New("cgroup is gone")
	// ErrOutside says that a path leads outside the tree that can be seen: its
	// process lives beyond this cgroup namespace.
	ErrOutside = errors.New("outside this cgroup namespace")
	// ErrForeign says that a cgroup holds a process that has no pid here: it
	// lives beyond this pid namespace, and can be neither named nor killed.
	ErrForeign = errors.New("process of another pid namespace")
)

// Cgroup is one cgroup in the tree that carries memory, held open. Its methods
// may be called concurrently, Close too: it waits for nobody, and calls that are
// under way finish.
type Cgroup struct {
	h    *Hierarchy
	path string
	id   uint64
	dev  uint64

	dir   *sys.FD
	stat  *sys.FD
	usage *sys.FD // nil for the v2 root, which has none
	limit *sys.FD // nil likewise

	// v2 only.
	events *sys.FD // nil for the root
	kill   control
	freeze control

	// v1 only: the cgroup of the same path in the freezer's tree, or nil.
	freezer *sys.FD
	pids    *sys.FD // pids.current, or nil where that controller is off
}

// control is a file that is written, or the reason why it can't be. A reader
// with few privileges may still open the cgroup.
type control struct {
	fd  *sys.FD
	err error
}

// Open opens the cgroup of a path below the root. A missing one is [ErrGone]; a
// v2 cgroup for which memory is not enabled is [kernel.ErrUnavailable]. It holds
// up to eight descriptors.
func (h *Hierarchy) Open(name string) (*Cgroup, error) {
	name, err := clean(name)
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	c := &Cgroup{h: h, path: name}
	if err := c.open(); err != nil {
		err = c.refused(err)
		c.Close()
		return nil, fmt.Errorf("open cgroup %s: %w", name, err)
	}
	return c, nil
}

// refused tells what it means that a file could not be opened. Those that vanish
// while the cgroup is removed are no missing feature; who has found one just before
// that is told ENODEV when it is opened (fs/kernfs/file.c: kernfs_fop_open).
func (c *Cgroup) refused(err error) error {
	switch {
	case errors.Is(err, unix.ENODEV):
		return ErrGone
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if gone := c.Check(); gone != nil {
		return gone
	}
	return fmt.Errorf("%w: %w", kernel.ErrUnavailable, err)
}

func (c *Cgroup) open() (err error) {
	c.dir, err = sys.Open(c.h.Memory.Path(c.path), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	if c.dev, c.id, err = identity(c.dir); err != nil {
		return err
	}
	if c.stat, err = c.dir.OpenAt("memory.stat", unix.O_RDONLY); err != nil {
		return err
	}
	if c.h.v1() {
		return c.openV1()
	}
	return c.openV2()
}

func (c *Cgroup) openV1() (err error) {
	if c.usage, err = c.dir.OpenAt("memory.usage_in_bytes", unix.O_RDONLY); err != nil {
		return err
	}
	if c.limit, err = c.dir.OpenAt("memory.limit_in_bytes", unix.O_RDONLY); err != nil {
		return err
	}
	if c.h.Freezer != "" {
		c.freezer, err = absentIsNil(sys.Open(c.h.Freezer.Path(c.path), unix.O_PATH|unix.O_DIRECTORY))
		if err != nil {
			return err
		}
	}
	if c.h.Pids != "" {
		c.pids, err = absentIsNil(sys.Open(c.h.Pids.Path(c.path, "pids.current"), unix.O_RDONLY))
	}
	return err
}

func (c *Cgroup) openV2() (err error) {
	if c.usage, err = c.dir.OpenAt("memory.current", unix.O_RDONLY); c.isNodeRoot() {
		c.usage, err = absentIsNil(c.usage, err)
	}
	if err != nil {
		return err
	}
	if c.usage != nil {
		if c.limit, err = c.dir.OpenAt("memory.max", unix.O_RDONLY); err != nil {
			return err
		}
	}
	return c.openCore()
}

// openCore opens the files that a v2 cgroup has without the memory controller.
func (c *Cgroup) openCore() (err error) {
	if c.events, err = absentIsNil(c.dir.OpenAt("cgroup.events", unix.O_RDONLY)); err != nil {
		return err
	}
	if c.pids, err = absentIsNil(c.dir.OpenAt("pids.current", unix.O_RDONLY)); err != nil {
		return err
	}
	c.kill.fd, c.kill.err = c.dir.OpenAt("cgroup.kill", unix.O_WRONLY)
	c.freeze.fd, c.freeze.err = c.dir.OpenAt("cgroup.freeze", unix.O_RDWR)
	return nil
}

// absentIsNil takes a missing file for one that the kernel does not offer here.
func absentIsNil(fd *sys.FD, err error) (*sys.FD, error) {
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return fd, err
}

func identity(dir *sys.FD) (dev, ino uint64, err error) {
	err = dir.Use(func(fd int) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return os.NewSyscallError("fstat", err)
		}
		dev, ino = uint64(st.Dev), st.Ino
		return nil
	})
	return dev, ino, err
}

// Path returns the path below the root of the tree that carries memory.
func (c *Cgroup) Path() string { return c.path }

// ID returns the inode of the directory, which since Linux 5.5 is the cgroup id
// that the kernel uses in its events and never gives out again.
func (c *Cgroup) ID() uint64 { return c.id }

// Check returns [ErrGone] unless the path still names this cgroup.
func (c *Cgroup) Check() error {
	var st unix.Stat_t
	err := unix.Stat(c.h.Memory.Path(c.path), &st)
	if err == unix.ENOENT || err == unix.ENOTDIR {
		return ErrGone
	}
	if err != nil {
		return fmt.Errorf("check cgroup %s: %w", c.path, err)
	}
	if uint64(st.Dev) != c.dev || st.Ino != c.id {
		return fmt.Errorf("%w: %s names another one", ErrGone, c.path)
	}
	return nil
}

// Close gives the descriptors up. Further calls do nothing.
func (c *Cgroup) Close() error {
	return errors.Join(c.dir.Close(), c.stat.Close(), c.usage.Close(), c.limit.Close(), c.events.Close(),
		c.kill.fd.Close(), c.freeze.fd.Close(), c.freezer.Close(), c.pids.Close())
}

// isNodeRoot reports whether this is the root of the node's cgroups, where v2
// has no numbers of its own.
func (c *Cgroup) isNodeRoot() bool { return c.path == "/" && !c.h.nested }

// failed names the operation and turns what the kernel says of a cgroup that was
// removed into [ErrGone].
func (c *Cgroup) failed(op string, err error) error {
	if removed(err) {
		err = ErrGone
	}
	return fmt.Errorf("%s of cgroup %s: %w", op, c.path, err)
}

// removed recognizes a removed cgroup: ENODEV for its open files, ENOENT for
// those that are opened below its directory.
func removed(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT)
}
