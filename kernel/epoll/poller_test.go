package epoll

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func newPoller(t *testing.T) *Poller {
	t.Helper()
	p, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// newEventfd returns an eventfd, which is readable after signal.
func newEventfd(t *testing.T) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func signal(t *testing.T, fd int) {
	t.Helper()
	if _, err := unix.Write(fd, binary.NativeEndian.AppendUint64(nil, 1)); err != nil {
		t.Fatal(err)
	}
}

func TestWait(t *testing.T) {
	p := newPoller(t)
	tokens := []uint64{0, 1, math.MaxUint32, 1 << 32, 1<<63 | 7, math.MaxUint64 - 1}
	for _, token := range tokens {
		fd := newEventfd(t)
		if err := p.Add(fd, unix.EPOLLIN, token); err != nil {
			t.Fatal(err)
		}
		buf := make([]Event, 4)
		if n, err := p.Wait(buf, 0); n != 0 || err != nil {
			t.Errorf("Wait() before an event = %d, %v; want 0", n, err)
		}
		signal(t, fd)
		n, err := p.Wait(buf, Forever)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]Event{{token, unix.EPOLLIN}}, buf[:n]); diff != "" {
			t.Errorf("Wait() (-want +got):\n%s", diff)
		}
		if err := p.Remove(fd); err != nil {
			t.Error(err)
		}
		if n, err := p.Wait(buf, 0); n != 0 || err != nil {
			t.Errorf("Wait() after Remove = %d, %v; want 0", n, err)
		}
	}
}

// If more descriptors are ready than fit into the buffer, later calls return the rest.
func TestWaitShortBuffer(t *testing.T) {
	p := newPoller(t)
	for token := range uint64(5) {
		fd := newEventfd(t)
		if err := p.Add(fd, unix.EPOLLIN, token); err != nil {
			t.Fatal(err)
		}
		signal(t, fd)
	}
	seen := map[uint64]bool{}
	for range 3 {
		buf := make([]Event, 2)
		n, err := p.Wait(buf, Forever)
		if n != 2 || err != nil {
			t.Fatalf("Wait() = %d, %v; want 2", n, err)
		}
		seen[buf[0].Token], seen[buf[1].Token] = true, true
	}
	if len(seen) != 5 {
		t.Errorf("tokens seen in 3 rounds of 2 = %v; want all 5", seen)
	}
	if _, err := p.Wait(nil, 0); err == nil {
		t.Error("Wait(nil) = nil; want an error")
	}
}

func TestWaitTimeout(t *testing.T) {
	p := newPoller(t)
	buf := make([]Event, 1)
	start := time.Now()
	const timeout = 3*time.Millisecond + time.Microsecond
	if n, err := p.Wait(buf, timeout); n != 0 || err != nil {
		t.Errorf("Wait() = %d, %v; want 0", n, err)
	}
	if took := time.Since(start); took < timeout {
		t.Errorf("Wait(%v) took %v", timeout, took)
	}
}

func TestMilliseconds(t *testing.T) {
	for _, tt := range []struct {
		d    time.Duration
		want int
	}{
		{Forever, -1}, {0, 0}, {1, 1}, {time.Millisecond, 1}, {time.Millisecond + 1, 2},
		{time.Second, 1000}, {math.MaxInt64, math.MaxInt32}, {math.MinInt64, -1},
	} {
		if got := milliseconds(tt.d); got != tt.want {
			t.Errorf("milliseconds(%d) = %d; want %d", tt.d, got, tt.want)
		}
	}
}

func TestAddRefused(t *testing.T) {
	p := newPoller(t)
	fd := newEventfd(t)
	if err := p.Add(fd, unix.EPOLLIN, math.MaxUint64); err == nil {
		t.Error("Add() with the reserved token = nil; want an error")
	}
	if err := p.Add(-1, unix.EPOLLIN, 1); !errors.Is(err, unix.EBADF) {
		t.Errorf("Add(-1) = %v; want %v", err, unix.EBADF)
	}
	if err := p.Remove(fd); !errors.Is(err, unix.ENOENT) {
		t.Errorf("Remove() of a descriptor that was not added = %v; want %v", err, unix.ENOENT)
	}
}

// Every Wake before or during a Wait makes exactly one Wait return.
func TestWake(t *testing.T) {
	p := newPoller(t)
	buf := make([]Event, 1)
	for range 200 {
		done := make(chan error)
		go func() { done <- p.Wake() }()
		if n, err := p.Wait(buf, Forever); n != 0 || err != nil {
			t.Fatalf("Wait() = %d, %v; want 0", n, err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	fd := newEventfd(t)
	if err := p.Add(fd, unix.EPOLLIN, 1); err != nil {
		t.Fatal(err)
	}
	signal(t, fd)
	if n, err := p.Wait(buf, Forever); n != 1 || err != nil {
		t.Errorf("Wait() without a pending wake-up = %d, %v; want the event", n, err)
	}
}

func TestClose(t *testing.T) {
	p := newPoller(t)
	for range 2 {
		if err := p.Close(); err != nil {
			t.Errorf("Close() = %v; want nil", err)
		}
	}
	_, wait := p.Wait(make([]Event, 1), Forever)
	for op, err := range map[string]error{"Wait": wait, "Add": p.Add(0, 0, 1), "Remove": p.Remove(0), "Wake": p.Wake()} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s() after Close = %v; want %v", op, err, os.ErrClosed)
		}
	}
}

// A poller may be closed when its thread is about to wait.
func TestCloseWhileWaiting(t *testing.T) {
	for range 500 {
		p := newPoller(t)
		done := make(chan error)
		go func() {
			_, err := p.Wait(make([]Event, 1), Forever)
			done <- err
		}()
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			if !errors.Is(err, os.ErrClosed) {
				t.Fatalf("Wait() while Close was called = %v; want %v", err, os.ErrClosed)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("Wait() did not return within 10 s of Close")
		}
	}
}
