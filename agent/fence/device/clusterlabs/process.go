package clusterlabs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// outputDelay is how long the output of an agent that has ended may stay open in a process that left its group.
	outputDelay = 500 * time.Millisecond
	// killTimeout bounds the wait for the end of a killed agent.
	killTimeout = time.Second
)

// environment is that of agents. They get nothing of the controller's environment.
var environment = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C", "HOME=/nonexistent"}

// startError says that no process was started.
type startError struct{ err error }

func (e *startError) Error() string { return "start: " + e.err.Error() }
func (e *startError) Unwrap() error { return e.err }

// result is how an agent has ended.
type result struct {
	code   int // -1 after a signal
	stdout io.Writer
	errors *tail
}

// stderr returns the end of what the agent printed to stderr, after a colon.
func (r *result) stderr(secrets []string) string {
	if text := r.errors.redact(secrets); text != "" {
		return ": " + text
	}
	return ": it printed no error"
}

// run runs a program without arguments. It returns an error unless the program has ended by itself. Afterwards no
// process of its group is left: agents start others, such as ipmitool, which would go on without it.
func run(ctx context.Context, path string, stdin []byte, stdout io.Writer, secrets ...string) (*result, error) {
	if err := ctx.Err(); err != nil {
		return nil, &startError{err}
	}
	longest := 0
	if all := forms(secrets); len(all) > 0 {
		longest = len(all[0])
	}
	r := &result{stdout: stdout, errors: &tail{limit: maxOutput + longest}}
	cmd := &exec.Cmd{
		Path: path, Args: []string{path}, Env: environment, Dir: "/",
		Stdin: bytes.NewReader(stdin), Stdout: stdout, Stderr: r.errors,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
		WaitDelay:   outputDelay,
	}
	if err := cmd.Start(); err != nil {
		return nil, &startError{err}
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		awaitExit(cmd.Process.Pid)
	}()
	var stopped error
	select {
	case <-exited:
	case <-ctx.Done():
		stopped = fmt.Errorf("killed: %w", context.Cause(ctx))
	}
	// The process is not reaped yet, so that its number is still that of its group. ESRCH: all have ended.
	_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-exited
		_ = cmd.Wait() // the state is in cmd
	}()
	select {
	case <-ended:
	case <-time.After(outputDelay + killTimeout):
		if stopped == nil {
			stopped = errors.New("killed")
		}
		return nil, fmt.Errorf("%w, but a process of it hangs in the kernel", stopped)
	}
	if stopped != nil {
		return nil, fmt.Errorf("%w%s", stopped, r.stderr(secrets))
	}
	r.code = cmd.ProcessState.ExitCode()
	return r, nil
}

// awaitExit returns when a child has ended. It does not reap it.
func awaitExit(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
