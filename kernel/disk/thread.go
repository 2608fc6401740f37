package disk

import (
	"errors"
	"os"
	"runtime"
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

// defaultNice is the kernel's default nice value.
const defaultNice = 0

// LockThread locks the calling goroutine to its thread, for background work. The thread
// gets default CPU priority, even if that of this process is higher, and the lowest I/O
// priority of the best-effort class, which BFQ respects. The goroutine must return without
// unlocking the thread, which ends the thread. The error names what the kernel refused; the
// thread is usable nevertheless.
//
// The CPU priority is not lower, because other threads of this process may have to wait for
// this one in the Go runtime, for example for a lock of it. At nice 19, on a node with busy
// CPUs, a real-time thread was seen to sleep for 90 ms until this one ran and woke it. The idle I/O class is not used, because mq-deadline delays
// its requests for up to ten seconds while others write (block/mq-deadline.c:
// prio_aging_expire).
func LockThread() error {
	runtime.LockOSThread()
	tid := unix.Gettid()
	var io error
	if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, uintptr(tid), ioprioClassBest<<ioprioClassShift|ioprioLowest); errno != 0 {
		io = os.NewSyscallError("ioprio_set", errno)
	}
	// The system call returns 20 - nice, which is never negative.
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, tid)
	if err != nil {
		return errors.Join(os.NewSyscallError("getpriority", err), io)
	}
	// If evictd was started at a lower priority, the thread keeps that.
	nice := max(defaultNice, 20-raw)
	return errors.Join(os.NewSyscallError("setpriority", unix.Setpriority(unix.PRIO_PROCESS, tid, nice)), io)
}

// ThreadTime returns the CPU time that the calling thread has used.
func ThreadTime() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0, os.NewSyscallError("clock_gettime", err)
	}
	return time.Duration(ts.Nano()), nil
}
