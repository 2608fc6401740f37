package logind

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// Lock is a descriptor that delays a shutdown until it is closed.
type Lock struct {
	once sync.Once
	fd   int
	// inherited marks a lock of an earlier run, whose pid logind reports for it.
	inherited bool
}

func newLock(fd int) *Lock {
	unix.CloseOnExec(fd)
	return &Lock{fd: fd}
}

// Close releases the lock. Further calls do nothing: the descriptor's number may
// have been reused.
func (l *Lock) Close() {
	if l != nil {
		l.once.Do(func() { unix.Close(l.fd) })
	}
}

// known reports whether logind still has the other end of the lock open. A lock is
// the write end of a FIFO whose read end logind reopens when it restarts (systemd,
// logind-inhibit.c: inhibitor_create_fifo). Without a reader, poll(2) reports
// POLLERR (fs/pipe.c: pipe_poll).
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
