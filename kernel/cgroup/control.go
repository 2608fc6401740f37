package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/internal/sys"
)

// errRoot means that an operation would apply to the whole node, or to the whole
// container that evictd runs in.
var errRoot = errors.New("refused for the root cgroup")

// Kill writes cgroup.kill (since Linux 5.14), which sends SIGKILL to every process
// in the subtree, including frozen ones and those that are being forked. It fails
// with [kernel.ErrUnavailable] on v1, where processes must be killed one by one. On
// a hybrid node it does not use the v2 cgroup of the same path, which may contain
// other processes.
func (c *Cgroup) Kill() error {
	if err := c.writeKill(); err != nil {
		return c.wrap("kill processes", err)
	}
	return nil
}

func (c *Cgroup) writeKill() error {
	if c.path == "/" {
		return errRoot
	}
	if c.h.v1() {
		return fmt.Errorf("cgroup.kill on v1: %w", kernel.ErrUnavailable)
	}
	return c.write(c.kill, "1")
}

// Freeze freezes every process in the subtree. The kernel freezes them one by one
// after the call returns; [Cgroup.AllFrozen] reports the end. The v1 freezer is a
// hierarchy of its own: its cgroup of the same path is frozen. Freeze fails with
// [kernel.ErrUnavailable] if there is none.
//
// On v1 a frozen process does not die of SIGKILL until it is thawed.
func (c *Cgroup) Freeze() error {
	if err := c.setFrozen(true); err != nil {
		return c.wrap("freeze", err)
	}
	return nil
}

// Thaw undoes [Cgroup.Freeze]. On v1 it also thaws the descendants, which may have
// been frozen separately, because a killed process must run to exit. A cgroup whose
// ancestor is frozen stays frozen, which [Cgroup.Frozen] reports.
func (c *Cgroup) Thaw() error {
	if err := c.setFrozen(false); err != nil {
		return c.wrap("thaw", err)
	}
	return nil
}

func (c *Cgroup) setFrozen(frozen bool) error {
	if c.path == "/" {
		return errRoot
	}
	if !c.h.v1() {
		if frozen {
			return c.write(c.freeze, "1")
		}
		return c.write(c.freeze, "0")
	}
	if c.freezer == nil {
		return c.noFreezer()
	}
	if frozen {
		return c.freezerError(writeAt(c.freezer, "freezer.state", "FROZEN"))
	}
	return c.freezerError(walk(c.freezer, func(rel string) error {
		return writeAt(c.freezer, path.Join(rel, "freezer.state"), "THAWED")
	}))
}

// Frozen reports whether the cgroup is frozen by itself or by an ancestor, or is
// being frozen by itself; on v1 also, whether a descendant is frozen.
func (c *Cgroup) Frozen() (bool, error) {
	frozen, err := c.frozen()
	if err != nil {
		return false, c.wrap("read freezer", err)
	}
	return frozen, nil
}

func (c *Cgroup) frozen() (bool, error) {
	if c.path == "/" {
		return false, nil
	}
	var buf [64]byte
	if !c.h.v1() {
		if c.events == nil {
			return false, fmt.Errorf("cgroup.events: %w", kernel.ErrUnavailable)
		}
		if frozen, err := c.event("frozen"); err != nil || frozen {
			return frozen, err
		}
		b, err := readAt(c.dir, "cgroup.freeze", buf[:])
		return string(b) == "1", err
	}
	if c.freezer == nil {
		return false, c.noFreezer()
	}
	frozen := false
	err := walk(c.freezer, func(rel string) error {
		b, err := readAt(c.freezer, path.Join(rel, "freezer.state"), buf[:])
		if err != nil {
			return err
		}
		switch string(b) {
		case "THAWED":
			return nil
		case "FREEZING", "FROZEN":
			frozen = true
			return errStop
		}
		return fmt.Errorf("freezer.state is %q", b)
	})
	return frozen, c.freezerError(err)
}

// AllFrozen reports whether the freeze of the subtree is complete, so that no
// process in it runs or forks. It returns false for a cgroup that is not frozen.
func (c *Cgroup) AllFrozen() (bool, error) {
	var frozen bool
	var err error
	var buf [64]byte
	switch {
	case !c.h.v1() && c.events == nil:
		err = fmt.Errorf("cgroup.events: %w", kernel.ErrUnavailable)
	case !c.h.v1():
		frozen, err = c.event("frozen")
	case c.freezer == nil:
		err = c.noFreezer()
	default:
		// FREEZING while a task still runs (kernel/cgroup/legacy_freezer.c).
		var state []byte
		state, err = readAt(c.freezer, "freezer.state", buf[:])
		frozen, err = string(state) == "FROZEN", c.freezerError(err)
	}
	if err != nil {
		return false, c.wrap("read freezer", err)
	}
	return frozen, nil
}

// freezerError converts the error of a removed freezer cgroup, so that it does not
// count as the removal of the memory cgroup, which may still exist.
func (c *Cgroup) freezerError(err error) error {
	if removed(err) {
		return c.noFreezer()
	}
	return err
}

// noFreezer returns ErrGone if the memory cgroup was removed, and
// kernel.ErrUnavailable if only the freezer cgroup is missing.
func (c *Cgroup) noFreezer() error {
	if err := c.Check(); err != nil {
		return err
	}
	return fmt.Errorf("no v1 freezer cgroup of this path: %w", kernel.ErrUnavailable)
}

// write writes a value to a file that was opened with the cgroup.
func (c *Cgroup) write(to controlFile, value string) error {
	switch {
	case to.err == nil:
		return to.fd.Write([]byte(value))
	case !errors.Is(to.err, fs.ErrNotExist):
		return to.err
	case c.Check() != nil:
		return ErrGone
	}
	return fmt.Errorf("%v: %w", to.err, kernel.ErrUnavailable)
}

func writeAt(dir *sys.FD, name, value string) error {
	fd, err := dir.OpenAt(name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer fd.Close()
	return fd.Write([]byte(value))
}

// readAt reads a short file, without its line feed.
func readAt(dir *sys.FD, name string, buf []byte) ([]byte, error) {
	fd, err := dir.OpenAt(name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer fd.Close()
	b, err := fd.Read(buf)
	return bytes.TrimSuffix(b, []byte{'\n'}), err
}
