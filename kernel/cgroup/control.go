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

// errRoot says that an order would hit the whole node, or the whole container
// that the tree is seen from.
var errRoot = errors.New("refused for the root")

// Kill writes cgroup.kill (since Linux 5.14): SIGKILL for every process in the
// subtree, also for those that are being forked, and for frozen ones. It is
// [kernel.ErrUnavailable] on v1: there, processes are killed one by one. On a
// hybrid node the v2 cgroup of the same path may hold other processes, so it is
// not taken for this one.
func (c *Cgroup) Kill() error {
	if err := c.writeKill(); err != nil {
		return c.failed("kill processes", err)
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

// Freeze stops every process in the subtree. The kernel does it one by one, after
// the call returned. The freezer of v1 is another tree: its cgroup of the same
// path is frozen, and [kernel.ErrUnavailable] means that there is none.
//
// On v1 a frozen process does not die of SIGKILL before it is thawed.
func (c *Cgroup) Freeze() error {
	if err := c.setFrozen(true); err != nil {
		return c.failed("freeze", err)
	}
	return nil
}

// Thaw undoes [Cgroup.Freeze]. On v1 it also thaws the cgroups below, which may
// have been frozen on their own, since what is killed there has to run to die.
// What a cgroup above has frozen stays frozen: [Cgroup.Frozen] tells.
func (c *Cgroup) Thaw() error {
	if err := c.setFrozen(false); err != nil {
		return c.failed("thaw", err)
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
		return c.ofFreezer(writeAt(c.freezer, "freezer.state", "FROZEN"))
	}
	return c.ofFreezer(walk(c.freezer, func(rel string) error {
		return writeAt(c.freezer, path.Join(rel, "freezer.state"), "THAWED")
	}))
}

// Frozen reports whether the cgroup is frozen, by its own order or by one above
// it, or about to be by its own; on v1 also, whether one below it is.
func (c *Cgroup) Frozen() (bool, error) {
	frozen, err := c.frozen()
	if err != nil {
		return false, c.failed("read freezer", err)
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
	return frozen, c.ofFreezer(err)
}

// AllFrozen reports whether nothing in the subtree runs any more since it was frozen,
// and so nothing forks. It is false also for a cgroup that nobody has frozen.
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
		// FREEZING as long as one task runs (kernel/cgroup/legacy_freezer.c).
		var state []byte
		state, err = readAt(c.freezer, "freezer.state", buf[:])
		frozen, err = string(state) == "FROZEN", c.ofFreezer(err)
	}
	if err != nil {
		return false, c.failed("read freezer", err)
	}
	return frozen, nil
}

// ofFreezer keeps an error that says that the freezer's cgroup is gone from being
// taken for one about memory's, which may live.
func (c *Cgroup) ofFreezer(err error) error {
	if removed(err) {
		return c.noFreezer()
	}
	return err
}

func (c *Cgroup) noFreezer() error {
	if err := c.Check(); err != nil {
		return err
	}
	return fmt.Errorf("no v1 freezer cgroup of this path: %w", kernel.ErrUnavailable)
}

// write gives an order to a file that was opened with the cgroup.
func (c *Cgroup) write(to control, order string) error {
	switch {
	case to.err == nil:
		return to.fd.Write([]byte(order))
	case !errors.Is(to.err, fs.ErrNotExist):
		return to.err
	case c.Check() != nil:
		return ErrGone
	}
	return fmt.Errorf("%v: %w", to.err, kernel.ErrUnavailable)
}

func writeAt(dir *sys.FD, name, order string) error {
	fd, err := dir.OpenAt(name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer fd.Close()
	return fd.Write([]byte(order))
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
