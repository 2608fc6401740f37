package affinity

import (
	"sync"
	"time"
)

// leaseDuration is that of the Lease of a node.
const leaseDuration = 40 * time.Second

// leases remembers the Leases that looked stale by the clock of the controller. The clock of a node may differ from it:
// a renewTime that has changed since it looked stale is proof of a kubelet that runs.
type leases struct {
	mu     sync.Mutex
	doubts map[string]time.Time // renewTime by node
}

// fresh reports whether a node renews its Lease.
func (l *leases) fresh(node string, renewed, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	doubt, doubted := l.doubts[node]
	if doubted && !doubt.Equal(renewed) || now.Sub(renewed).Abs() <= leaseDuration {
		delete(l.doubts, node)
		return true
	}
	if l.doubts == nil {
		l.doubts = make(map[string]time.Time)
	}
	l.doubts[node] = renewed
	return false
}
