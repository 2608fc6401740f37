package psi

import (
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/internal/sys"
)

// The kernel takes windows of these lengths (kernel/sched/psi.c: WINDOW_MIN_US,
// WINDOW_MAX_US).
const (
	MinWindow = 500 * time.Millisecond
	MaxWindow = 10 * time.Second
)

// coarse is the period in which the kernel averages: whoever lacks
// CAP_SYS_RESOURCE shares that timer, and gets its multiples only.
const coarse = 2 * time.Second

// Condition is when a trigger fires: when tasks have stalled for so long within
// a window of so long. Both count in microseconds; what is finer is rounded up.
type Condition struct {
	Kind   Kind
	Stall  time.Duration
	Window time.Duration
}

func (c Condition) String() string {
	return fmt.Sprintf("%s of %v within %v", c.Kind, c.Stall, c.Window)
}

// Coarse returns the condition that a process without CAP_SYS_RESOURCE may arm:
// the window rounded up to a multiple of 2 s, and a stall of the same share of it.
func (c Condition) Coarse() Condition {
	window := (c.Window + coarse - 1) / coarse * coarse
	if window == c.Window {
		return c
	}
	hi, lo := bits.Mul64(uint64(c.Stall), uint64(window))
	quotient, rest := bits.Div64(hi, lo, uint64(c.Window))
	if rest != 0 {
		quotient++
	}
	return Condition{Kind: c.Kind, Stall: wholeMicroseconds(time.Duration(quotient)), Window: window}
}

func wholeMicroseconds(d time.Duration) time.Duration {
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}

func (c Condition) check() error {
	switch {
	case c.Kind != Some && c.Kind != Full:
		return fmt.Errorf("%v is neither some nor full", c.Kind)
	case c.Window < MinWindow || c.Window > MaxWindow:
		return fmt.Errorf("window of %v is not from %v to %v", c.Window, MinWindow, MaxWindow)
	case c.Stall <= 0 || c.Stall > c.Window:
		return fmt.Errorf("stall of %v is not within its window of %v", c.Stall, c.Window)
	}
	return nil
}

// Trigger is an armed trigger. Its descriptor reports EPOLLPRI, at most once for
// each window, and EPOLLERR for good when its cgroup is gone.
//
// The kernel looks at the growth of the total every tenth of a window, from the
// first stall on, and at coarse windows every 2 s. One event stays pending, and
// is over as soon as it was polled.
type Trigger struct {
	fd    *sys.FD
	armed Condition
}

// Arm arms a trigger for the whole node, on /proc/pressure. Without
// CAP_SYS_RESOURCE the kernel refuses most windows: then the condition's
// [Condition.Coarse] is armed, and [Trigger.Armed] tells. Before Linux 6.5 it
// refuses all, which is [fs.ErrPermission]. It is kernel.ErrUnavailable where
// there is no pressure.
func Arm(proc kernel.FS, r Resource, c Condition) (*Trigger, error) {
	t, err := arm(proc.Path("pressure", r.String()), c)
	if err != nil {
		return nil, fmt.Errorf("arm %s pressure trigger: %w", r, err)
	}
	return t, nil
}

// ArmCgroup is [Arm] for the subtree of a cgroup of h, on its memory.pressure and
// so on, which only v2 has: kernel.ErrUnavailable elsewhere, and where
// cgroup.pressure was switched off. A cgroup that was removed is cgroup.ErrGone,
// also when another has taken its path.
func ArmCgroup(h *cgroup.Hierarchy, of *cgroup.Cgroup, r Resource, c Condition) (*Trigger, error) {
	t, err := armCgroup(h, of, r, c)
	if err != nil {
		return nil, fmt.Errorf("arm %s pressure trigger of cgroup %s: %w", r, of.Path(), err)
	}
	return t, nil
}

func armCgroup(h *cgroup.Hierarchy, of *cgroup.Cgroup, r Resource, c Condition) (*Trigger, error) {
	if h.Version != cgroup.V2 {
		return nil, fmt.Errorf("%w: a %s tree has no pressure", kernel.ErrUnavailable, h.Version)
	}
	t, err := arm(h.Memory.Path(of.Path(), r.String()+".pressure"), c)
	// The path was followed before this: if it names the cgroup still, it did so
	// then, since inodes are not given out again and v2 renames no cgroup.
	if gone := of.Check(); gone != nil {
		if err == nil {
			t.Close()
		}
		return nil, gone
	}
	return t, err
}

func arm(path string, c Condition) (*Trigger, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	c.Stall, c.Window = wholeMicroseconds(c.Stall), wholeMicroseconds(c.Window)
	fd, err := sys.Open(path, unix.O_RDWR|unix.O_NONBLOCK)
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w: it has to be writable, and before Linux 6.5 CAP_SYS_RESOURCE is needed", err)
	}
	if err != nil {
		return nil, unavailable(err)
	}
	armed := c
	err = write(fd, armed)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrPermission) {
		if armed = c.Coarse(); armed != c {
			err = write(fd, armed)
		}
	}
	if err != nil {
		fd.Close()
		return nil, unavailable(err)
	}
	return &Trigger{fd: fd, armed: armed}, nil
}

// write gives the kernel a condition:
//
//	some 150000 1000000
//
// in microseconds. The kernel puts a NUL over the last byte.
func write(fd *sys.FD, c Condition) error {
	err := fd.Write(fmt.Appendf(nil, "%s %d %d\x00", c.Kind, c.Stall.Microseconds(), c.Window.Microseconds()))
	if err != nil {
		return fmt.Errorf("%s: %w", c, err)
	}
	return nil
}

// Armed returns the condition that the kernel has taken.
func (t *Trigger) Armed() Condition { return t.armed }

// FD returns the descriptor, to be polled for EPOLLPRI until [Trigger.Close],
// after which it is -1.
func (t *Trigger) FD() int {
	number := -1
	_ = t.fd.Use(func(fd int) error { number = fd; return nil })
	return number
}

// Total reads for how long tasks have stalled, of the kind and the resource that
// the trigger watches. It is cgroup.ErrGone when the trigger's cgroup is. It
// allocates nothing.
func (t *Trigger) Total() (time.Duration, error) {
	total, err := readTotal(t.fd, t.armed.Kind)
	if err != nil {
		if errors.Is(err, unix.ENODEV) {
			err = cgroup.ErrGone
		}
		return 0, fmt.Errorf("read pressure: %w", err)
	}
	return total, nil
}

// Close drops the trigger. Further calls do nothing.
func (t *Trigger) Close() error { return t.fd.Close() }
