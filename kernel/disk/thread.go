package disk

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The parts of an I/O priority (include/uapi/linux/ioprio.h).
const (
	ioprioWhoProcess = 1
	ioprioClassBest  = 2
	ioprioClassShift = 13
	ioprioLowest     = 7 // within its class
)

// The nice values of a Thread: the kernel's default and its maximum.
const defaultNice, lowestNice = 0, 19

// Thread is an OS thread for background work. Its CPU priority is never above the
// default, even if that of this process is.
type Thread struct {
	mu     sync.Mutex
	tid    int  // 0 if the thread may have ended
	normal int  // nice value while the thread does not yield
	fixed  bool // the priority can't be raised again once lowered
}

// LockThread locks the calling goroutine to its thread and sets the thread to default
// CPU priority and to the lowest I/O priority of the best-effort class, which BFQ
// respects. It does not use the idle I/O class, whose requests mq-deadline delays for
// up to ten seconds while others write (block/mq-deadline.c: prio_aging_expire). The
// goroutine must call MarkEnded and return without unlocking the thread, which ends the
// thread. The error names what the kernel refused; the thread is usable nevertheless.
func LockThread() (*Thread, error) {
	runtime.LockOSThread()
	t := &Thread{tid: unix.Gettid()}
	var io error
	if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, uintptr(t.tid), ioprioClassBest<<ioprioClassShift|ioprioLowest); errno != 0 {
		io = os.NewSyscallError("ioprio_set", errno)
	}
	// The system call returns 20 - nice, which is never negative.
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, t.tid)
	if err != nil {
		return t, errors.Join(os.NewSyscallError("getpriority", err), io)
	}
	// If evictd was started at a lower priority, the thread keeps that.
	t.normal = max(defaultNice, 20-raw)
	err = t.set(t.normal)
	// Raising the priority needs CAP_SYS_NICE or RLIMIT_NICE (kernel/sys.c:
	// set_one_prio). Lowering it by one and raising it again tests that.
	if t.normal < lowestNice && t.set(t.normal+1) == nil {
		t.fixed = t.set(t.normal) != nil
	}
	return t, errors.Join(err, io)
}

// Yield sets the thread to the lowest CPU priority, or back to normal. Any thread may
// call it. If the kernel would refuse to raise the priority again, Yield does not
// lower it: on a busy node the thread would hardly run when its work becomes urgent.
func (t *Thread) Yield(yield bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.tid == 0 || t.fixed:
		return nil
	case yield:
		return t.set(lowestNice)
	}
	return t.set(t.normal)
}

// MarkEnded marks the thread as ending, so that Yield does not use its ID, which the
// kernel may reuse.
func (t *Thread) MarkEnded() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tid = 0
}

func (t *Thread) set(nice int) error {
	return os.NewSyscallError("setpriority", unix.Setpriority(unix.PRIO_PROCESS, t.tid, nice))
}

// ThreadTime returns the CPU time that the calling thread has used.
func ThreadTime() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0, os.NewSyscallError("clock_gettime", err)
	}
	return time.Duration(ts.Nano()), nil
}
