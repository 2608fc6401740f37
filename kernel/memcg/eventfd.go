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

// notifier is an eventfd that the kernel signals for an event of a v1 cgroup.
type notifier struct {
	target target
	fd     *sys.FD
}

// FD returns the descriptor to poll for EPOLLIN, or -1 after Close.
func (n *notifier) FD() int { return fdNumber(n.fd) }

// Drain returns how often the kernel has signalled since the last call, possibly 0,
// and resets the descriptor to unreadable. It allocates nothing.
//
// The kernel also signals when the cgroup is removed, so callers check after a
// signal whether the cgroup still exists.
func (n *notifier) Drain() (uint64, error) {
	var count uint64
	err := n.fd.Use(func(fd int) (err error) {
		count, err = readCount(fd)
		return err
	})
	if err != nil {
		return 0, n.target.wrap("read eventfd", err)
	}
	return count, nil
}

// readCount reads the counter of an eventfd and resets it to 0.
func readCount(fd int) (uint64, error) {
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

// Close removes the registration. Further calls do nothing. The kernel removes it in
// a worker, which waits for an RCU grace period; Close does not wait.
func (n *notifier) Close() error { return n.fd.Close() }

// register registers a new eventfd for a file of the cgroup, by a line in
// cgroup.event_control (mm/memcontrol-v1.c: memcg_write_event_control):
//
//	<eventfd> <descriptor of the file> <arguments>
func (t target) register(file, arguments string) (notifier, error) {
	if err := t.checkV1(); err != nil {
		return notifier{}, err
	}
	dir, err := t.openDir()
	if err != nil {
		return notifier{}, err
	}
	defer dir.Close()
	watched, err := t.openAt(dir, file, unix.O_RDONLY)
	if err != nil {
		return notifier{}, err
	}
	// The kernel keeps references to the eventfd and the cgroup, not to this file.
	defer watched.Close()
	control, err := t.openAt(dir, "cgroup.event_control", unix.O_WRONLY)
	if err != nil {
		return notifier{}, err
	}
	defer control.Close()

	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return notifier{}, os.NewSyscallError("eventfd2", err)
	}
	n := notifier{target: t, fd: sys.New(fd)}
	err = watched.Use(func(watched int) error {
		return control.Write(fmt.Appendf(nil, "%d %d %s", fd, watched, arguments))
	})
	if err != nil {
		n.Close()
		// PREEMPT_RT kernels have the file but refuse the write (from the source;
		// not tested).
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = fmt.Errorf("%w: %w", kernel.ErrUnavailable, err)
		}
		return notifier{}, fmt.Errorf("register %s for %q: %w", file, arguments, err)
	}
	return n, nil
}
