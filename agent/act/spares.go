package act

import (
	"errors"

	"golang.org/x/sys/unix"
)

// spares are descriptors that are open for the case that there are none left: a kill
// closes them to open processes.
type spares struct{ fds []int }

// mostSpares is how many processes can be opened with them at a time.
const mostSpares = 16

// fill opens those that are missing, as far as that can be done. Each is a file of its
// own, because there may be none left on the whole node (ENFILE).
func (s *spares) fill() {
	if s.fds == nil {
		s.fds = make([]int, 0, mostSpares)
	}
	for len(s.fds) < mostSpares {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			return // another time
		}
		s.fds = append(s.fds, fd)
	}
}

// pidfdOpen is pidfd_open(2), in the place of a spare where there is no descriptor left.
func (s *spares) pidfdOpen(pid int) (int, error) {
	for {
		fd, err := unix.PidfdOpen(pid, 0)
		if !exhausted(err) || !s.release() {
			return fd, err
		}
	}
}

// release closes one spare, and reports false where there is none.
func (s *spares) release() bool {
	last := len(s.fds) - 1
	if last < 0 {
		return false
	}
	unix.Close(s.fds[last])
	s.fds = s.fds[:last]
	return true
}

func (s *spares) close() error {
	for s.release() {
	}
	return nil
}

// exhausted reports whether there is no descriptor left, in this process or on the node.
func exhausted(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
}
