package disk

import (
	"errors"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// The parts of an I/O priority (include/uapi/linux/ioprio.h).
const (
	ioprioWhoProcess = 1
	ioprioClassBest  = 2
	ioprioClassShift = 13
	ioprioLeast      = 7 // of its class
)

// lowestNice is what yields to everybody else.
const lowestNice = 19

// LowPriority ties the calling goroutine to its thread and makes the thread yield
// to all others, on the processors and on disks whose scheduler weighs priorities
// (BFQ). It is not of the idle class: by its source, mq-deadline lets that wait for
// ten seconds where others write (prio_aging_expire), which was not measured here.
// The goroutine must end without unlocking the thread, which
// then ends too: nothing else is to run on it. Where the kernel grants a part
// only, that part holds.
//
// On a busy node such a thread runs now and then: nobody should wait for it.
func LowPriority() error {
	runtime.LockOSThread()
	tid := unix.Gettid()
	nice := os.NewSyscallError("setpriority", unix.Setpriority(unix.PRIO_PROCESS, tid, lowestNice))
	var io error
	if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, uintptr(tid), ioprioClassBest<<ioprioClassShift|ioprioLeast); errno != 0 {
		io = os.NewSyscallError("ioprio_set", errno)
	}
	return errors.Join(nice, io)
}
