package process

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
)

// Scheduling is the scheduling policy and priority of a thread (sched(7)).
type Scheduling struct {
	Policy   Policy
	Priority int // for FIFO and RR: 1 (lowest) to 99
	Nice     int // for the other policies: -20 (highest priority) to 19
	// ResetOnFork means that threads and processes that the thread starts do not
	// inherit its scheduling.
	ResetOnFork bool
}

// Policy is a scheduling policy, as the kernel numbers them.
type Policy uint32

// The policies that are used here.
const (
	Normal Policy = unix.SCHED_NORMAL
	FIFO   Policy = unix.SCHED_FIFO
)

// ThreadScheduling returns the scheduling of the calling thread, which should be
// locked (runtime.LockOSThread).
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

// SetFIFO sets the calling thread, which must be locked, to SCHED_FIFO with a
// priority from 1 to 99: it preempts every normal task until it waits. Threads and
// processes that it starts do not inherit that. SetFIFO returns the scheduling in
// effect.
//
// It fails with [ErrNoRealTime] if the thread's cpu cgroup may not run real-time
// tasks. EPERM without it means that the thread has neither CAP_SYS_NICE nor an
// RLIMIT_RTPRIO of at least the priority.
func SetFIFO(priority int) (Scheduling, error) {
	if err := setFIFO(priority, true); err != nil {
		return Scheduling{}, err
	}
	return ThreadScheduling()
}

// EndFIFO sets a thread of this process, which [SetFIFO] has set to SCHED_FIFO, back to
// SCHED_OTHER. It keeps its nice value. It needs no privilege.
func EndFIFO(tid int) error {
	var parameters int32 // struct sched_param
	const policy = unix.SCHED_NORMAL | schedResetOnFork
	if _, _, errno := unix.Syscall(unix.SYS_SCHED_SETSCHEDULER, uintptr(tid), policy, uintptr(unsafe.Pointer(&parameters))); errno != 0 {
		return fmt.Errorf("end real-time priority of thread %d: %w", tid, os.NewSyscallError("sched_setscheduler", errno))
	}
	return nil
}

// schedResetOnFork is SCHED_RESET_ON_FORK (include/uapi/linux/sched.h). Clearing it would
// need a privilege.
const schedResetOnFork = 0x40000000

// ProbeFIFO returns the error that [SetFIFO] would return. It sets the priority on a
// thread and restores the old one.
func ProbeFIFO(priority int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := ThreadScheduling()
	if err != nil {
		return err
	}
	// Clearing reset-on-fork would need a privilege.
	if err := setFIFO(priority, before.ResetOnFork); err != nil {
		return err
	}
	if err := before.set(); err != nil {
		runtime.LockOSThread() // a second lock, so that no other goroutine uses this thread
		return fmt.Errorf("reset real-time priority: %w", err)
	}
	return nil
}

func setFIFO(priority int, resetOnFork bool) error {
	if priority < 1 || priority > 99 {
		return fmt.Errorf("set real-time priority %d: not from 1 to 99", priority)
	}
	if err := (Scheduling{Policy: FIFO, Priority: priority, ResetOnFork: resetOnFork}).set(); err != nil {
		return fmt.Errorf("set real-time priority %d: %w", priority, explainEPERM(err, priority))
	}
	return nil
}

// set applies the scheduling to the calling thread.
func (s Scheduling) set() error {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: uint32(s.Policy), Priority: uint32(s.Priority), Nice: int32(s.Nice)}
	if s.ResetOnFork {
		attr.Flags = unix.SCHED_FLAG_RESET_ON_FORK
	}
	return unix.SchedSetAttr(0, &attr, 0)
}

// ErrNoRealTime means that a thread's cpu cgroup has no real-time runtime: its
// cpu.rt_runtime_us is 0, the default of a new cgroup on a kernel with
// CONFIG_RT_GROUP_SCHED. The thread must move to another cgroup, such as the root.
// In a user namespace, missing privileges can't be distinguished from this, because
// the kernel does not honour the capabilities of the namespace here.
var ErrNoRealTime = errors.New("the cpu cgroup has no real-time runtime")

// explainEPERM distinguishes the two causes of EPERM. The kernel checks privileges
// first (kernel/sched/syscalls.c: __sched_setscheduler), so if they suffice, the
// cause is the cgroup.
func explainEPERM(err error, priority int) error {
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

// hasCapability reports whether a capability of the calling thread is effective,
// possibly only in its user namespace.
func hasCapability(bit int) (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return false, fmt.Errorf("read own capabilities: %w", err)
	}
	return sets[bit/32].Effective>>(bit%32)&1 != 0, nil
}

// SetNice sets the nice value, from -20 to 19, of all threads of this process,
// which threads started later inherit. It has no effect on a real-time thread while
// it is one. It fails with EACCES if lowering the value needs CAP_SYS_NICE, and with
// kernel.ErrUnavailable in a program that uses cgo.
func SetNice(nice int) error {
	if nice < -20 || nice > 19 {
		return fmt.Errorf("set nice value %d: not from -20 to 19", nice)
	}
	// The nice value is per thread, and the kernel has no call that sets it for all.
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, uintptr(nice))
	switch errno {
	case 0:
		return nil
	case syscall.ENOTSUP:
		return fmt.Errorf("set nice value %d: %w: the program uses cgo", nice, kernel.ErrUnavailable)
	}
	return fmt.Errorf("set nice value %d: %w", nice, os.NewSyscallError("setpriority", errno))
}

// SetThreadNice sets the nice value of the calling thread alone, which must be
// locked. Raising the value needs no privilege.
func SetThreadNice(nice int) error {
	if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), nice); err != nil {
		return fmt.Errorf("set nice value %d of this thread: %w", nice, os.NewSyscallError("setpriority", err))
	}
	return nil
}

// Unlimited is no limit.
const Unlimited time.Duration = math.MaxInt64

// RTTimeLimit is the CPU time that a real-time thread of this process may use
// without blocking (RLIMIT_RTTIME). The kernel counts in ticks. At Soft it sends
// SIGXCPU, which a Go program ignores by default, and raises Soft by a second
// (kernel/time/posix-cpu-timers.c: check_thread_timers). At Hard it kills the
// process, so that a runaway thread can't occupy the node.
//
// A loop in Go code may never reach the limit: the runtime preempts it every 10 ms,
// its thread then usually blocks for a moment, and the kernel restarts the count.
// The limit is for a thread that the runtime can't preempt.
type RTTimeLimit struct {
	Soft, Hard time.Duration // Unlimited for none
}

// ReadRTTimeLimit returns the limit in effect.
func ReadRTTimeLimit() (RTTimeLimit, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_RTTIME, &limit); err != nil {
		return RTTimeLimit{}, fmt.Errorf("read limit of real-time: %w", err)
	}
	return RTTimeLimit{Soft: fromMicroseconds(limit.Cur), Hard: fromMicroseconds(limit.Max)}, nil
}

// SetRTTimeLimit sets the limit of this process, which applies to each of its
// threads and is inherited by child processes, and returns the limit in effect.
// Raising Hard again fails with EPERM without CAP_SYS_RESOURCE.
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
