package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// forks keeps n children alive: one that dies is replaced at once, so that who kills them one after the other
// races with us. With -relay a child also starts its own successor and exits, over and over: a list of pids
// is old as soon as it is read.
func forks(args []string, stderr io.Writer) error {
	fs, parse := flags("forks", stderr)
	n := fs.Int("n", 8, "children to keep")
	size := fs.Int64("bytes", mebibyte, "bytes that each child touches")
	relay := fs.Duration("relay", 0, "after this long a child hands over to a successor; 0 is never")
	child := fs.Bool("child", false, "be such a child")
	if err := parse(args); err != nil {
		return err
	}
	if *n <= 0 || *size <= 0 || *relay < 0 {
		return usageError{errors.New("-n and -bytes must be positive, -relay not negative")}
	}
	if *child {
		return runner(*size, *relay)
	}
	// A relay's later children are orphans: they come to us, and their ends free their places.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	for range *n {
		if err := spawn(*size, *relay); err != nil {
			return err
		}
	}
	say("forked %d children", *n)
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil && !errors.Is(err, unix.ECHILD):
			return fmt.Errorf("wait for a child: %w", err)
		case err == nil && status.Exited() && status.ExitStatus() == 0:
			continue // handed over
		}
		// EAGAIN is pids.max and ENOMEM the memory limit: the next end of a child makes room.
		if err := spawn(*size, *relay); err != nil {
			time.Sleep(time.Millisecond)
		}
	}
}

// spawn starts one child and does not wait for it.
func spawn(size int64, relay time.Duration) error {
	cmd := exec.Command("/proc/self/exe", "forks", "-child",
		"-bytes", strconv.FormatInt(size, 10), "-relay", relay.String())
	cmd.Args[0] = os.Args[0]
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("fork: %w", err)
	}
	return cmd.Process.Release()
}

// errHandedOver ends a child that has started its successor.
var errHandedOver = errors.New("handed over")

// runner is a child: it holds, and hands over if it was told to.
func runner(size int64, relay time.Duration) error {
	mem, err := anonymous(size, false)
	if err != nil {
		return err
	}
	touch(mem, 0, nil)
	if relay == 0 {
		return nil
	}
	for {
		time.Sleep(relay)
		if err := spawn(size, relay); err == nil {
			return errHandedOver
		}
	}
}
