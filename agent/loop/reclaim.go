package loop

import (
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/reclaim"
	"github.com/evictd/evictd/agent/signal"
)

// reclaimed takes the report of a node-level reclaim. The next step has new disk usage and
// goes on with the threshold.
func (l *Loop) reclaimed(report *evict.ReclaimReport) {
	l.reclaiming = false
	l.reclaimBackoff.reported(report)
	l.usage.read = time.Time{}
	l.outcomes = append(l.outcomes, evict.Outcome{})
}

// reclaim starts the node-level reclaim that the step orders. If the state waits for one
// that is not in flight, of an earlier run, it counts as done.
func (l *Loop) reclaim(v *View) {
	switch {
	case v.Orders.Reclaim != nil && !l.reclaiming:
		l.reclaiming = true
		l.reclaimBackoff.ordered(v.State.Reclaim.Threshold)
		l.reclaimer.Start(*v.Orders.Reclaim)
	case v.State.Reclaim != nil && !l.reclaiming:
		l.outcomes = append(l.outcomes, evict.Outcome{})
	case !l.reclaiming:
		l.reclaimBackoff.ended(v.Time)
	}
}

// expectDiskSpace reports to the reclaimer a pod that is killed for its disk usage, which
// the runtime frees when it removes the pod. The reclaimer waits for that.
func (l *Loop) expectDiskSpace(v *View, o *evict.Order) {
	s, known := signal.Parse(o.Cause)
	if h := v.Snapshot.Handles[o.UID]; o.Hard && !(known && !s.IsDisk()) && h.Owned && !v.Mode.DryRun {
		l.reclaimer.Evicted(h.SandboxID, reclaim.EvictedUsage{Amount: o.Expected, Inodes: known && s.IsInodes()})
	}
}

// revived reports to the reclaimer the evicted pods that the kubelet has restarted.
func (l *Loop) revived(v *View) {
	for _, uid := range v.Orders.Revived {
		l.reclaimer.Revived(uid)
	}
}

// evictionEnded reports to the reclaimer how an eviction ended. The pod's record says whether it
// was a dry run: the mode may have changed since. A dry run reports no pod as gone.
func (l *Loop) evictionEnded(uid string, stage act.Stage) {
	l.reclaimBackoff.reset()
	h, listed := l.handles[uid]
	if !listed {
		return
	}
	rec, recorded := l.records.Last(uid)
	switch {
	case stage == act.LastGone && h.Owned:
		l.reclaimer.Evicted(h.SandboxID, reclaim.EvictedUsage{})
	case stage == act.LastGone && recorded:
		// A pod that was evicted for a limit of its own has nothing to do with a
		// filesystem that is low.
		if s, isSignal := signal.Parse(rec.Cause); isSignal && s.IsDisk() {
			l.reclaimer.EvictedFromKubelet(uid, reclaim.EvictedUsage{Amount: rec.Expected, Inodes: s.IsInodes()})
		}
	case stage == act.Refused && h.Owned && !rec.DryRun:
		l.reclaimer.NotEvicted(h.SandboxID)
	}
}
