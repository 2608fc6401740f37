package reclaim

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
)

// removal is something that may be removed from the node.
type removal struct {
	key  string // the call, as in "remove image sha256:…"
	name string // in reports
	// bytes is what the runtime says that it takes up; 0 is not known.
	bytes int64
	// empty tells that removing it gives back next to nothing, evicted that it is
	// removed whatever the filesystem has left, with what it is known to hold.
	empty, evicted bool
	held           int64
	do             func(context.Context) error
}

// parallel is how many removals are under way at one time, those that hang apart.
const parallel = 8

// batches removes a list, batch by batch, until a signal has come up to its target
// or the context ends. Between two batches it waits for what the first one has
// brought, so that not much more goes than is needed.
type batches struct {
	r      *Reclaimer
	report *evict.ReclaimReport
	target int64
	before int64 // what the signal had left when it began
	// minRatio is what a unit of a removal's weight brings at least, by assumption.
	minRatio float64

	answers chan answer
	// fresh and slow are the calls without an answer, by key: those of the last
	// callPatience, and those that hang. urgent counts those for evicted pods.
	fresh  map[string]time.Time // and when they began
	slow   map[string]bool
	urgent int
	gone   map[string]bool // removed, by key

	size    int     // of the last batch
	weight  float64 // of what was removed
	removed time.Time
	held    int64 // by the evicted pods that were removed
	// left tells that not all of the list was tried, or that some of it hangs.
	left bool
}

type answer struct {
	*removal
	err error
}

// everything is more than any filesystem has.
const everything = 1 << 62

func (r *Reclaimer) batches(report *evict.ReclaimReport, target int64) *batches {
	before, _ := r.left(report.Signal)
	return &batches{r: r, report: report, target: target, before: before, removed: report.At, fresh: map[string]time.Time{}, slow: map[string]bool{}}
}

// run removes a list in its order.
func (b *batches) run(ctx context.Context, list []removal) {
	b.answers, b.gone = make(chan answer, len(list)), map[string]bool{}
	rest := b.removeUntilEnough(ctx, list)
	// An evicted pod's disk space is what the order is for: its removal may take long.
	for b.urgent > 0 && ctx.Err() == nil && !b.reached() {
		b.take(ctx, nil)
	}
	for i := range list {
		switch key := list[i].key; {
		case b.gone[key]:
			b.report.Removed = append(b.report.Removed, list[i].name)
		case b.slow[key] || !b.fresh[key].IsZero():
			b.report.Error = b.r.calls.hung(key).Error()
			b.left = true
		}
	}
	b.left = b.left || ctx.Err() != nil && len(rest) > 0
}

// removeUntilEnough removes one batch after the other. It returns what of the list
// it has not come to.
func (b *batches) removeUntilEnough(ctx context.Context, list []removal) []removal {
	for len(list) > 0 && ctx.Err() == nil {
		n := b.next(list)
		waits := false
		for i := range list[:n] {
			b.begin(ctx, &list[i])
			waits = waits || !list[i].empty
		}
		list = list[n:]
		b.collectUntil(ctx, 0)
		if b.target >= everything || len(b.gone) == 0 {
			continue
		}
		if b.reached() {
			break
		}
		if waits && b.r.settle(ctx, b.report.Signal, b.target, b.removed) {
			break
		}
	}
	return list
}

// reached reports whether the signal has come up to the target.
func (b *batches) reached() bool {
	left, ok := b.r.left(b.report.Signal)
	return ok && left >= b.target
}

// next returns how many of the list go together: all that were evicted, or all that
// are empty; else one, to learn what one brings, and then as many as are needed by
// what those before brought, at most twice as many as the last time.
func (b *batches) next(list []removal) int {
	n := 0
	for n < len(list) && (list[n].evicted || b.target >= everything) {
		n++
	}
	if n > 0 {
		return n
	}
	for n < len(list) && list[n].empty && !list[n].evicted {
		n++
	}
	if n > 0 {
		return n
	}
	if b.weight == 0 && b.size == 0 {
		b.size = 1
		return 1
	}
	left, _ := b.r.left(b.report.Signal)
	ratio := 0.0
	if b.weight > 0 {
		ratio = float64(left-b.before) / b.weight
	}
	ratio = max(ratio, b.minRatio)
	lacks, brings := float64(b.target-left), 0.0
	for n < len(list) && !list[n].empty && (n == 0 || brings < lacks) && (b.minRatio > 0 || n < 2*b.size) {
		brings += b.weigh(&list[n]) * ratio
		n++
	}
	b.size = n
	return n
}

// weigh returns what the removals of a list are compared by: bytes where minRatio
// says that they are known, else their number.
func (b *batches) weigh(r *removal) float64 {
	if b.minRatio > 0 {
		return float64(r.bytes)
	}
	return 1
}

// begin makes the call, once there are not too many.
func (b *batches) begin(ctx context.Context, r *removal) {
	b.collectUntil(ctx, parallel-1)
	if ctx.Err() != nil {
		b.left = true
		return
	}
	err := b.r.calls.begin(r.key, r.do, func(err error) { b.answers <- answer{r, err} })
	if err != nil {
		b.report.Error, b.left = err.Error(), true
		return
	}
	b.fresh[r.key] = time.Now()
	if r.evicted {
		b.urgent++
	}
}

// collectUntil waits until at most so many calls are without an answer and do not
// hang.
func (b *batches) collectUntil(ctx context.Context, fresh int) {
	timer := time.NewTimer(callPatience)
	defer timer.Stop()
	for len(b.fresh) > fresh && ctx.Err() == nil {
		first := slices.MinFunc(slices.Collect(maps.Values(b.fresh)), time.Time.Compare)
		timer.Reset(time.Until(first.Add(callPatience)))
		if b.take(ctx, timer.C) {
			continue
		}
		for key, began := range b.fresh {
			if time.Since(began) >= callPatience {
				b.slow[key] = true
				_ = b.r.calls.hung(key)
				delete(b.fresh, key)
			}
		}
	}
}

// take takes one answer. It returns false where none came before the timer.
func (b *batches) take(ctx context.Context, timer <-chan time.Time) bool {
	var a answer
	select {
	case a = <-b.answers:
	case <-timer:
		return false
	case <-ctx.Done():
		return true
	}
	delete(b.fresh, a.key)
	delete(b.slow, a.key)
	if a.evicted {
		b.urgent--
	}
	var logs *logsLeftError
	switch {
	case errors.As(a.err, &logs):
		b.report.Error = a.err.Error() // the rest of the pod is gone
	case errors.Is(a.err, errUsed):
		return true
	case a.err != nil:
		b.report.Error = a.err.Error()
		return true
	}
	b.gone[a.key] = true
	b.held += a.held
	if !a.empty {
		b.removed, b.weight = time.Now(), b.weight+b.weigh(a.removal)
	}
	return true
}

// wouldRemove returns the names of what would go in a dry run: by the runtime's
// sizes as many as are needed, and where those are not known, all.
func (b *batches) wouldRemove(list []removal) {
	lacks := float64(b.target - b.before)
	for i, promised := 0, 0.0; i < len(list) && (promised < lacks || b.minRatio == 0); i++ {
		b.report.Removed = append(b.report.Removed, list[i].name)
		promised += b.weigh(&list[i])
	}
}
