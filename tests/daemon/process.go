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

// Process is a child that does not outlive the process that started it, however that one ends.
type Process struct {
	process *os.Process
	done    chan struct{} // closed once err is what Wait said
	err     error
}

// StartProcess starts a command in a process group of its own: a ^C is for us, who then stop it.
func StartProcess(cmd *exec.Cmd) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &unix.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, unix.SIGKILL
	p := &Process{done: make(chan struct{})}
	started := make(chan error)
	go p.run(cmd, started)
	if err := <-started; err != nil {
		return nil, err
	}
	p.process = cmd.Process
	return p, nil
}

// run starts and awaits the process on one thread: the kernel's signal at the parent's death comes when the thread
// that forked ends (prctl(2), PR_SET_PDEATHSIG), which is therefore kept.
func (p *Process) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	err := cmd.Start()
	started <- err
	if err == nil {
		p.err = cmd.Wait()
	}
	close(p.done)
}

// PID is the process's.
func (p *Process) PID() int { return p.process.Pid }

// Done is closed when the process has ended; Err then is how.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is what became of a process that is done.
func (p *Process) Err() error { return p.err }

var errPatience = errors.New("it did not end in time and was killed")

// Terminate sends SIGTERM, and SIGKILL after patience, and returns when the process has ended. The error is how it
// ended, if that was not by exit code 0.
func (p *Process) Terminate(patience time.Duration) error {
	if err := p.process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("terminate process %d: %w", p.PID(), err)
	}
	select {
	case <-p.done:
		return p.err
	case <-time.After(patience):
		_ = p.process.Kill() // ended just now, at worst
		<-p.done
		return errPatience
	}
}
