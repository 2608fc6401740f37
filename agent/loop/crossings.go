package loop

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/signal"
)

// crossingTime is when a signal was last read above, and first read below, its hard
// threshold.
type crossingTime struct{ lastAbove, seen time.Time }

// trackCrossings updates the crossing times of the hard thresholds, and in the records how
// far the signals fell below them.
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
				if l.alarm.LastAbove.After(c.lastAbove) {
					c.lastAbove = l.alarm.LastAbove
				}
				if a := l.alarm; a.Seen.After(c.lastAbove) && a.Seen.Before(v.Time) {
					c.seen = a.Seen
				}
				l.episode[t.Signal] = v.Time
			}
			l.records.UpdateOvershoot(t.Signal.String(), l.episode[t.Signal], o.Available)
		}
	}
}

// record returns the new record of an order.
func (l *Loop) record(v *View, o *evict.Order) evict.Record {
	rec := evict.Record{
		Pod: o.Pod, UID: o.UID, Cause: o.Cause, Hard: o.Hard, DryRun: v.Mode.DryRun,
		Reason: o.Reason, Message: o.Message, Annotations: o.Annotations, DisruptionTarget: !endsByItself(v, o.UID),
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
		if l.alarm.Lane != "" && !l.alarm.Seen.Before(rec.LastAbove) {
			rec.Lane = l.alarm.Lane
		}
	}
	if slices.ContainsFunc(l.contention(), func(c evict.Contention) bool { return string(c.Condition) == o.Cause }) {
		rec.Lane, rec.Confirm = lanes.PSI, "growth of the stalls in each window"
	}
	return rec
}

// softSince returns since when a signal's soft threshold is met; zero if it is not.
func (l *Loop) softSince(s signal.Signal) (since time.Time) {
	for _, t := range l.state.Timers {
		if t.Threshold.Signal == s && t.Threshold.Soft {
			since = t.Since
		}
	}
	return since
}

// answered returns the hard memory thresholds whose crossing was answered by a lane since
// the last call.
func (l *Loop) answered() (keys []evict.ThresholdKey) {
	for m := range signal.ThresholdIDCount {
		if !l.arbiter.TakeActNow(signal.ThresholdID(m)) {
			continue // thresholds that were removed since are taken, too
		}
		for _, t := range l.policy.Thresholds {
			if signal.IDOf(&t.Threshold) == signal.ThresholdID(m) {
				keys = append(keys, t.Key())
			}
		}
	}
	return keys
}

// contention returns the memory contention that the lanes see.
func (l *Loop) contention() (list []evict.Contention) {
	for _, s := range l.lanes.Stalls() {
		list = append(list, evict.Contention{Condition: s.Condition, Since: s.Since})
	}
	return list
}
