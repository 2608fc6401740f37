package logind

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// Lock holds a shutdown up until it is closed.
type Lock struct {
	once sync.Once
	fd   int
	// inherited is a lock of an earlier run: logind lists it with the pid of that.
	inherited bool
}

func newLock(fd int) *Lock {
	unix.CloseOnExec(fd)
	return &Lock{fd: fd}
}

// Close gives the lock up. Further calls do nothing: by then the descriptor's
// number may be another's.
func (l *Lock) Close() {
	if l != nil {
		l.once.Do(func() { unix.Close(l.fd) })
	}
}

// known reports whether logind still has the other end of the lock open. A lock is
// the writing end of a FIFO, whose reading end logind opens again when it is
// started again (systemd, logind-inhibit.c: inhibitor_create_fifo). Without a
// reader, poll(2) reports POLLERR (fs/pipe.c: pipe_poll).
func (l *Lock) known() bool {
	if l == nil {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(l.fd)}}
	for {
		_, err := unix.Poll(fds, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && fds[0].Revents == 0
	}
}
