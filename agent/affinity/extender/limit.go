package extender

import (
	"net"
	"sync"
)

const (
	// maxInFlight is how many requests are answered at the same time, and maxOfAddress those of one IP address. A
	// scheduler has one in flight.
	maxInFlight, maxOfAddress = 16, 4
)

// limiter bounds the requests in flight.
type limiter struct {
	mu    sync.Mutex
	total int
	of    map[string]int
}

// begin reports whether another request of an address may begin. Each that did is ended by end.
func (l *limiter) begin(address string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total == maxInFlight || l.of[address] == maxOfAddress {
		return false
	}
	if l.of == nil {
		l.of = make(map[string]int)
	}
	l.total++
	l.of[address]++
	return true
}

func (l *limiter) end(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.of[address]--; l.of[address] == 0 {
		delete(l.of, address)
	}
}

// addressOf returns the IP address of a peer.
func addressOf(peer string) string {
	host, _, err := net.SplitHostPort(peer)
	if err != nil {
		return peer
	}
	return host
}
