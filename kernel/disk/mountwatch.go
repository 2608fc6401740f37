package disk

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/epoll"
	"github.com/evictd/evictd/kernel/internal/sys"
)

// MountWatcher watches the mounts of this process's mount namespace for changes. One
// thread at a time may call Wait; Close may be called concurrently.
type MountWatcher struct {
	poller *epoll.Poller
	fd     *sys.FD
}

// WatchMounts starts to watch for changes.
func WatchMounts(proc kernel.FS) (*MountWatcher, error) {
	fd, err := sys.Open(proc.Path("self", "mountinfo"), unix.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("watch mounts: %w", err)
	}
	poller, err := epoll.New()
	if err == nil {
		err = fd.Use(func(fd int) error { return poller.Add(fd, unix.EPOLLPRI, 0) })
		if err != nil {
			poller.Close()
		}
	}
	if err != nil {
		fd.Close()
		return nil, fmt.Errorf("watch mounts: %w", err)
	}
	return &MountWatcher{poller, fd}, nil
}

// Wait waits until a mount has changed since the last call, at most for timeout,
// which may be [epoll.Forever], and reports whether one has. It fails with
// [os.ErrClosed] after Close. The kernel coalesces changes (fs/proc_namespace.c:
// mounts_poll).
func (w *MountWatcher) Wait(timeout time.Duration) (changed bool, err error) {
	var events [1]epoll.Event
	count, err := w.poller.Wait(events[:], timeout)
	if err != nil {
		return false, fmt.Errorf("watch mounts: %w", err)
	}
	return count > 0, nil
}

// Close ends the watch and makes Wait return. Further calls do nothing.
func (w *MountWatcher) Close() error {
	err := w.poller.Close()
	w.fd.Close()
	return err
}
