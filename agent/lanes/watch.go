package lanes

import (
	"fmt"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Seen takes in what polling read, or who decides: what the other lanes are held
// against. Where a lane has to raise for it, or may have to, the watch wakes up.
func (s *Set) Seen(now time.Time, o *signal.Observations) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen, s.seenAt = *o, now
	look := s.calm && near(s.thresholds, o)
	for i := range s.thresholds {
		t := &s.thresholds[i]
		m, r := signal.MarkOf(t), &o[t.Signal]
		amount := t.Value.Amount(r.Capacity)
		low := r.Below(amount)
		for _, e := range s.entries {
			if !e.covered[m] {
				continue
			}
			// Its own figures tell of what its slack is too wide for.
			look = look || low && !e.low[m]
			e.low[m] = low
			if e.expected[m].see(now, r, amount-e.slack[m], amount+e.slack[m]) {
				look = true
			}
		}
	}
	if look {
		s.poke()
	}
}

// learn asks a lane what it covers.
func (s *Set) learn(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := 1; m < signal.Marks; m++ {
		slack, ok := e.covers(signal.Mark(m))
		if !ok {
			e.expected[m], e.low[m] = expectation{}, false
		}
		e.covered[m], e.slack[m] = ok, slack
	}
}

// witness holds a lane against its own figures, which its slack does not blur.
func (s *Set) witness(e *entry, now time.Time) {
	l, ok := e.lane.(witness)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := 1; m < signal.Marks; m++ {
		o := signal.Observation{}
		available, below, above, ok := l.figure(signal.Mark(m))
		if ok {
			o.Status, o.Available = signal.Observed, available
		}
		e.own[m].see(now, &o, below, above)
	}
}

// judge degrades lanes that have missed an alarm, and returns when the next may
// have.
func (s *Set) judge(now time.Time) time.Duration {
	wait := calmTurn
	for _, e := range s.entries {
		if e.state != Up {
			continue
		}
		if m, who, next := s.missedBy(e, now); m != 0 {
			e.missed++
			s.fail(e, now, fmt.Errorf("%s saw the %v crossed, and this lane did not raise", who, m))
			wait = min(wait, e.retry.Sub(now))
		} else if !next.IsZero() {
			wait = min(wait, next.Sub(now))
		}
	}
	return wait
}

// missedBy returns the first mark whose alarm a lane has missed, and by whom that
// was seen; or when to ask again.
func (s *Set) missedBy(e *entry, now time.Time) (first signal.Mark, who string, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := range signal.Marks {
		var heard time.Time
		if at := e.heard[m].Load(); at != 0 {
			heard = s.start.Add(time.Duration(at))
		}
		for _, x := range []struct {
			who string
			*expectation
		}{{"polling", &e.expected[m]}, {"its own sample", &e.own[m]}} {
			missed, again := x.judge(now, heard)
			if missed && first == 0 {
				first, who = signal.Mark(m), x.who
			}
			if !again.IsZero() && (next.IsZero() || again.Before(next)) {
				next = again
			}
		}
	}
	return first, who, next
}

// covered reports whether each mark on memory has a lane that samples: one that
// is only notified may have armed an older state of the file cache.
func (s *Set) covered(w *watched) bool {
	for _, l := range w.levels() {
		seen := slices.ContainsFunc(s.entries, func(e *entry) bool {
			if e.state != Up || e.period() == 0 {
				return false
			}
			_, ok := e.covers(l.mark)
			return ok
		})
		if !seen {
			return false
		}
	}
	return true
}
