package pace

import (
	"sync"
	"time"
)

// Budget is the processor time that background work may take together: a share of
// one processor, and at once at most what was saved while it took less. The zero
// Budget is not usable. Its methods may be called concurrently.
type Budget struct {
	share int64 // one part in so many
	most  time.Duration

	mu    sync.Mutex
	at    time.Time
	saved time.Duration // negative for what was taken in advance
}

// NewBudget returns a budget of one part in share of a processor, with most saved.
func NewBudget(share int64, most time.Duration) *Budget {
	return &Budget{share: share, most: most, saved: most, at: time.Now()}
}

// Spend notes that processor time was used, and returns how long its user has to
// rest before it uses more.
func (b *Budget) Spend(used time.Duration, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if elapsed := now.Sub(b.at); elapsed > 0 {
		b.saved = min(b.most, b.saved+elapsed/time.Duration(b.share))
		b.at = now
	}
	b.saved -= used
	return max(0, -b.saved*time.Duration(b.share))
}
