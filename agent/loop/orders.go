package loop

import (
	"context"
	"slices"
	"strings"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/signal"
)

// Outsiders is how many cgroups outside the pods are named where evicting pods
// is futile.
const Outsiders = 5

// act hands the orders to the actuator, what is urgent first.
func (l *Loop) act(ctx context.Context, v *View) {
	guard := l.inventory.Guard()
	rest := l.strike(ctx, v, guard)
	l.harden(ctx, v)
	l.takeUp(ctx, v)
	slices.SortStableFunc(rest, func(a, b evict.Order) int {
		switch {
		case a.Hard == b.Hard:
			return 0
		case a.Hard:
			return -1
		}
		return 1
	})
	for _, order := range rest {
		l.discard(v, &order)
		rec := l.record(v, &order)
		l.logOrder(&rec)
		l.execute.Evict(ctx, rec, Job(order, &v.Snapshot, guard))
	}
	for _, order := range v.Orders.Evict {
		switch s, known := signal.Parse(order.Cause); {
		case !order.Futile:
		case known && s.IsDisk():
			outside := l.largest(s)
			l.records.EachFutile(func(rec *evict.Record) {
				if rec.UID == order.UID && rec.OutsideDirectories == nil {
					rec.OutsideDirectories = outside
				}
			})
			l.log.Error("evicting pods can't relieve the signal", "signal", order.Cause, "deficit", order.Deficit,
				"largest_outside", outside)
		case known && !s.IsMemory():
			l.log.Error("evicting pods can't relieve the signal", "signal", order.Cause, "deficit", order.Deficit)
		default:
			// Who else holds the memory takes a walk of the tree to find: after
			// every kill.
			outside := l.inventory.Outside(Outsiders)
			l.records.Outside(order.UID, outside)
			l.log.Error("evicting pods can't relieve the signal", "signal", order.Cause,
				"deficit", order.Deficit, "largest_outside", outside)
		}
	}
	l.revived(v)
	l.reclaim(v)
}

// logOrder logs an order. The loop calls it before the order is carried out, so
// that the end of an eviction is not logged before its beginning; the hot path has
// made its kills by then.
func (l *Loop) logOrder(rec *evict.Record) {
	l.log.Warn(execute.InDryRun(rec.DryRun, "evicting pod", "would evict pod"), "pod", rec.Pod, "uid", rec.UID, "signal", rec.Cause, "hard", rec.Hard,
		"available", rec.Available, "threshold", rec.Threshold, "deficit", rec.Deficit, "expected", rec.Expected,
		"lane", rec.Lane, "futile", rec.Futile, "dry_run", rec.DryRun, "message", strings.TrimSpace(rec.Message))
}

// harden ends graces. A pod of an earlier run is killed when it is taken up.
func (l *Loop) harden(ctx context.Context, v *View) {
	if len(v.Orders.Harden) == 0 {
		return
	}
	guard := l.inventory.Guard()
	for _, uid := range v.Orders.Harden {
		if _, listed := v.Snapshot.Handles[uid]; listed && !l.unfinished[uid] {
			l.execute.Harden(ctx, Job(evict.Order{UID: uid, Hard: true}, &v.Snapshot, guard), v.Mode.DryRun)
		}
		l.log.Warn("grace period cut short, a hard threshold is met", "uid", uid)
	}
}

// takeUp goes on with evictions that an earlier run began and did not see end,
// as soon as their pods are listed: what is left of a grace, or another kill.
func (l *Loop) takeUp(ctx context.Context, v *View) {
	if v.Mode.DryRun || v.Snapshot.Listed.IsZero() || len(l.unfinished) == 0 {
		return
	}
	guard := l.inventory.Guard()
	for _, victim := range v.State.Victims {
		if _, listed := v.Snapshot.Handles[victim.UID]; !listed || !l.unfinished[victim.UID] {
			continue
		}
		order := evict.Order{UID: victim.UID, Pod: victim.Pod, Cause: victim.Cause, Hard: !victim.Soft, Grace: max(0, victim.Due.Sub(v.Time))}
		l.log.Warn("going on with an eviction of an earlier run", "pod", victim.Pod, "hard", order.Hard, "grace", order.Grace.String())
		l.execute.Resume(ctx, Job(order, &v.Snapshot, guard), false)
	}
	// What is not listed by the first complete list has gone.
	l.unfinished = nil
}

// Job names to an actuator the parts of the pod of an order.
func Job(o evict.Order, s *pods.Snapshot, guard *evict.Guard) act.Job {
	h := s.Handles[o.UID]
	return act.Job{Order: o, SandboxID: h.SandboxID, Owned: h.Owned, Containers: h.Containers, Guard: guard}
}
