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
	ioprioLeast      = 7 // of its class
)

const ordinaryNice, lowestNice = 0, 19

// Thread is an OS thread for work that must not compete with the rest of the node:
// it never has more than ordinary priority, whatever priority this process has.
type Thread struct {
	mu       sync.Mutex
	tid      int // 0 once the thread may be gone
	ordinary int
	fixed    bool // the priority can't be raised again once lowered
}

// LockThread ties the calling goroutine to its thread and gives the thread ordinary
// priority on the processors and the least of the best-effort class on disks whose
// scheduler weighs priorities (BFQ). The I/O class is not idle: mq-deadline lets that
// wait for up to ten seconds while others write (block/mq-deadline.c:
// prio_aging_expire). The goroutine must call Ended and end without unlocking the
// thread, which then ends too. What the kernel refuses is in the error; the thread
// can be used all the same.
func LockThread() (*Thread, error) {
	runtime.LockOSThread()
	t := &Thread{tid: unix.Gettid()}
	var io error
	if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, uintptr(t.tid), ioprioClassBest<<ioprioClassShift|ioprioLeast); errno != 0 {
		io = os.NewSyscallError("ioprio_set", errno)
	}
	// The system call returns 20 - nice, so that it is not negative.
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, t.tid)
	if err != nil {
		return t, errors.Join(os.NewSyscallError("getpriority", err), io)
	}
	// Where evictd was started at a lower priority, it stays there.
	t.ordinary = max(ordinaryNice, 20-raw)
	err = t.set(t.ordinary)
	// Raising it again takes CAP_SYS_NICE or RLIMIT_NICE (kernel/sys.c:
	// set_one_prio). One step down and up shows whether that is granted.
	if t.ordinary < lowestNice && t.set(t.ordinary+1) == nil {
		t.fixed = t.set(t.ordinary) != nil
	}
	return t, errors.Join(err, io)
}

// Yield lowers the thread's priority to the least, or brings it back to ordinary.
// Any thread may call it. Where the kernel would not raise the priority again, it is
// not lowered: on a busy node the thread would hardly run when it becomes urgent.
func (t *Thread) Yield(yield bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.tid == 0 || t.fixed:
		return nil
	case yield:
		return t.set(lowestNice)
	}
	return t.set(t.ordinary)
}

// Ended says that the thread is about to end, after which its number may be
// another's.
func (t *Thread) Ended() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tid = 0
}

func (t *Thread) set(nice int) error {
	return os.NewSyscallError("setpriority", unix.Setpriority(unix.PRIO_PROCESS, t.tid, nice))
}

// ThreadTime returns the processor time that the calling thread has used.
func ThreadTime() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0, os.NewSyscallError("clock_gettime", err)
	}
	return time.Duration(ts.Nano()), nil
}
