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
	// ErrGone means that the cgroup does not exist any more.
	ErrGone = errors.New("cgroup is gone")
	// ErrOutsideNamespace means that a path leads outside the visible tree, because
	// its process is outside this cgroup namespace.
	ErrOutsideNamespace = errors.New("outside this cgroup namespace")
	// ErrOtherPIDNamespace means that a cgroup contains a process that has no pid in this
	// pid namespace. Such a process can't be named or killed.
	ErrOtherPIDNamespace = errors.New("process of another pid namespace")
)

// Cgroup is an open cgroup in the hierarchy of the memory controller. Its methods
// may be called concurrently, Close included: Close does not block, and calls in
// flight complete.
type Cgroup struct {
	h    *Hierarchy
	path string
	id   uint64
	dev  uint64

	dir   *sys.FD
	stat  *sys.FD
	usage *sys.FD // nil for the v2 root, which has none
	limit *sys.FD // nil for the v2 root

	// v2 only.
	events *sys.FD // nil for the root
	kill   controlFile
	freeze controlFile

	// v1 only: the cgroup of the same path in the freezer hierarchy, or nil.
	freezer *sys.FD
	pids    *sys.FD // pids.current, or nil if the pids controller is off
}

// controlFile is a file open for writing, or the error of opening it. The error is
// kept so that an unprivileged reader can still open the cgroup.
type controlFile struct {
	fd  *sys.FD
	err error
}

// Open opens the cgroup at a path below the root. It fails with [ErrGone] if there
// is none, and with [kernel.ErrUnavailable] if the memory controller is not enabled
// for a v2 cgroup. An open cgroup uses up to eight descriptors.
func (h *Hierarchy) Open(name string) (*Cgroup, error) {
	name, err := clean(name)
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	c := &Cgroup{h: h, path: name}
	if err := c.open(); err != nil {
		err = c.openError(err)
		c.Close()
		return nil, fmt.Errorf("open cgroup %s: %w", name, err)
	}
	return c, nil
}

// openError classifies the error of opening a file of the cgroup. A missing file is
// ErrGone if the cgroup was removed, and kernel.ErrUnavailable otherwise. ENODEV is
// returned for a file that was looked up just before the removal
// (fs/kernfs/file.c: kernfs_fop_open).
func (c *Cgroup) openError(err error) error {
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

// openCore opens the v2 files that do not depend on the memory controller.
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

// absentIsNil returns nil without an error if the file does not exist.
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

// Path returns the path below the root of the memory controller's hierarchy.
func (c *Cgroup) Path() string { return c.path }

// ID returns the inode number of the directory. Since Linux 5.5 that is the cgroup
// ID, which the kernel uses in its events and never reuses.
func (c *Cgroup) ID() uint64 { return c.id }

// Check returns [ErrGone] unless the path still refers to this cgroup.
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
		return fmt.Errorf("%w: %s is another cgroup now", ErrGone, c.path)
	}
	return nil
}

// Close closes the descriptors. Further calls do nothing.
func (c *Cgroup) Close() error {
	return errors.Join(c.dir.Close(), c.stat.Close(), c.usage.Close(), c.limit.Close(), c.events.Close(),
		c.kill.fd.Close(), c.freeze.fd.Close(), c.freezer.Close(), c.pids.Close())
}

// isNodeRoot reports whether this is the root cgroup of the node. On v2 it has no
// usage and no limit.
func (c *Cgroup) isNodeRoot() bool { return c.path == "/" && !c.h.nested }

// wrap adds the operation and the path to an error, and turns the errors of a
// removed cgroup into [ErrGone].
func (c *Cgroup) wrap(op string, err error) error {
	if removed(err) {
		err = ErrGone
	}
	return fmt.Errorf("%s of cgroup %s: %w", op, c.path, err)
}

// removed reports whether an error means that the cgroup was removed: ENODEV from
// its open files, ENOENT from opening a file below its directory.
func removed(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT)
}
