// Package epoll waits for kernel files on one thread.
//
// The Go runtime has a poller of its own, but that never asks for EPOLLPRI, by
// which pressure triggers and the event files of cgroups speak, and it hands what
// it heard to whichever thread comes next. A [Poller] is for a thread that has
// locked itself, may run at real-time priority, and wants to hear at once
// (epoll(7), fs/eventpoll.c).
//
// The package starts no goroutine. Descriptors that are added stay their owner's:
// the kernel takes one that is closed off the list by itself, unless it was
// duplicated.
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

// Forever makes [Poller.Wait] wait without end.
const Forever time.Duration = -1

// wakeToken is the token of the poller's own descriptor.
const wakeToken = math.MaxUint64

// atOnce is how many events one system call returns. What is left over comes
// with the next one, in turn (fs/eventpoll.c: ep_send_events).
const atOnce = 64

// Event is one descriptor that has something to tell.
type Event struct {
	Token uint64 // as it was given to Add
	// Events are EPOLLIN, EPOLLPRI and so on. EPOLLERR and EPOLLHUP come
	// unasked. An event file of a cgroup says EPOLLERR with every EPOLLPRI
	// (fs/kernfs/file.c: kernfs_generic_poll): it means no error there.
	Events uint32
}

// Poller is an epoll instance. One thread at a time may call Wait; the other
// methods may be called from anywhere, also meanwhile.
type Poller struct {
	ep     *sys.FD
	wake   *sys.FD
	closed atomic.Bool
	raw    [atOnce]unix.EpollEvent // of Wait
}

// New makes a poller that watches nothing yet. It holds two descriptors.
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

// Add watches a descriptor for events: EPOLLIN, EPOLLPRI, with EPOLLET only news.
// Wait returns the token with each. The largest token is the poller's own.
func (p *Poller) Add(fd int, events uint32, token uint64) error {
	if token == wakeToken {
		return fmt.Errorf("poll descriptor %d: token %d is the poller's own", fd, token)
	}
	if err := p.add(fd, events, token); err != nil {
		return fmt.Errorf("poll descriptor %d: %w", fd, err)
	}
	return nil
}

func (p *Poller) add(fd int, events uint32, token uint64) error {
	// The kernel's data field is 64 bits wide; x/sys has it as two halves.
	ev := unix.EpollEvent{Events: events, Fd: int32(token), Pad: int32(token >> 32)}
	return p.ep.Use(func(ep int) error {
		return os.NewSyscallError("epoll_ctl", unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &ev))
	})
}

// Remove watches a descriptor no longer. What Wait has already returned of it
// may still lie before its caller.
func (p *Poller) Remove(fd int) error {
	err := p.ep.Use(func(ep int) error {
		return os.NewSyscallError("epoll_ctl", unix.EpollCtl(ep, unix.EPOLL_CTL_DEL, fd, nil))
	})
	if err != nil {
		return fmt.Errorf("poll descriptor %d no longer: %w", fd, err)
	}
	return nil
}

// Wait fills buf with events and returns how many there are. It returns none
// when the time is over, which is counted in whole milliseconds, rounded up, and
// when [Poller.Wake] was called. After [Poller.Close], also one that comes while
// it waits, it is [os.ErrClosed]. It allocates nothing.
func (p *Poller) Wait(buf []Event, timeout time.Duration) (n int, err error) {
	if len(buf) == 0 {
		return 0, errors.New("wait for events: no room for one")
	}
	// Both stay open until it returns: a wake-up that is closed too early would
	// be taken off the list, and never be heard.
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

// milliseconds rounds up, so that a wait does not end early and begin again.
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

// drain resets an eventfd.
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

// Wake lets the present Wait return, or else the next one. It allocates nothing.
func (p *Poller) Wake() error {
	// The kernel adds the number, in the byte order of the machine, to its
	// counter: any but 0 and the largest will do.
	one := [8]byte{1}
	err := p.wake.Write(one[:])
	if err == unix.EAGAIN { // the counter is full, so it is awake
		return nil
	}
	if err != nil {
		return fmt.Errorf("wake poller: %w", err)
	}
	return nil
}

// Close lets Wait return and gives the poller up. Further calls do nothing. The
// descriptors that were added stay open.
func (p *Poller) Close() error {
	if p.closed.Swap(true) {
		return nil
	}
	return errors.Join(p.Wake(), p.wake.Close(), p.ep.Close())
}
