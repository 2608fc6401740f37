package loop

import (
	"maps"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pods"
)

// A node-level reclaim that freed nothing is repeated after minReclaimBackoff, doubling up
// to maxReclaimBackoff: each one lists the runtime's containers, sandboxes and images.
const minReclaimBackoff, maxReclaimBackoff = 2 * time.Second, time.Minute

// reclaimBackoff is the back-off of the thresholds whose node-level reclaims freed nothing.
// Its zero value has none.
type reclaimBackoff struct {
	current *evict.ThresholdKey // the threshold of the reclaims in flight; nil for none
	freed   bool                // one of them has freed something
	waits   []thresholdBackoff
}

// thresholdBackoff is until when the reclaims for a threshold are not repeated.
type thresholdBackoff struct {
	threshold evict.ThresholdKey
	until     time.Time
	delay     time.Duration
}

// ordered records the start of a reclaim for a threshold.
func (r *reclaimBackoff) ordered(threshold evict.ThresholdKey) {
	if r.current == nil || *r.current != threshold {
		r.current, r.freed = &threshold, false
	}
}

// reported records the result of a reclaim. In dry run nothing is freed.
func (r *reclaimBackoff) reported(report *evict.ReclaimReport) {
	r.freed = r.freed || !report.DryRun && (len(report.Removed) > 0 || report.Freed > 0)
}

// ended records that the reclaims for a threshold, of containers and of images, are done,
// and starts or ends its back-off.
func (r *reclaimBackoff) ended(now time.Time) {
	if r.current == nil {
		return
	}
	i := slices.IndexFunc(r.waits, func(w thresholdBackoff) bool { return w.threshold == *r.current })
	switch {
	case r.freed && i >= 0:
		r.waits = slices.Delete(r.waits, i, i+1)
	case r.freed:
	case i < 0:
		r.waits = append(r.waits, thresholdBackoff{*r.current, now.Add(minReclaimBackoff), minReclaimBackoff})
	default:
		w := &r.waits[i]
		w.delay = min(2*w.delay, maxReclaimBackoff)
		w.until = now.Add(w.delay)
	}
	r.current = nil
}

// reset ends all back-offs: the runtime may have something to remove now.
func (r *reclaimBackoff) reset() { r.waits = nil }

// update ends the back-offs of thresholds that are not met any more, and all of them if
// other containers run than at the last step: one that has ended can be removed.
func (r *reclaimBackoff) update(before map[string]pods.Handle, v *View) {
	r.waits = slices.DeleteFunc(r.waits, func(w thresholdBackoff) bool { return !slices.Contains(v.Orders.Met, w.threshold.Signal) })
	same := func(a, b pods.Handle) bool { return sameContainers(a.Containers, b.Containers) }
	if len(r.waits) > 0 && !maps.EqualFunc(before, v.Snapshot.Handles, same) {
		r.reset()
	}
}

// deferred returns the thresholds whose back-off has not ended.
func (r *reclaimBackoff) deferred(now time.Time) (thresholds []evict.ThresholdKey) {
	for _, w := range r.waits {
		if now.Before(w.until) {
			thresholds = append(thresholds, w.threshold)
		}
	}
	return thresholds
}
