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

// forks keeps n children alive: it immediately replaces one that is killed, so that killing them one after the other
// does not end. With -relay each child also starts a successor and exits, so that a list of PIDs is always outdated.
func forks(args []string, stderr io.Writer) error {
	fs, parse := flags("forks", stderr)
	n := fs.Int("n", 8, "children to keep")
	size := fs.Int64("bytes", mebibyte, "bytes that each child touches")
	relay := fs.Duration("relay", 0, "time after which a child starts a successor and exits; 0 is never")
	isChild := fs.Bool("child", false, "be one of the children")
	if err := parse(args); err != nil {
		return err
	}
	if *n <= 0 || *size <= 0 || *relay < 0 {
		return usageError{errors.New("-n and -bytes must be positive, -relay not negative")}
	}
	if *isChild {
		return child(*size, *relay)
	}
	// Successors of a child are orphans. As their subreaper, this process reaps them, which frees their PIDs.
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
			continue // it has started its successor
		}
		// EAGAIN is pids.max and ENOMEM the memory limit: try again after the next exit of a child.
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

// errReplaced ends a child that has started its successor.
var errReplaced = errors.New("replaced by a successor")

// child touches its memory and, after relay, starts a successor.
func child(size int64, relay time.Duration) error {
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
			return errReplaced
		}
	}
}
