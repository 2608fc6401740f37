package process

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/internal/sys"
)

// ErrGone says that the process has ended, or never was.
var ErrGone = errors.New("process is gone")

// Process is a process held by its pidfd. Its methods may be called
// concurrently, Close too: the descriptor's number is not given back while it is
// in use, so that it can't come to name another process.
type Process struct {
	pid int
	fd  *sys.FD
}

// Open holds the process that has the pid now. It is ErrGone where there is
// none, and kernel.ErrUnavailable before Linux 5.3.
func Open(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, failed("open", pid, err)
	}
	return &Process{pid: pid, fd: sys.New(fd)}, nil
}

// PID returns the pid by which the process was opened.
func (p *Process) PID() int { return p.pid }

// Close lets go of the process. A second call does nothing; the other methods
// are os.ErrClosed afterwards.
func (p *Process) Close() error { return p.fd.Close() }

// Signal sends a signal; ErrGone where the process has been reaped.
func (p *Process) Signal(s unix.Signal) error {
	err := p.fd.Use(func(fd int) error { return unix.PidfdSendSignal(fd, s, nil, 0) })
	return failed("signal", p.pid, err)
}

// Release frees the memory of a process that is being killed, from this thread
// and on its CPU time (process_mrelease(2), Linux 5.15; mm/oom_kill.c): its
// private anonymous pages. It is ErrGone where the process has let go of its
// memory by itself, which is the usual race; EAGAIN where its map is contended
// and another try may do; EINVAL where no SIGKILL is pending; and
// kernel.ErrUnavailable on older kernels.
func (p *Process) Release() error {
	err := p.fd.Use(func(fd int) error {
		if _, _, errno := unix.Syscall(unix.SYS_PROCESS_MRELEASE, uintptr(fd), 0, 0); errno != 0 {
			return errno
		}
		return nil
	})
	return failed("release the memory of", p.pid, err)
}

// Exited reports whether the process has ended: its memory is gone, even if its
// parent has not reaped it.
func (p *Process) Exited() (bool, error) { return p.poll(0) }

// Wait waits for the process to end, at most so long, and reports whether it
// did.
func (p *Process) Wait(timeout time.Duration) (bool, error) {
	return p.poll(int(min(timeout, time.Hour).Milliseconds()))
}

func (p *Process) poll(milliseconds int) (ended bool, err error) {
	err = p.fd.Use(func(fd int) error {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, milliseconds)
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Poll(fds, milliseconds)
		}
		ended = n > 0
		return err
	})
	return ended, failed("wait for", p.pid, err)
}

// failed tells what a system call's error means, nil for none.
func failed(op string, pid int, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ESRCH):
		err = fmt.Errorf("%w (%w)", ErrGone, err)
	case errors.Is(err, unix.ENOSYS):
		err = fmt.Errorf("%w (%w)", kernel.ErrUnavailable, err)
	}
	return fmt.Errorf("%s process %d: %w", op, pid, err)
}
