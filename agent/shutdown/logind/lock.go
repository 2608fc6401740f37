package logind

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Lock holds a shutdown up until it is closed.
type Lock struct {
	once sync.Once
	fd   int
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
