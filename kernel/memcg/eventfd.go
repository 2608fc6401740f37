package memcg

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/internal/sys"
)

// notice is an eventfd that the kernel signals for something in a v1 cgroup.
type notice struct {
	place place
	fd    *sys.FD
}

// FD returns the descriptor, to be polled for EPOLLIN until Close, after which
// it is -1.
func (n *notice) FD() int { return number(n.fd) }

// Take returns how often the kernel has signalled since the last call, and makes
// the descriptor unreadable until it does again. None is 0. It allocates nothing.
//
// The kernel signals once more when the cgroup is removed: whoever takes a signal
// looks whether the cgroup is still there.
func (n *notice) Take() (uint64, error) {
	var count uint64
	err := n.fd.Use(func(fd int) (err error) {
		count, err = take(fd)
		return err
	})
	if err != nil {
		return 0, n.place.failed("take notice", err)
	}
	return count, nil
}

func take(fd int) (uint64, error) {
	var buf [8]byte
	for {
		_, err := unix.Read(fd, buf[:])
		switch err {
		case nil:
			return binary.NativeEndian.Uint64(buf[:]), nil
		case unix.EAGAIN:
			return 0, nil
		case unix.EINTR:
			continue
		}
		return 0, os.NewSyscallError("read", err)
	}
}

// Close drops the notice. Further calls do nothing. The kernel takes it off its
// list in a worker, which waits for an RCU grace period; Close does not.
func (n *notice) Close() error { return n.fd.Close() }

// notify registers a new eventfd for a file of the cgroup, by a line in
// cgroup.event_control (mm/memcontrol-v1.c: memcg_write_event_control):
//
//	<eventfd> <descriptor of the file> <arguments>
func (p place) notify(file, arguments string) (notice, error) {
	if err := p.v1(); err != nil {
		return notice{}, err
	}
	dir, err := p.dir()
	if err != nil {
		return notice{}, err
	}
	defer dir.Close()
	watched, err := p.fileIn(dir, file, unix.O_RDONLY)
	if err != nil {
		return notice{}, err
	}
	// The kernel keeps the eventfd and the cgroup, not this file.
	defer watched.Close()
	control, err := p.fileIn(dir, "cgroup.event_control", unix.O_WRONLY)
	if err != nil {
		return notice{}, err
	}
	defer control.Close()

	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return notice{}, os.NewSyscallError("eventfd2", err)
	}
	n := notice{place: p, fd: sys.New(fd)}
	err = watched.Use(func(watched int) error {
		return control.Write(fmt.Appendf(nil, "%d %d %s", fd, watched, arguments))
	})
	if err != nil {
		n.Close()
		// PREEMPT_RT kernels have the file and refuse (not seen; by the source).
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = fmt.Errorf("%w: %w", kernel.ErrUnavailable, err)
		}
		return notice{}, fmt.Errorf("register %s for %q: %w", file, arguments, err)
	}
	return n, nil
}
