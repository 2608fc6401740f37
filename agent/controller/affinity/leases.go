package affinity

import (
	"maps"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/affinity"
)

// leases remembers the Leases that looked stale by the clock of the controller. The clock of a node may differ from it:
// a renewTime that has changed since it looked stale is proof of a kubelet that runs.
type leases struct {
	mu     sync.Mutex
	doubts map[string]doubt // by node
}

// doubt is a Lease that looked stale.
type doubt struct {
	renewed, seen time.Time
}

// doubtPeriod is how long a doubt is remembered beyond the debounce, after which a Lease is read again. A renewal since an
// earlier one proves nothing about now.
const doubtPeriod = 2 * time.Minute

// fresh reports whether a node renews its Lease.
func (l *leases) fresh(node string, renewed, now time.Time, debounce time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.doubts, func(_ string, d doubt) bool { return now.Sub(d.seen) > doubtPeriod+debounce })
	d, doubted := l.doubts[node]
	if doubted && !d.renewed.Equal(renewed) || now.Sub(renewed).Abs() <= affinity.LeaseDuration {
		delete(l.doubts, node)
		return true
	}
	if l.doubts == nil {
		l.doubts = make(map[string]doubt)
	}
	l.doubts[node] = doubt{renewed, now}
	return false
}
