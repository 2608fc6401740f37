// Package epoll waits for events of kernel files on one thread.
//
// The Go runtime's poller never asks for EPOLLPRI, which pressure triggers and the
// event files of cgroups report, and resumes the waiting goroutine on any thread. A
// [Poller] is for a locked thread, possibly of real-time priority, that must wake
// without that delay (epoll(7), fs/eventpoll.c).
//
// The package starts no goroutine. Descriptors that are added remain their owner's.
// The kernel removes a descriptor that is closed, unless it was duplicated.
package epoll

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/internal/sys"
)

// Forever makes [Poller.Wait] wait without a timeout.
const Forever time.Duration = -1

// wakeToken is the token of the poller's own eventfd.
const wakeToken = math.MaxUint64

// maxEvents is the number of events that one system call returns. The next one
// returns the rest, in turn (fs/eventpoll.c: ep_send_events).
const maxEvents = 64

// Event is a ready descriptor.
type Event struct {
	Token uint64 // as passed to Add
	// Events are EPOLLIN, EPOLLPRI and so on. EPOLLERR and EPOLLHUP are always
	// reported. An event file of a cgroup reports EPOLLERR with every EPOLLPRI
	// (fs/kernfs/file.c: kernfs_generic_poll); it is not an error there.
	Events uint32
}

// Poller is an epoll instance. One thread at a time may call Wait; the other
// methods may be called concurrently with it.
type Poller struct {
	ep     *sys.FD
	wake   *sys.FD
	closed atomic.Bool
	raw    [maxEvents]unix.EpollEvent // used by Wait
}

// New returns a poller without descriptors. It uses two descriptors itself.
func New() (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create poller: %w", os.NewSyscallError("epoll_create1", err))
	}
	p := &Poller{ep: sys.New(fd)}
	if fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		p.ep.Close()
		return nil, fmt.Errorf("create poller: %w", os.NewSyscallError("eventfd2", err))
	}
	p.wake = sys.New(fd)
	if err := p.add(fd, unix.EPOLLIN, wakeToken); err != nil {
		p.Close()
		return nil, fmt.Errorf("create poller: %w", err)
	}
	return p, nil
}

// Add adds a descriptor and the events to wait for: EPOLLIN, EPOLLPRI, EPOLLET.
// Wait returns the token with each event. The largest token is reserved.
func (p *Poller) Add(fd int, events uint32, token uint64) error {
	if token == wakeToken {
		return fmt.Errorf("add descriptor %d to poller: token %d is reserved", fd, token)
	}
	if err := p.add(fd, events, token); err != nil {
		return fmt.Errorf("add descriptor %d to poller: %w", fd, err)
	}
	return nil
}

func (p *Poller) add(fd int, events uint32, token uint64) error {
	// The kernel's data field has 64 bits, which x/sys splits into two.
	ev := unix.EpollEvent{Events: events, Fd: int32(token), Pad: int32(token >> 32)}
	return p.ep.Use(func(ep int) error {
		return os.NewSyscallError("epoll_ctl", unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &ev))
	})
}

// Remove removes a descriptor. An event that Wait has returned may still be
// unprocessed.
func (p *Poller) Remove(fd int) error {
	err := p.ep.Use(func(ep int) error {
		return os.NewSyscallError("epoll_ctl", unix.EpollCtl(ep, unix.EPOLL_CTL_DEL, fd, nil))
	})
	if err != nil {
		return fmt.Errorf("remove descriptor %d from poller: %w", fd, err)
	}
	return nil
}

// Wait waits for events, stores them in buf and returns their number. It returns 0
// at the timeout, which is rounded up to milliseconds, and after [Poller.Wake]. It
// fails with [os.ErrClosed] if [Poller.Close] is called before or during the wait.
// It allocates nothing.
func (p *Poller) Wait(buf []Event, timeout time.Duration) (n int, err error) {
	if len(buf) == 0 {
		return 0, errors.New("wait for events: empty buffer")
	}
	// Both descriptors stay open until the wait returns. The kernel would remove an
	// eventfd that Close closes earlier, and its wake-up would be lost.
	err = p.ep.Use(func(ep int) error {
		return p.wake.Use(func(wake int) error {
			n, err = p.wait(ep, wake, buf, timeout)
			return err
		})
	})
	if p.closed.Load() {
		n, err = 0, os.ErrClosed
	}
	if err != nil {
		return 0, fmt.Errorf("wait for events: %w", err)
	}
	return n, nil
}

func (p *Poller) wait(ep, wake int, buf []Event, timeout time.Duration) (int, error) {
	raw := p.raw[:min(len(buf), len(p.raw))]
	var deadline time.Time
	if timeout > 0 {
		deadline = time.Now().Add(timeout)
	}
	got, err := unix.EpollWait(ep, raw, milliseconds(timeout))
	for err == unix.EINTR { // the Go runtime interrupts threads with signals
		if timeout > 0 {
			timeout = max(time.Until(deadline), 0)
		}
		got, err = unix.EpollWait(ep, raw, milliseconds(timeout))
	}
	if err != nil {
		return 0, os.NewSyscallError("epoll_wait", err)
	}
	n := 0
	for _, ev := range raw[:got] {
		token := uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32
		if token == wakeToken {
			if err := drain(wake); err != nil {
				return 0, err
			}
			continue
		}
		buf[n] = Event{Token: token, Events: ev.Events}
		n++
	}
	return n, nil
}

// milliseconds rounds up, so that a wait does not end before its timeout.
func milliseconds(d time.Duration) int {
	if d < 0 {
		return -1
	}
	ms := d / time.Millisecond
	if d%time.Millisecond != 0 {
		ms++
	}
	return int(min(ms, math.MaxInt32))
}

// drain resets the counter of an eventfd.
func drain(fd int) error {
	var count [8]byte
	for {
		_, err := unix.Read(fd, count[:])
		switch err {
		case nil, unix.EAGAIN:
			return nil
		case unix.EINTR:
			continue
		}
		return os.NewSyscallError("read", err)
	}
}

// Wake makes the current Wait return, or the next one if there is none. It
// allocates nothing.
func (p *Poller) Wake() error {
	// The kernel adds the number, in native byte order, to the counter of the
	// eventfd. Any number wakes except 0; the largest is invalid.
	one := [8]byte{1}
	err := p.wake.Write(one[:])
	if err == unix.EAGAIN { // the counter is full, so a wake-up is pending
		return nil
	}
	if err != nil {
		return fmt.Errorf("wake poller: %w", err)
	}
	return nil
}

// Close makes Wait return and closes the poller. Further calls do nothing. The
// descriptors that were added stay open.
func (p *Poller) Close() error {
	if p.closed.Swap(true) {
		return nil
	}
	return errors.Join(p.Wake(), p.wake.Close(), p.ep.Close())
}
