package serving

import (
	"net/http"
	"net/netip"
	"sync"
)

const (
	// smallBody is the length up to which a body is not counted: all connections together have few of them.
	smallBody = 64 << 10
	// maxBodies bounds the length of all larger bodies that are being handled, and maxClientBodies that of one client: a
	// request of the greatest length that any handler takes, or two of 10 MiB, since two schedulers of one host have one
	// address. It takes three clients to leave the others almost no room.
	maxBodies, maxClientBodies = 64 << 20, 21 << 20
)

// Bodies bounds the memory that the bodies of requests use.
type Bodies struct {
	metrics *Metrics

	mu      sync.Mutex
	total   int64
	clients map[netip.Addr]int64
}

// NewBodies returns a bound for all handlers of a server.
func NewBodies(m *Metrics) *Bodies {
	return &Bodies{metrics: m, clients: make(map[netip.Addr]int64)}
}

// Bound returns a handler whose requests are POSTs with a body of up to limit bytes, and a length in the header.
// Others are refused with 405, 411 or 413, and with 503 while too many large ones are being handled.
func (b *Bodies) Bound(limit int64, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodPost:
			w.Header().Set("Allow", http.MethodPost)
			b.metrics.refuse(w, refusedMethod, http.StatusMethodNotAllowed)
			return
		case r.ContentLength < 0:
			b.metrics.refuse(w, refusedLength, http.StatusLengthRequired)
			return
		case r.ContentLength > limit:
			b.metrics.refuse(w, refusedLarge, http.StatusRequestEntityTooLarge)
			return
		}
		if r.ContentLength > smallBody {
			client := ClientOf(r.RemoteAddr)
			if !b.reserve(client, r.ContentLength) {
				b.metrics.refuse(w, refusedBodies, http.StatusServiceUnavailable)
				return
			}
			defer b.release(client, r.ContentLength)
		}
		next.ServeHTTP(w, r)
	})
}

func (b *Bodies) reserve(client netip.Addr, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.total+n > maxBodies || b.clients[client]+n > maxClientBodies {
		return false
	}
	b.total += n
	b.clients[client] += n
	return true
}

func (b *Bodies) release(client netip.Addr, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total -= n
	if b.clients[client] -= n; b.clients[client] == 0 {
		delete(b.clients, client)
	}
}
