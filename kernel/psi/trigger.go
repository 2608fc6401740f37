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

// The kernel accepts windows from MinWindow to MaxWindow (kernel/sched/psi.c:
// WINDOW_MIN_US, WINDOW_MAX_US).
const (
	MinWindow = 500 * time.Millisecond
	MaxWindow = 10 * time.Second
)

// averagePeriod is the period of the kernel's averages (kernel/sched/psi.c:
// PSI_FREQ). Triggers armed without CAP_SYS_RESOURCE share its timer, so their
// windows must be multiples of it.
const averagePeriod = 2 * time.Second

// Condition is when a trigger fires: tasks stalled for Stall within Window. Both
// are rounded up to microseconds.
type Condition struct {
	Kind   Kind
	Stall  time.Duration
	Window time.Duration
}

func (c Condition) String() string {
	return fmt.Sprintf("%s of %v within %v", c.Kind, c.Stall, c.Window)
}

// Unprivileged returns the condition that a process without CAP_SYS_RESOURCE may arm:
// the window is rounded up to a multiple of 2 s, and the stall grows in proportion.
func (c Condition) Unprivileged() Condition {
	window := (c.Window + averagePeriod - 1) / averagePeriod * averagePeriod
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
		return fmt.Errorf("stall of %v is not between 0 and its window of %v", c.Stall, c.Window)
	}
	return nil
}

// Trigger is an armed trigger. Its descriptor reports EPOLLPRI at most once per
// window, and EPOLLERR permanently after its cgroup was removed.
//
// From the first stall on, the kernel checks the growth of the total every tenth of
// a window, or every 2 s for a trigger armed without CAP_SYS_RESOURCE. One event
// stays pending until it is polled.
type Trigger struct {
	fd    *sys.FD
	armed Condition
}

// Arm arms a trigger for the whole node, on /proc/pressure. Without
// CAP_SYS_RESOURCE the kernel refuses most windows; Arm then arms
// [Condition.Unprivileged], and [Trigger.Armed] returns it. Before Linux 6.5 the kernel
// refuses all of them, and Arm fails with [fs.ErrPermission]. It fails with
// kernel.ErrUnavailable on a kernel without PSI.
func Arm(proc kernel.FS, r Resource, c Condition) (*Trigger, error) {
	t, err := arm(proc.Path("pressure", r.String()), c)
	if err != nil {
		return nil, fmt.Errorf("arm %s pressure trigger: %w", r, err)
	}
	return t, nil
}

// ArmCgroup is [Arm] for the subtree of a cgroup of h, on its pressure files. It
// fails with kernel.ErrUnavailable on v1 and if cgroup.pressure is off, and with
// cgroup.ErrGone if the cgroup was removed, even if another one has its path now.
func ArmCgroup(h *cgroup.Hierarchy, of *cgroup.Cgroup, r Resource, c Condition) (*Trigger, error) {
	t, err := armCgroup(h, of, r, c)
	if err != nil {
		return nil, fmt.Errorf("arm %s pressure trigger of cgroup %s: %w", r, of.Path(), err)
	}
	return t, nil
}

func armCgroup(h *cgroup.Hierarchy, of *cgroup.Cgroup, r Resource, c Condition) (*Trigger, error) {
	if h.Version != cgroup.V2 {
		return nil, fmt.Errorf("%w: a %s hierarchy has no pressure", kernel.ErrUnavailable, h.Version)
	}
	t, err := arm(h.Memory.Path(of.Path(), r.String()+".pressure"), c)
	// The path was resolved before this check. If it refers to the cgroup now, it
	// did so then: inode numbers are not reused, and v2 cgroups can't be renamed.
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
		return nil, fmt.Errorf("%w: arming needs write access, and before Linux 6.5 CAP_SYS_RESOURCE", err)
	}
	if err != nil {
		return nil, unavailable(err)
	}
	armed := c
	err = write(fd, armed)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrPermission) {
		if armed = c.Unprivileged(); armed != c {
			err = write(fd, armed)
		}
	}
	if err != nil {
		fd.Close()
		return nil, unavailable(err)
	}
	return &Trigger{fd: fd, armed: armed}, nil
}

// write writes a condition, in microseconds:
//
//	some 150000 1000000
//
// The kernel overwrites the last byte with a NUL.
func write(fd *sys.FD, c Condition) error {
	err := fd.Write(fmt.Appendf(nil, "%s %d %d\x00", c.Kind, c.Stall.Microseconds(), c.Window.Microseconds()))
	if err != nil {
		return fmt.Errorf("%s: %w", c, err)
	}
	return nil
}

// Armed returns the condition that the kernel accepted.
func (t *Trigger) Armed() Condition { return t.armed }

// FD returns the descriptor to poll for EPOLLPRI, or -1 after [Trigger.Close].
func (t *Trigger) FD() int {
	number := -1
	_ = t.fd.Use(func(fd int) error { number = fd; return nil })
	return number
}

// Total reads the total stall time of the trigger's kind and resource. It fails
// with cgroup.ErrGone if the trigger's cgroup was removed. It allocates nothing.
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

// Close disarms the trigger. Further calls do nothing.
func (t *Trigger) Close() error { return t.fd.Close() }
