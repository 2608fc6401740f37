package process

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
)

// Scheduling is how a thread gets its processor (sched(7)).
type Scheduling struct {
	Policy   Policy
	Priority int // of FIFO and RR: 1, the lowest, to 99
	Nice     int // of the other policies: -20, the most, to 19
	// ResetOnFork says that threads and processes that it starts do not inherit
	// this.
	ResetOnFork bool
}

// Policy is a scheduling policy by the kernel's number.
type Policy uint32

// The policies that are used here.
const (
	Normal Policy = unix.SCHED_NORMAL
	FIFO   Policy = unix.SCHED_FIFO
)

// ThreadScheduling reads what is in force for the calling thread, which should
// be locked (runtime.LockOSThread).
func ThreadScheduling() (Scheduling, error) {
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return Scheduling{}, fmt.Errorf("read scheduling of this thread: %w", err)
	}
	return Scheduling{
		Policy: Policy(attr.Policy), Priority: int(attr.Priority), Nice: int(attr.Nice),
		ResetOnFork: attr.Flags&unix.SCHED_FLAG_RESET_ON_FORK != 0,
	}, nil
}

// SetFIFO gives the calling thread, which must be locked, a real-time priority
// from 1 to 99: it runs before every normal task, until it waits. Threads and
// processes that it starts do not inherit that. It returns what is in force then.
//
// [ErrNoRealTime] says that the thread's cpu cgroup may not run real-time tasks.
// An EPERM without it is a lack of privilege: the priority needs CAP_SYS_NICE, or
// an RLIMIT_RTPRIO that is as large.
func SetFIFO(priority int) (Scheduling, error) {
	if err := setFIFO(priority, true); err != nil {
		return Scheduling{}, err
	}
	return ThreadScheduling()
}

// TryFIFO tells whether [SetFIFO] would be granted: it gives a thread the
// priority and takes it back.
func TryFIFO(priority int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := ThreadScheduling()
	if err != nil {
		return err
	}
	// Dropping the reset on fork would take a privilege.
	if err := setFIFO(priority, before.ResetOnFork); err != nil {
		return err
	}
	if err := before.set(); err != nil {
		runtime.LockOSThread() // nobody else gets this thread
		return fmt.Errorf("take real-time priority back: %w", err)
	}
	return nil
}

func setFIFO(priority int, resetOnFork bool) error {
	if priority < 1 || priority > 99 {
		return fmt.Errorf("set real-time priority %d: not from 1 to 99", priority)
	}
	if err := (Scheduling{Policy: FIFO, Priority: priority, ResetOnFork: resetOnFork}).set(); err != nil {
		return fmt.Errorf("set real-time priority %d: %w", priority, whyNot(err, priority))
	}
	return nil
}

// set gives the scheduling to the calling thread.
func (s Scheduling) set() error {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: uint32(s.Policy), Priority: uint32(s.Priority), Nice: int32(s.Nice)}
	if s.ResetOnFork {
		attr.Flags = unix.SCHED_FLAG_RESET_ON_FORK
	}
	return unix.SchedSetAttr(0, &attr, 0)
}

// ErrNoRealTime says that a thread's cpu cgroup has no time for real-time tasks:
// its cpu.rt_runtime_us is 0, as in each that was made anew on a kernel with
// CONFIG_RT_GROUP_SCHED. Only another cgroup helps, such as the root. In a user
// namespace, whose capabilities the kernel does not honour here, a lack of
// privilege looks the same.
var ErrNoRealTime = errors.New("the cpu cgroup has no real-time runtime")

// whyNot tells one EPERM from the other. The kernel looks at the privileges
// first (kernel/sched/syscalls.c: __sched_setscheduler), so with these it is the
// cgroup.
func whyNot(err error, priority int) error {
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	nice, capErr := hasCapability(unix.CAP_SYS_NICE)
	var limit unix.Rlimit
	limitErr := unix.Getrlimit(unix.RLIMIT_RTPRIO, &limit)
	switch {
	case errors.Join(capErr, limitErr) != nil:
		return err
	case nice || limit.Cur >= uint64(priority):
		return fmt.Errorf("%w (cpu.rt_runtime_us): %w", ErrNoRealTime, err)
	}
	return fmt.Errorf("%w: it needs CAP_SYS_NICE, or an RLIMIT_RTPRIO of more than %d", err, limit.Cur)
}

// hasCapability reports whether the calling thread has a capability in effect,
// be it in a user namespace only.
func hasCapability(bit int) (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return false, fmt.Errorf("read own capabilities: %w", err)
	}
	return sets[bit/32].Effective>>(bit%32)&1 != 0, nil
}

// SetNice sets the nice value, from -20 to 19, of all threads of this process,
// and of those that it starts later. A real-time thread keeps it for when it is
// none. Lowering it needs CAP_SYS_NICE: EACCES. In a program that uses cgo it is
// kernel.ErrUnavailable.
func SetNice(nice int) error {
	if nice < -20 || nice > 19 {
		return fmt.Errorf("set nice value %d: not from -20 to 19", nice)
	}
	// The kernel keeps one for each thread, and knows no call for all.
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, uintptr(nice))
	switch errno {
	case 0:
		return nil
	case syscall.ENOTSUP:
		return fmt.Errorf("set nice value %d: %w: the program uses cgo", nice, kernel.ErrUnavailable)
	}
	return fmt.Errorf("set nice value %d: %w", nice, os.NewSyscallError("setpriority", errno))
}

// SetThreadNice sets the nice value of the calling thread alone, to which the
// goroutine must be locked. Raising it needs no privilege.
func SetThreadNice(nice int) error {
	if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), nice); err != nil {
		return fmt.Errorf("set nice value %d of a thread: %w", nice, os.NewSyscallError("setpriority", err))
	}
	return nil
}

// Unlimited is no limit.
const Unlimited time.Duration = math.MaxInt64

// RTTimeLimit is how long a real-time thread of this process may run without
// waiting for anything. The kernel counts in ticks. At Soft it sends SIGXCPU,
// which a Go program ignores unless it asked for it, raises Soft by a second, and
// so on (kernel/time/posix-cpu-timers.c: check_thread_timers). At Hard it kills
// the process: a thread that ran wild frees the node by its death.
//
// A loop in Go code may never get there. The runtime interrupts it every 10 ms,
// its thread then mostly sleeps for a moment, and the kernel begins to count
// anew. What the limit catches is a thread that the runtime can't interrupt.
type RTTimeLimit struct {
	Soft, Hard time.Duration // Unlimited for none
}

// ReadRTTimeLimit reads what is in force.
func ReadRTTimeLimit() (RTTimeLimit, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_RTTIME, &limit); err != nil {
		return RTTimeLimit{}, fmt.Errorf("read limit of real-time: %w", err)
	}
	return RTTimeLimit{Soft: fromMicroseconds(limit.Cur), Hard: fromMicroseconds(limit.Max)}, nil
}

// SetRTTimeLimit sets the limit for the whole process, all its threads and those
// whom it starts: the kernel keeps limits for processes. It returns what is in
// force then. Raising Hard again needs CAP_SYS_RESOURCE: EPERM.
func SetRTTimeLimit(to RTTimeLimit) (RTTimeLimit, error) {
	if to.Soft <= 0 || to.Hard < to.Soft {
		return RTTimeLimit{}, fmt.Errorf("set limit of real-time to %v and %v: they must be more than 0, and in this order", to.Soft, to.Hard)
	}
	limit := unix.Rlimit{Cur: toMicroseconds(to.Soft), Max: toMicroseconds(to.Hard)}
	if err := unix.Prlimit(0, unix.RLIMIT_RTTIME, &limit, nil); err != nil {
		return RTTimeLimit{}, fmt.Errorf("set limit of real-time to %v and %v: %w", to.Soft, to.Hard, err)
	}
	return ReadRTTimeLimit()
}

func fromMicroseconds(us uint64) time.Duration {
	if us > math.MaxInt64/1000 { // RLIM_INFINITY, too
		return Unlimited
	}
	return time.Duration(us) * time.Microsecond
}

func toMicroseconds(d time.Duration) uint64 {
	if d == Unlimited {
		return unix.RLIM_INFINITY
	}
	return max(uint64(d.Microseconds()), 1)
}
