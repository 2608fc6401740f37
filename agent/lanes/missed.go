package lanes

import (
	"fmt"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Observe records a reading of polling or of the decision loop, against which alarms are
// checked. It wakes the Set up if the reading makes an alarm due.
func (s *Set) Observe(now time.Time, o *signal.Observations) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastPoll, s.lastPollAt = *o, now
	wake := s.idle && nearThreshold(s.thresholds, o)
	for i := range s.thresholds {
		t := &s.thresholds[i]
		id, r := signal.IDOf(t), &o[t.Signal]
		amount := t.Value.Amount(r.Capacity)
		low := r.Below(amount)
		for _, e := range s.entries {
			if !e.covered[id] {
				continue
			}
			// Within the tolerance, the lane's own samples decide.
			wake = wake || low && !e.low[id]
			e.low[id] = low
			if e.byPoll[id].observe(now, r, amount-e.tolerance[id], amount+e.tolerance[id]) {
				wake = true
			}
		}
	}
	if wake {
		s.notify()
	}
}

// updateCoverage records which thresholds a lane covers.
func (s *Set) updateCoverage(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := 1; id < signal.ThresholdIDCount; id++ {
		tolerance, ok := e.covers(signal.ThresholdID(id))
		if !ok {
			e.byPoll[id], e.low[id] = expectation{}, false
		}
		e.covered[id], e.tolerance[id] = ok, tolerance
	}
}

// selfCheck checks the alarms of a lane against its own samples, which need no tolerance.
func (s *Set) selfCheck(e *entry, now time.Time) {
	l, ok := e.lane.(selfChecker)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := 1; id < signal.ThresholdIDCount; id++ {
		o := signal.Observation{}
		available, below, above, ok := l.lastSample(signal.ThresholdID(id))
		if ok {
			o.Status, o.Available = signal.Observed, available
		}
		e.bySample[id].observe(now, &o, below, above)
	}
}

// failMissed degrades lanes that have missed an alarm, and returns when the next check is
// due.
func (s *Set) failMissed(now time.Time) time.Duration {
	wait := idleInterval
	for _, e := range s.entries {
		if e.state != Up {
			continue
		}
		if id, seenBy, next := s.missedAlarm(e, now); id != 0 {
			e.missed++
			s.fail(e, now, fmt.Errorf("missed an alarm: %s saw the %v crossed", seenBy, id))
			wait = min(wait, e.retryAt.Sub(now))
		} else if !next.IsZero() {
			wait = min(wait, next.Sub(now))
		}
	}
	return wait
}

// missedAlarm returns the first threshold whose alarm a lane has missed, and what saw the
// crossing; or when to check again.
func (s *Set) missedAlarm(e *entry, now time.Time) (first signal.ThresholdID, seenBy string, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range signal.ThresholdIDCount {
		var alarm time.Time
		if at := e.alarmAt[id].Load(); at != 0 {
			alarm = s.start.Add(time.Duration(at))
		}
		for _, x := range []struct {
			by string
			*expectation
		}{{"polling", &e.byPoll[id]}, {"its own sample", &e.bySample[id]}} {
			missed, retry := x.missed(now, alarm)
			if missed && first == 0 {
				first, seenBy = signal.ThresholdID(id), x.by
			}
			if !retry.IsZero() && (next.IsZero() || retry.Before(next)) {
				next = retry
			}
		}
	}
	return first, seenBy, next
}

// allSampled reports whether each memory threshold is covered by a lane that samples. A
// lane that is only notified may have armed an outdated file cache.
func (s *Set) allSampled(in *laneInput) bool {
	for _, th := range in.memoryThresholds() {
		sampled := slices.ContainsFunc(s.entries, func(e *entry) bool {
			if e.state != Up || e.period() == 0 {
				return false
			}
			_, ok := e.covers(th.id)
			return ok
		})
		if !sampled {
			return false
		}
	}
	return true
}
