package process

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/internal/sys"
)

// ErrGone means that the process has ended or never existed.
var ErrGone = errors.New("process is gone")

// Process is a process opened by pidfd. Its methods may be called concurrently,
// Close included: the descriptor is not closed while it is in use, so its number
// can't refer to another process.
type Process struct {
	pid int
	fd  *sys.FD
}

// Open opens the process that has the pid now. It fails with ErrGone if there is
// none, and with kernel.ErrUnavailable before Linux 5.3.
func Open(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, wrap("open", pid, err)
	}
	return &Process{pid: pid, fd: sys.New(fd)}, nil
}

// PID returns the pid by which the process was opened.
func (p *Process) PID() int { return p.pid }

// Close closes the pidfd. Further calls do nothing; the other methods then fail
// with os.ErrClosed.
func (p *Process) Close() error { return p.fd.Close() }

// Use calls use with the pidfd, which stays open until use returns. It reports EPOLLIN when
// the process has ended.
func (p *Process) Use(use func(fd int) error) error { return p.fd.Use(use) }

// Signal sends a signal. It fails with ErrGone if the process has been reaped.
func (p *Process) Signal(s unix.Signal) error {
	err := p.fd.Use(func(fd int) error { return unix.PidfdSendSignal(fd, s, nil, 0) })
	return wrap("signal", p.pid, err)
}

// ReleaseMemory frees the private anonymous memory of a process that is being killed,
// on the CPU time of the calling thread (process_mrelease(2), Linux 5.15;
// mm/oom_kill.c). It fails with ErrGone if the process has freed its memory itself,
// which is common; with EAGAIN if only a part could be freed, for example because an
// MMU notifier would have to block, and a retry may succeed; with EINVAL if no SIGKILL
// is pending; and with kernel.ErrUnavailable before Linux 5.15. It waits for the lock of
// the memory map (mmap lock).
func (p *Process) ReleaseMemory() error {
	err := p.fd.Use(func(fd int) error {
		if _, _, errno := unix.Syscall(unix.SYS_PROCESS_MRELEASE, uintptr(fd), 0, 0); errno != 0 {
			return errno
		}
		return nil
	})
	return wrap("release the memory of", p.pid, err)
}

// Exited reports whether the process has ended. Its memory is freed then, even if
// its parent has not reaped it.
func (p *Process) Exited() (bool, error) { return p.poll(0) }

// Wait waits for the process to end, at most for timeout and at most one hour, and
// reports whether it has.
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
	return ended, wrap("wait for", p.pid, err)
}

// wrap adds the operation to the error of a system call, and turns ESRCH into
// ErrGone and ENOSYS into kernel.ErrUnavailable. It returns nil for nil.
func wrap(op string, pid int, err error) error {
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
