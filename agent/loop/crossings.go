package loop

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/signal"
)

// crossingTime is when a signal was last seen above, and first below, its hard
// threshold.
type crossingTime struct{ lastAbove, seen time.Time }

// trackCrossings keeps when each signal was seen above its hard threshold last
// and below it first, and how far below it fell.
func (l *Loop) trackCrossings(v *View) {
	for _, t := range v.Policy.Thresholds {
		if !t.Hard() {
			continue
		}
		o := &v.Observations[t.Signal]
		c := &l.crossing[t.Signal]
		switch {
		case o.Status != signal.Observed:
		case !o.Below(t.Value.Amount(o.Capacity)):
			*c = crossingTime{lastAbove: v.Time}
			l.episode[t.Signal] = time.Time{}
		default:
			if c.seen.IsZero() {
				c.seen = v.Time
				if l.raise.LastAbove.After(c.lastAbove) {
					c.lastAbove = l.raise.LastAbove
				}
				if r := l.raise; r.Seen.After(c.lastAbove) && r.Seen.Before(v.Time) {
					c.seen = r.Seen
				}
				l.episode[t.Signal] = v.Time
			}
			l.records.Overshoot(t.Signal.String(), l.episode[t.Signal], o.Available)
		}
	}
}

// record begins the record of an order.
func (l *Loop) record(v *View, o *evict.Order) evict.Record {
	rec := evict.Record{
		Pod: o.Pod, UID: o.UID, Cause: o.Cause, Hard: o.Hard, DryRun: v.Mode.DryRun,
		Reason: o.Reason, Message: o.Message, Annotations: o.Annotations, DisruptionTarget: true,
		Lane: "step", Confirm: "fresh reading", Decided: v.Time, RankingAge: v.Time.Sub(v.Snapshot.Taken),
		Available: o.Available, Threshold: o.Threshold, Deficit: o.Deficit, Expected: o.Expected,
		Overshoot: max(0, o.Threshold-o.Available), Futile: o.Futile, Result: evict.ResultPending,
		Candidates: slices.Clone(v.Orders.Ranking[:min(10, len(v.Orders.Ranking))]),
	}
	if s, ok := signal.Parse(o.Cause); ok {
		rec.LastAbove, rec.CrossingSeen = l.crossing[s].lastAbove, l.crossing[s].seen
		if !o.Hard {
			rec.LastAbove, rec.CrossingSeen = time.Time{}, l.softSince(s)
		}
		if l.raise.Lane != "" && !l.raise.Seen.Before(rec.LastAbove) {
			rec.Lane = l.raise.Lane
		}
	}
	if slices.ContainsFunc(l.contention(), func(c evict.Contention) bool { return string(c.Condition) == o.Cause }) {
		rec.Lane, rec.Confirm = lanes.PSI, "growth of the stalls in each window"
	}
	return rec
}

// softSince returns when a signal's soft threshold was first seen to be met.
func (l *Loop) softSince(s signal.Signal) (since time.Time) {
	for _, t := range l.state.Timers {
		if t.Threshold.Signal == s && t.Threshold.Soft {
			since = t.Since
		}
	}
	return since
}

// answered lists the hard memory thresholds whose crossing a lane has answered since
// the last call.
func (l *Loop) answered() (keys []evict.Key) {
	for m := range signal.Marks {
		if !l.desk.TakeAnswered(signal.Mark(m)) {
			continue // also of thresholds that are no more
		}
		for _, t := range l.policy.Thresholds {
			if signal.MarkOf(&t.Threshold) == signal.Mark(m) {
				keys = append(keys, t.Key())
			}
		}
	}
	return keys
}

// contention lists where tasks stall on memory.
func (l *Loop) contention() (list []evict.Contention) {
	for _, s := range l.lanes.Stalls() {
		list = append(list, evict.Contention{Condition: s.Condition, Since: s.Since})
	}
	return list
}
