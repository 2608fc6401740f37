package controller

import (
	"sync"
	"time"
)

// leases remembers since when the Leases of suspected nodes are unchanged, by the controller's own clock: clocks of
// nodes are not compared with it. It starts empty, so that each node has one grace period after a change of the leader.
type leases struct {
	mu   sync.Mutex
	seen map[string]sighting // by node
}

// sighting is when a renewTime was seen first.
type sighting struct{ renewed, since time.Time }

// observe returns since when the renewTime of a node's Lease is unchanged.
func (l *leases) observe(node string, renewed, now time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.seen[node]
	if !ok || !s.renewed.Equal(renewed) {
		s = sighting{renewed, now}
		if l.seen == nil {
			l.seen = make(map[string]sighting)
		}
		l.seen[node] = s
	}
	return s.since
}

// forget removes a node that is no longer suspected.
func (l *leases) forget(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.seen, node)
}

// forgetAll is called in an outage of the API server: kubelets can't renew their Leases in it either.
func (l *leases) forgetAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.seen)
}
