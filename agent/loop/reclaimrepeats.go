package loop

import (
	"maps"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pods"
)

// The waits before node-level reclaims that brought nothing are repeated, doubling. Each
// asks the runtime for its containers, sandboxes and images.
const firstReclaimWait, longestReclaimWait = 2 * time.Second, time.Minute

// reclaimRepeats knows which thresholds' node-level reclaims brought nothing. The zero
// value knows none.
type reclaimRepeats struct {
	current *evict.Key // of the reclaims under way; nil for none
	brought bool       // by one of them
	waits   []reclaimWait
}

// reclaimWait is until when the reclaims for a threshold are not repeated.
type reclaimWait struct {
	threshold evict.Key
	until     time.Time
	delay     time.Duration
}

// ordered notes a reclaim for a threshold.
func (r *reclaimRepeats) ordered(threshold evict.Key) {
	if r.current == nil || *r.current != threshold {
		r.current, r.brought = &threshold, false
	}
}

// reported notes what a reclaim did. In dry run nothing comes back.
func (r *reclaimRepeats) reported(report *evict.ReclaimReport) {
	r.brought = r.brought || !report.DryRun && (len(report.Removed) > 0 || report.Freed > 0)
}

// ended notes that the reclaims for a threshold, of containers and of images, are done.
func (r *reclaimRepeats) ended(now time.Time) {
	if r.current == nil {
		return
	}
	i := slices.IndexFunc(r.waits, func(w reclaimWait) bool { return w.threshold == *r.current })
	switch {
	case r.brought && i >= 0:
		r.waits = slices.Delete(r.waits, i, i+1)
	case r.brought:
	case i < 0:
		r.waits = append(r.waits, reclaimWait{*r.current, now.Add(firstReclaimWait), firstReclaimWait})
	default:
		w := &r.waits[i]
		w.delay = min(2*w.delay, longestReclaimWait)
		w.until = now.Add(w.delay)
	}
	r.current = nil
}

// reset forgets what brought nothing: something else may be removable now.
func (r *reclaimRepeats) reset() { r.waits = nil }

// follow forgets thresholds that are met no more, and all where other containers run than
// in the step before: one that has ended leaves something to remove.
func (r *reclaimRepeats) follow(before map[string]pods.Handle, v *View) {
	r.waits = slices.DeleteFunc(r.waits, func(w reclaimWait) bool { return !slices.Contains(v.Orders.Met, w.threshold.Signal) })
	same := func(a, b pods.Handle) bool { return sameContainers(a.Containers, b.Containers) }
	if len(r.waits) > 0 && !maps.EqualFunc(before, v.Snapshot.Handles, same) {
		r.reset()
	}
}

// inVain lists the thresholds whose reclaims are not repeated yet.
func (r *reclaimRepeats) inVain(now time.Time) (thresholds []evict.Key) {
	for _, w := range r.waits {
		if now.Before(w.until) {
			thresholds = append(thresholds, w.threshold)
		}
	}
	return thresholds
}
