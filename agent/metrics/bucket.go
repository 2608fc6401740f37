package metrics

import (
	"sync"
	"time"
)

// bucket is a token bucket: it fills at perSecond up to burst. A caller may take
// more than its level and must then wait; callers wait in the order of their calls.
type bucket struct {
	perSecond, burst float64

	mu    sync.Mutex
	level float64 // negative while callers wait
	at    time.Time
}

// maxWait limits how long a caller waits, however much other callers have taken. It
// is less than Prometheus' default scrape timeout of 10 s.
const maxWait = 5 * time.Second

func newBucket(perSecond, burst float64) *bucket {
	return &bucket{perSecond: perSecond, burst: burst, level: burst, at: time.Now()}
}

// take takes an amount and returns how long the caller must wait for it.
func (b *bucket) take(amount float64) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.level = min(b.burst, b.level+now.Sub(b.at).Seconds()*b.perSecond)
	b.at = now
	b.level = max(b.level-amount, -maxWait.Seconds()*b.perSecond)
	if b.level >= 0 {
		return 0
	}
	return time.Duration(-b.level / b.perSecond * float64(time.Second))
}
