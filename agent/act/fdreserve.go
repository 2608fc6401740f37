package act

import (
	"errors"

	"golang.org/x/sys/unix"
)

// fdReserve is a set of open descriptors for the case that there are no free ones: a kill
// closes them one by one to open pidfds in their place.
type fdReserve struct{ fds []int }

// reserveSize is the number of pidfds that the reserve makes room for.
const reserveSize = 16

// fill opens the missing descriptors as far as possible. Each is a file of its own, because
// the limit reached may be that of the whole node (ENFILE).
func (s *fdReserve) fill() {
	if s.fds == nil {
		s.fds = make([]int, 0, reserveSize)
	}
	for len(s.fds) < reserveSize {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			return // filled by a later call
		}
		s.fds = append(s.fds, fd)
	}
}

// pidfdOpen calls pidfd_open(2), in place of a reserved descriptor if none is free.
func (s *fdReserve) pidfdOpen(pid int) (int, error) {
	for {
		fd, err := unix.PidfdOpen(pid, 0)
		if !outOfDescriptors(err) || !s.release() {
			return fd, err
		}
	}
}

// release closes one reserved descriptor. It returns false if there is none.
func (s *fdReserve) release() bool {
	last := len(s.fds) - 1
	if last < 0 {
		return false
	}
	unix.Close(s.fds[last])
	s.fds = s.fds[:last]
	return true
}

func (s *fdReserve) close() error {
	for s.release() {
	}
	return nil
}

// outOfDescriptors reports whether the limit of the process (EMFILE) or of the node (ENFILE)
// is reached.
func outOfDescriptors(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
}
