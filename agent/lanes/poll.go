package lanes

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/pace"
	"github.com/evictd/evictd/agent/signal"
)

// The bounds of the polling period.
const (
	shortest = 10 * time.Millisecond
	longest  = time.Second
	// unseen is the longest while a signal can't be read.
	unseen = 100 * time.Millisecond
	// attended is the shortest while other lanes see to the marks, and polling
	// only watches over them.
	attended = 100 * time.Millisecond
)

// The rate, in bytes a second, at which memory may fill: the first guess for
// each core, and the least that is ever assumed.
const (
	fillPerCore = 3 << 30
	slowestFill = 1 << 30
)

// Poll is the lane that reads memory again and again, with a period that
// follows the headroom: what is left above the nearest mark over twice the
// fastest fill seen, from 10 ms to 1 s, or from 100 ms where other lanes see to
// the marks.
type Poll struct {
	read  func(now time.Time, into *signal.Observations)
	marks atomic.Pointer[[]signal.Threshold]
	cores int
	drift int64

	relaxed atomic.Bool
	raised  atomic.Uint64
	period  atomic.Int64 // the one in force, ns
	beat    atomic.Int64 // the last reading, ns since the epoch
}

// NewPoll returns a lane that takes its readings with read, on a machine with
// that many cores, whose per-CPU counters may hold back drift bytes (HostDrift). read
// is called from Run's goroutine only.
func NewPoll(read func(time.Time, *signal.Observations), cores int, drift int64) *Poll {
	p := &Poll{read: read, cores: cores, drift: drift}
	p.period.Store(int64(shortest))
	return p
}

// Name returns the lane's name, as records and metrics show it.
func (p *Poll) Name() string { return Polling }

// Relax tells whether other lanes see to all marks, so that polling may be
// slower. It may be called at any time.
func (p *Poll) Relax(yes bool) { p.relaxed.Store(yes) }

// Arm sets the thresholds to watch. It may be called at any time.
func (p *Poll) Arm(thresholds []signal.Threshold) { p.marks.Store(&thresholds) }

// Period returns the polling period in force.
func (p *Poll) Period() time.Duration { return time.Duration(p.period.Load()) }

// Beat returns when the lane took its last reading; zero before the first.
func (p *Poll) Beat() time.Time {
	if ns := p.beat.Load(); ns != 0 {
		return time.Unix(0, ns)
	}
	return time.Time{}
}

// lateness is how long beyond its period a reading may be due.
const lateness = 2 * time.Second

// Status tells how polling stands.
func (p *Poll) Status(now time.Time) Status {
	s := Status{Name: Polling, State: Up, Period: p.Period(), Raised: p.raised.Load()}
	beat := p.Beat()
	switch silent := now.Sub(beat); {
	case beat.IsZero():
		s.State, s.Why = Degraded, "has not read yet"
	case silent > s.Period+lateness:
		s.State, s.Why = Degraded, fmt.Sprintf("has been silent for %v", silent.Round(time.Millisecond))
	}
	return s
}

// Run reads until ctx ends, and sends a Raise whenever a mark is crossed that
// was not crossed in the reading before. It never waits for the receiver: an
// alarm that is still waiting to be heard stands for those after it.
func (p *Poll) Run(ctx context.Context, alarm chan<- Raise) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	w := watch{rate: float64(max(1, p.cores)) * fillPerCore, drift: p.drift}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		now := time.Now()
		var marks []signal.Threshold
		if m := p.marks.Load(); m != nil {
			marks = *m
		}
		var o signal.Observations
		p.read(now, &o)
		p.beat.Store(now.UnixNano())
		if raised, answered := w.see(now, &o, marks); raised != 0 {
			p.raised.Add(1)
			select {
			case alarm <- Raise{Lane: p.Name(), Mark: raised, LastAbove: w.lastAbove, Seen: now, Answered: answered}:
			default:
				if answered {
					w.unheard(raised)
				}
			}
		}
		period := w.period(&o, marks)
		if p.relaxed.Load() {
			period = max(period, attended)
		}
		p.period.Store(int64(period))
		if period == longest {
			period = pace.Together(now, longest)
		}
		timer.Reset(period)
	}
}

// watch is what a polling lane remembers between readings.
type watch struct {
	below     uint64 // which marks were crossed, as bits by Mark
	lastAbove time.Time
	waiting   [signal.Marks]*crossing
	rate      float64 // the fastest fill seen, bytes a second
	last      signal.Observations
	drift     int64 // of per-CPU counters, bytes
}

// crossing is what polling compares a crossing of a hard memory threshold with.
type crossing struct {
	signal.Readings
	at      signal.MemoryReading // of the crossing; none while the threshold is not met
	waiting bool                 // file cache brought it, and other memory has not grown since
}

// answers takes a reading in, and reports whether it answers the crossing of a hard
// memory threshold of so many bytes that it meets, and whether an earlier one has not.
func (c *crossing) answers(now time.Time, o *signal.Observation, threshold, drift int64) (answered, waited bool) {
	met := o.Below(threshold)
	compared := c.Follow(c.at, o.Reading(now), met)
	if !met {
		c.at, c.waiting = signal.MemoryReading{}, false
		return false, false
	}
	if waited = c.waiting; waited || c.at.Time.IsZero() {
		c.waiting = o.Available >= threshold-o.Cache && !compared.Answered(signal.GrowthFloor(drift, threshold))
	}
	c.at = compared.At
	return !c.waiting, waited
}

// unheard makes the next reading raise an answer again: an alarm that waits to be heard
// may be of the same crossing, not answered yet.
func (w *watch) unheard(m signal.Mark) {
	if c := w.waiting[m]; c != nil {
		c.waiting = true
	}
}

// see takes a reading in and returns the first mark that it crosses and the one
// before did not, or whose crossing it answers and the one before did not, and
// whether it is answered; zero for none.
func (w *watch) see(now time.Time, o *signal.Observations, marks []signal.Threshold) (crossed signal.Mark, answered bool) {
	var below uint64 // by Mark
	above := true    // as far as can be told, and that is all
	var armed [signal.Marks]bool
	for i := range marks {
		t := &marks[i]
		r := &o[t.Signal]
		if r.Status == signal.Unreadable {
			above = false
		}
		m := signal.MarkOf(t)
		armed[m] = true
		answers, waited := true, false
		if t.Hard() && t.Signal.IsMemory() && r.Status == signal.Observed {
			if w.waiting[m] == nil {
				w.waiting[m] = &crossing{}
			}
			answers, waited = w.waiting[m].answers(now, r, t.Value.Amount(r.Capacity), w.drift)
		}
		if !r.Below(t.Value.Amount(r.Capacity)) {
			continue
		}
		above = false
		below |= 1 << m
		if crossed == 0 && (w.below&(1<<m) == 0 || waited && answers) {
			crossed, answered = m, answers
		}
	}
	if above {
		w.lastAbove = now
	}
	w.below = below
	for m := range armed {
		if !armed[m] {
			w.waiting[m] = nil // it may be armed again, for another crossing
		}
	}
	w.learn(o)
	return crossed, answered
}

// learn keeps the fastest fill seen. It fades by half over 700 readings, so
// that one burst does not make the lane busy for ever.
func (w *watch) learn(o *signal.Observations) {
	const fade = 0.999
	w.rate = max(w.rate*fade, slowestFill)
	for s := range o {
		now, before := &o[s], &w.last[s]
		if now.Status != signal.Observed || before.Status != signal.Observed || !signal.Signal(s).IsMemory() {
			continue
		}
		if dt := now.Time.Sub(before.Time).Seconds(); dt > 0 {
			w.rate = max(w.rate, float64(before.Available-now.Available)/dt)
		}
	}
	w.last = *o
}

// period returns how long nothing can cross the nearest mark, at twice the
// fastest fill seen.
func (w *watch) period(o *signal.Observations, marks []signal.Threshold) time.Duration {
	wait := longest
	for _, t := range marks {
		r := &o[t.Signal]
		if r.Status == signal.NotObserved || !t.Signal.IsMemory() {
			continue
		}
		if r.Status == signal.Unreadable {
			// Nobody knows how near the mark is.
			wait = min(wait, unseen)
			continue
		}
		headroom := r.Available - t.Value.Amount(r.Capacity)
		if headroom < 0 && !t.Hard() {
			// Below already: whoever acts on it looks again by itself. What
			// matters is the hard mark.
			continue
		}
		if headroom < 0 {
			// It must be seen above before it can be seen to fall again, which the
			// next hog may bring about right after the kill.
			return shortest
		}
		seconds := float64(headroom) / (2 * w.rate)
		wait = min(wait, time.Duration(seconds*float64(time.Second)))
	}
	return max(wait, shortest)
}
