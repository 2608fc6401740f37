//go:build !race

package epoll

import (
	"testing"

	"golang.org/x/sys/unix"
)

// The race detector moves every buffer that the kernel fills to the heap.
func TestAllocates(t *testing.T) {
	p := newPoller(t)
	fd := newEventfd(t)
	if err := p.Add(fd, unix.EPOLLIN, 1); err != nil {
		t.Fatal(err)
	}
	signal(t, fd)
	buf := make([]Event, 4)
	if n := testing.AllocsPerRun(100, func() {
		if err := p.Wake(); err != nil {
			t.Fatal(err)
		}
		if n, err := p.Wait(buf, Forever); n != 1 || err != nil {
			t.Fatalf("Wait() = %d, %v; want 1", n, err)
		}
	}); n != 0 {
		t.Errorf("Wake and Wait allocate %v times; want 0", n)
	}
}
