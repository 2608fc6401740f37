package daemon

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a child process that the kernel kills when this process exits for any reason.
type Process struct {
	process *os.Process
	done    chan struct{} // closed after err is set to the result of Wait
	err     error
}

// StartService is StartProcess in a session of its own, as a service manager starts a service: where no cgroup does, the
// kernel schedules by sessions (kernel/sched/autogroup.c).
func StartService(cmd *exec.Cmd) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &unix.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	return StartProcess(cmd)
}

// StartProcess starts a command in its own process group, so that the terminal's ^C goes only to this process, which
// then stops the command.
func StartProcess(cmd *exec.Cmd) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &unix.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = !cmd.SysProcAttr.Setsid // a session begins with a process group
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	p := &Process{done: make(chan struct{})}
	started := make(chan error)
	go p.run(cmd, started)
	if err := <-started; err != nil {
		return nil, err
	}
	p.process = cmd.Process
	return p, nil
}

// run starts the process and waits for it on one locked thread: the kernel sends the parent-death signal when the thread
// that forked exits (prctl(2), PR_SET_PDEATHSIG). The thread must not exit with the process, because it may have forked
// others before it was locked.
func (p *Process) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	started <- err
	if err == nil {
		p.err = cmd.Wait()
	}
	close(p.done)
}

// PID returns the process ID.
func (p *Process) PID() int { return p.process.Pid }

// Done returns a channel that is closed when the process has exited and Err is set.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns the result of a process that has exited, as [exec.Cmd.Wait] does.
func (p *Process) Err() error { return p.err }

// Signal sends a signal. It fails if the process has exited.
func (p *Process) Signal(s unix.Signal) error {
	if err := p.process.Signal(s); err != nil {
		return fmt.Errorf("send %v to process %d: %w", s, p.PID(), err)
	}
	return nil
}

// Kill sends SIGKILL and returns when the process has exited. It may have exited before.
func (p *Process) Kill() error {
	if err := p.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill process %d: %w", p.PID(), err)
	}
	<-p.done
	return nil
}

var errKilled = errors.New("did not exit in time and was killed")

// Terminate sends SIGTERM, and SIGKILL after the timeout, and returns when the process has exited. The error is nil for
// exit code 0.
func (p *Process) Terminate(timeout time.Duration) error {
	if err := p.process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("terminate process %d: %w", p.PID(), err)
	}
	select {
	case <-p.done:
		return p.err
	case <-time.After(timeout):
		_ = p.process.Kill() // fails only if it has already exited
		<-p.done
		return errKilled
	}
}
