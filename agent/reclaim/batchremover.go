package reclaim

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
)

// removal is one object to remove from the node.
type removal struct {
	key  string // of the call, e.g. "remove image sha256:…"
	name string // in reports
	// bytes is the size that the runtime reports; 0 if unknown.
	bytes int64
	// empty reports that the removal frees almost nothing. evicted reports that the
	// object belongs to a pod that evictd evicted and is removed regardless of the
	// available space; usage is then the known usage of the pod.
	empty, evicted bool
	usage          int64
	do             func(context.Context) error
}

// maxParallel limits the removals in flight, without those that hang.
const maxParallel = 8

// batchRemover removes a list in batches until a signal has reached its target or
// the context ends. After each batch it waits for the freed space, so that it does
// not remove much more than needed.
type batchRemover struct {
	r      *Reclaimer
	report *evict.ReclaimReport
	target int64
	before int64 // available amount at the start
	// minRatio is the assumed minimum amount that one unit of a removal's weight
	// frees.
	minRatio float64

	results chan result
	// inFlight is the start of each call without a result, by key; hung are those that
	// have passed callTimeout. evictedInFlight counts the calls for evicted pods in
	// both.
	inFlight        map[string]time.Time
	hung            map[string]bool
	evictedInFlight int
	removedKeys     map[string]bool // by key

	size        int     // of the last batch
	weight      float64 // sum over the removed objects
	lastRemoved time.Time
	usage       int64 // of the evicted pods that were removed
	// incomplete reports that a part of the list was not tried, or that a removal
	// hangs.
	incomplete bool
}

type result struct {
	*removal
	err error
}

// unlimited is a target above the capacity of any filesystem: everything is
// removed.
const unlimited = 1 << 62

func (r *Reclaimer) newBatchRemover(report *evict.ReclaimReport, target int64) *batchRemover {
	before, _ := r.available(report.Signal)
	return &batchRemover{r: r, report: report, target: target, before: before, lastRemoved: report.At, inFlight: map[string]time.Time{}, hung: map[string]bool{}}
}

// run removes the list in order.
func (b *batchRemover) run(ctx context.Context, list []removal) {
	b.results, b.removedKeys = make(chan result, len(list)), map[string]bool{}
	remaining := b.removeUntilEnough(ctx, list)
	// The space of an evicted pod is what the order needs: wait for its removal,
	// even if it takes long.
	for b.evictedInFlight > 0 && ctx.Err() == nil && !b.targetReached() {
		b.receive(ctx, nil)
	}
	for i := range list {
		switch key := list[i].key; {
		case b.removedKeys[key]:
			b.report.Removed = append(b.report.Removed, list[i].name)
		case b.hung[key] || !b.inFlight[key].IsZero():
			b.report.Error = b.r.calls.markHung(key).Error()
			b.incomplete = true
		}
	}
	b.incomplete = b.incomplete || ctx.Err() != nil && len(remaining) > 0
}

// removeUntilEnough removes one batch after the other. It returns the part of the
// list that it did not start.
func (b *batchRemover) removeUntilEnough(ctx context.Context, list []removal) []removal {
	for len(list) > 0 && ctx.Err() == nil {
		n := b.nextBatch(list)
		mustSettle := false
		for i := range list[:n] {
			b.start(ctx, &list[i])
			mustSettle = mustSettle || !list[i].empty
		}
		list = list[n:]
		b.waitInFlight(ctx, 0)
		if b.target >= unlimited || len(b.removedKeys) == 0 {
			continue
		}
		if b.targetReached() {
			break
		}
		if mustSettle && b.r.settle(ctx, b.report.Signal, b.target, b.lastRemoved) {
			break
		}
	}
	return list
}

// targetReached reports whether the signal has reached the target.
func (b *batchRemover) targetReached() bool {
	available, ok := b.r.available(b.report.Signal)
	return ok && available >= b.target
}

// nextBatch returns the length of the next batch. All evicted objects at the front
// of the list are one batch, and so are all empty ones. Otherwise the first batch
// is one object, to learn how much one frees. Later batches are as many as the
// deficit needs by the average so far, at most twice the last batch.
func (b *batchRemover) nextBatch(list []removal) int {
	if n := countLeading(list, func(r *removal) bool { return r.evicted || b.target >= unlimited }); n > 0 {
		return n
	}
	if n := countLeading(list, func(r *removal) bool { return r.empty && !r.evicted }); n > 0 {
		return n
	}
	if b.weight == 0 && b.size == 0 {
		b.size = 1
		return 1
	}
	available, _ := b.r.available(b.report.Signal)
	ratio := 0.0
	if b.weight > 0 {
		ratio = float64(available-b.before) / b.weight
	}
	ratio = max(ratio, b.minRatio)
	deficit, expected, n := float64(b.target-available), 0.0, 0
	for n < len(list) && !list[n].empty {
		if covered := n > 0 && expected >= deficit; covered || b.minRatio == 0 && n >= 2*b.size {
			break
		}
		expected += b.weigh(&list[n]) * ratio
		n++
	}
	b.size = n
	return n
}

// countLeading returns the number of removals at the front of the list that match.
func countLeading(list []removal, matches func(*removal) bool) int {
	n := 0
	for n < len(list) && matches(&list[n]) {
		n++
	}
	return n
}

// weigh returns the weight of a removal: its bytes if minRatio says that they are
// comparable, else 1.
func (b *batchRemover) weigh(r *removal) float64 {
	if b.minRatio > 0 {
		return float64(r.bytes)
	}
	return 1
}

// start starts a removal once fewer than maxParallel are in flight.
func (b *batchRemover) start(ctx context.Context, r *removal) {
	b.waitInFlight(ctx, maxParallel-1)
	if ctx.Err() != nil {
		b.incomplete = true
		return
	}
	err := b.r.calls.start(r.key, r.do, func(err error) { b.results <- result{r, err} })
	if err != nil {
		b.report.Error, b.incomplete = err.Error(), true
		return
	}
	b.inFlight[r.key] = time.Now()
	if r.evicted {
		b.evictedInFlight++
	}
}

// waitInFlight receives results until at most limit calls are in flight. A call
// without a result after callTimeout counts as hung.
func (b *batchRemover) waitInFlight(ctx context.Context, limit int) {
	timer := time.NewTimer(callTimeout)
	defer timer.Stop()
	for len(b.inFlight) > limit && ctx.Err() == nil {
		first := slices.MinFunc(slices.Collect(maps.Values(b.inFlight)), time.Time.Compare)
		timer.Reset(time.Until(first.Add(callTimeout)))
		if b.receive(ctx, timer.C) {
			continue
		}
		for key, began := range b.inFlight {
			if time.Since(began) >= callTimeout {
				b.hung[key] = true
				_ = b.r.calls.markHung(key)
				delete(b.inFlight, key)
			}
		}
	}
}

// receive processes one result. It returns false if the timer fires first.
func (b *batchRemover) receive(ctx context.Context, timer <-chan time.Time) bool {
	var res result
	select {
	case res = <-b.results:
	case <-timer:
		return false
	case <-ctx.Done():
		return true
	}
	delete(b.inFlight, res.key)
	delete(b.hung, res.key)
	if res.evicted {
		b.evictedInFlight--
	}
	var logs *logsRemainError
	switch {
	case errors.As(res.err, &logs):
		b.report.Error = res.err.Error() // everything else of the pod is removed
	case errors.Is(res.err, errInUse):
		return true
	case res.err != nil:
		b.report.Error = res.err.Error()
		return true
	}
	b.removedKeys[res.key] = true
	b.usage += res.usage
	if !res.empty {
		b.lastRemoved, b.weight = time.Now(), b.weight+b.weigh(res.removal)
	}
	return true
}

// reportDryRun adds the names of the objects that would be removed: as many as the
// deficit needs by the sizes that the runtime reports, and all if sizes are
// unknown.
func (b *batchRemover) reportDryRun(list []removal) {
	deficit := float64(b.target - b.before)
	for i, promised := 0, 0.0; i < len(list) && (promised < deficit || b.minRatio == 0); i++ {
		b.report.Removed = append(b.report.Removed, list[i].name)
		promised += b.weigh(&list[i])
	}
}
