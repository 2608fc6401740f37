package pollinterval

import (
	"sync"
	"time"
)

// Budget limits the CPU time of background work (a token bucket): a share of one CPU,
// with a burst of what was saved while less was used. Its methods may be called
// concurrently. Use NewBudget to create one.
type Budget struct {
	share    int64 // the work may use 1/share of a CPU
	maxSaved time.Duration

	mu        sync.Mutex
	updatedAt time.Time
	saved     time.Duration // negative if more was used than saved
}

// NewBudget returns a budget of 1/share of a CPU that can save up to most.
func NewBudget(share int64, most time.Duration) *Budget {
	return &Budget{share: share, maxSaved: most, saved: most, updatedAt: time.Now()}
}

// Spend records used CPU time and returns how long the caller must wait before it uses
// more.
func (b *Budget) Spend(used time.Duration, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if elapsed := now.Sub(b.updatedAt); elapsed > 0 {
		b.saved = min(b.maxSaved, b.saved+elapsed/time.Duration(b.share))
		b.updatedAt = now
	}
	b.saved -= used
	return max(0, -b.saved*time.Duration(b.share))
}
