package extender

import (
	"net/netip"
	"sync"
)

const (
	// maxInFlight is how many requests are answered at the same time, and maxOfClient those of one client. A scheduler
	// has one in flight.
	maxInFlight, maxOfClient = 16, 4
)

// limiter bounds the requests in flight.
type limiter struct {
	mu    sync.Mutex
	total int
	of    map[netip.Addr]int
}

// begin reports whether another request of a client may begin. Each that did is ended by end.
func (l *limiter) begin(client netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total == maxInFlight || l.of[client] == maxOfClient {
		return false
	}
	if l.of == nil {
		l.of = make(map[netip.Addr]int)
	}
	l.total++
	l.of[client]++
	return true
}

func (l *limiter) end(client netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.of[client]--; l.of[client] == 0 {
		delete(l.of, client)
	}
}
