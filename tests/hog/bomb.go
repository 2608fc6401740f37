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

// between is how long a process of a bomb waits between two children.
const between = 5 * time.Millisecond

// bomb takes memory and starts processes that do the same, without end: only a limit ends it, and whoever kills all
// of them faster than new ones come.
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
			_ = cmd.Process.Release() // nobody waits for it
		}
		time.Sleep(between)
	}
}

// forkOn forks without end, in each child, too. Where there is no room it waits for some. In a child Go's runtime has
// lost all threads but this one, which must not need any: no call here has a way into it.
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

// contained returns an error unless process 1 is a hog, too: with it goes the bomb, and its container has a limit.
func contained() error {
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find the own executable: %w", err)
	}
	// Whoever may not look at process 1 is not of its kind.
	first, err := os.Stat("/proc/1/exe")
	if err != nil || !os.SameFile(own, first) {
		return errors.New("process 1 is no hog: a bomb is for a container alone")
	}
	return nil
}
