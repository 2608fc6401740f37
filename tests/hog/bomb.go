package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forkInterval is the time between two children of one process of a bomb.
const forkInterval = 5 * time.Millisecond

// bomb touches memory and starts processes that do the same, without end. It ends only if all processes are killed
// faster than they fork.
func bomb(args []string, stderr io.Writer) error {
	fs, parse := flags("bomb", stderr)
	size := fs.Int64("bytes", mebibyte, "bytes that each process touches")
	bare := fs.Bool("forks", false, "fork as fast as the kernel does, without another program, and touch nothing")
	delay := fs.Duration("delay", 0, "wait before the first touch; SIGUSR1 ends the wait")
	if err := parse(args); err != nil {
		return err
	}
	if *size <= 0 || *delay < 0 {
		return usageError{errors.New("-bytes must be positive, -delay not negative")}
	}
	if err := contained(); err != nil {
		return err
	}
	mem, err := anonymous(*size, false)
	if err != nil {
		return err
	}
	wait(*delay)
	touch(mem, 0, nil)
	if *bare {
		runtime.LockOSThread()
		forkOn(int(unix.SIGCHLD), &unix.Timespec{Nsec: 100e6})
	}
	for {
		cmd := exec.Command("/proc/self/exe", "bomb", "-bytes", strconv.FormatInt(*size, 10))
		cmd.Args[0] = os.Args[0]
		// EAGAIN is pids.max and ENOMEM the memory limit: it is tried again.
		if err := cmd.Start(); err == nil {
			_ = cmd.Process.Release() // never waited for
		}
		time.Sleep(forkInterval)
	}
}

// forkOn forks without end, also in each child. After a failed fork it sleeps. In a child the Go runtime has only this
// thread, so nothing here may call into the runtime.
//
//go:nosplit
//go:norace
func forkOn(signal int, pause *unix.Timespec) {
	for {
		if _, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(signal), 0, 0, 0, 0, 0); errno != 0 {
			unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(pause)), 0, 0)
		}
	}
}

// contained returns an error unless process 1 is a hog too: then this is a container with a PID limit, and the kernel
// kills all processes of the bomb when process 1 exits.
func contained() error {
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("stat /proc/self/exe: %w", err)
	}
	// Without permission to read /proc/1/exe, process 1 is not this container's.
	first, err := os.Stat("/proc/1/exe")
	if err != nil || !os.SameFile(own, first) {
		return errors.New("process 1 is not a hog: a bomb runs only in a container")
	}
	return nil
}
