package lanes

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/pollinterval"
	"github.com/evictd/evictd/agent/signal"
)

// The bounds of the polling interval.
const (
	minPollInterval = 10 * time.Millisecond
	maxPollInterval = time.Second
	// unreadablePollInterval is the maximum while a signal can't be read: a crossing may
	// go unseen.
	unreadablePollInterval = 100 * time.Millisecond
	// coveredPollInterval is the minimum while other lanes cover all thresholds, and polling
	// only checks their alarms.
	coveredPollInterval = 100 * time.Millisecond
)

// The rate, in bytes per second, at which memory may fill: the first estimate for each
// core, and the least that is assumed.
const (
	fillRatePerCore = 3 << 30
	minFillRate     = 1 << 30
)

// Poll is the lane that reads memory periodically. Its interval follows the headroom: what
// is left above the nearest threshold over twice the fastest fill rate seen, from 10 ms to
// 1 s, or from 100 ms while other lanes cover all thresholds.
type Poll struct {
	read       func(now time.Time, into *signal.Observations)
	thresholds atomic.Pointer[[]signal.Threshold]
	cores      int
	drift      int64

	covered     atomic.Bool
	alarms      atomic.Uint64
	period      atomic.Int64 // current interval, ns
	lastReading atomic.Int64 // ns since the epoch; 0 for none
}

// NewPoll returns a lane that reads with read, on a machine with so many cores whose
// per-CPU counters may lag behind by drift bytes (memory.HostDrift). Only Run's goroutine
// calls read.
func NewPoll(read func(time.Time, *signal.Observations), cores int, drift int64) *Poll {
	p := &Poll{read: read, cores: cores, drift: drift}
	p.period.Store(int64(minPollInterval))
	return p
}

// Name returns the lane's name in records and metrics.
func (p *Poll) Name() string { return Polling }

// SetCovered sets whether other lanes cover all thresholds, so that polling may be slower.
// It may be called at any time.
func (p *Poll) SetCovered(yes bool) { p.covered.Store(yes) }

// Arm sets the thresholds to watch. It may be called at any time.
func (p *Poll) Arm(thresholds []signal.Threshold) { p.thresholds.Store(&thresholds) }

// Period returns the current polling interval.
func (p *Poll) Period() time.Duration { return time.Duration(p.period.Load()) }

// LastReading returns the time of the last reading; zero before the first.
func (p *Poll) LastReading() time.Time {
	if ns := p.lastReading.Load(); ns != 0 {
		return time.Unix(0, ns)
	}
	return time.Time{}
}

// Status returns the lane's status. Polling is degraded if it has not read for longer than
// its interval and heartbeatTimeout.
func (p *Poll) Status(now time.Time) Status {
	s := Status{Name: Polling, State: Up, Interval: p.Period(), Alarms: p.alarms.Load()}
	last := p.LastReading()
	switch silent := now.Sub(last); {
	case last.IsZero():
		s.State, s.Reason = Degraded, "no reading yet"
	case silent > s.Interval+heartbeatTimeout:
		s.State, s.Reason = Degraded, fmt.Sprintf("no reading for %v", silent.Round(time.Millisecond))
	}
	return s
}

// Run reads until ctx ends, and sends an alarm when a threshold is crossed that the reading
// before did not cross. It does not wait for the receiver: an alarm that is not received
// yet stands for later ones.
func (p *Poll) Run(ctx context.Context, alarm chan<- Alarm) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	st := pollState{rate: float64(max(1, p.cores)) * fillRatePerCore, drift: p.drift}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		now := time.Now()
		var thresholds []signal.Threshold
		if armed := p.thresholds.Load(); armed != nil {
			thresholds = *armed
		}
		var o signal.Observations
		p.read(now, &o)
		p.lastReading.Store(now.UnixNano())
		if crossed, answered := st.update(now, &o, thresholds); crossed != 0 {
			p.alarms.Add(1)
			select {
			case alarm <- Alarm{Lane: p.Name(), Threshold: crossed, LastAbove: st.lastAbove, Seen: now, ActNow: answered}:
			default:
				if answered {
					st.repeatAnswer(crossed)
				}
			}
		}
		period := st.period(&o, thresholds)
		if p.covered.Load() {
			period = max(period, coveredPollInterval)
		}
		p.period.Store(int64(period))
		if period == maxPollInterval {
			period = pollinterval.AlignedWait(now, maxPollInterval)
		}
		timer.Reset(period)
	}
}

// pollState is what Poll keeps between readings.
type pollState struct {
	below     uint64 // thresholds that were crossed, as bits by identity
	lastAbove time.Time
	crossings [signal.ThresholdIDCount]*crossing
	rate      float64 // fastest fill rate seen, bytes per second
	last      signal.Observations
	drift     int64 // of per-CPU counters, bytes
}

// crossing is what polling compares the crossing of a hard memory threshold with.
type crossing struct {
	signal.Readings
	at      signal.MemoryReading // of the crossing; zero while the threshold is not met
	waiting bool                 // file cache brought it, and other memory has not grown since
}

// answers records a reading. It reports whether the reading meets and answers the crossing
// of a hard memory threshold of so many bytes, and whether an earlier reading met it
// without an answer.
func (c *crossing) answers(now time.Time, o *signal.Observation, threshold, drift int64) (answered, waited bool) {
	met := o.Below(threshold)
	compared := c.Add(c.at, o.Reading(now), met)
	if !met {
		c.at, c.waiting = signal.MemoryReading{}, false
		return false, false
	}
	if waited = c.waiting; waited || c.at.Time.IsZero() {
		c.waiting = o.Available >= threshold-o.Cache && !compared.ActNow(signal.GrowthFloor(drift, threshold))
	}
	c.at = compared.First
	return !c.waiting, waited
}

// repeatAnswer makes the next reading raise an answered crossing again: the alarm that is
// not received yet may be of the same crossing before its answer.
func (st *pollState) repeatAnswer(id signal.ThresholdID) {
	if c := st.crossings[id]; c != nil {
		c.waiting = true
	}
}

// update records a reading. It returns the first threshold that is crossed now and was not
// before, or whose crossing is answered now and was not before, zero for none, and whether
// the crossing is answered.
func (st *pollState) update(now time.Time, o *signal.Observations, thresholds []signal.Threshold) (crossed signal.ThresholdID, answered bool) {
	var below uint64 // by identity
	above := true    // all signals were read, and none is below
	var armed [signal.ThresholdIDCount]bool
	for i := range thresholds {
		t := &thresholds[i]
		r := &o[t.Signal]
		if r.Status == signal.Unreadable {
			above = false
		}
		id := signal.IDOf(t)
		armed[id] = true
		answers, waited := true, false
		if t.Hard() && t.Signal.IsMemory() && r.Status == signal.Observed {
			if st.crossings[id] == nil {
				st.crossings[id] = &crossing{Readings: signal.Readings{Measured: true}}
			}
			answers, waited = st.crossings[id].answers(now, r, t.Value.Amount(r.Capacity), st.drift)
		}
		if !r.Below(t.Value.Amount(r.Capacity)) {
			continue
		}
		above = false
		below |= 1 << id
		if crossed == 0 && (st.below&(1<<id) == 0 || waited && answers) {
			crossed, answered = id, answers
		}
	}
	if above {
		st.lastAbove = now
	}
	st.below = below
	for id := range armed {
		if !armed[id] {
			st.crossings[id] = nil // if it is armed again, its crossing is another
		}
	}
	st.updateRate(o)
	return crossed, answered
}

// updateRate keeps the fastest fill rate seen. It decays by half over 700 readings, so that
// one burst does not shorten the interval forever.
func (st *pollState) updateRate(o *signal.Observations) {
	const decay = 0.999
	st.rate = max(st.rate*decay, minFillRate)
	for s := range o {
		now, before := &o[s], &st.last[s]
		if now.Status != signal.Observed || before.Status != signal.Observed || !signal.Signal(s).IsMemory() {
			continue
		}
		if dt := now.Time.Sub(before.Time).Seconds(); dt > 0 {
			st.rate = max(st.rate, float64(before.Available-now.Available)/dt)
		}
	}
	st.last = *o
}

// period returns how long no threshold can be crossed, at twice the fastest fill rate.
func (st *pollState) period(o *signal.Observations, thresholds []signal.Threshold) time.Duration {
	wait := maxPollInterval
	for _, t := range thresholds {
		r := &o[t.Signal]
		if r.Status == signal.NotObserved || !t.Signal.IsMemory() {
			continue
		}
		if r.Status == signal.Unreadable {
			wait = min(wait, unreadablePollInterval)
			continue
		}
		headroom := r.Available - t.Value.Amount(r.Capacity)
		if headroom < 0 && !t.Hard() {
			// A soft threshold that is crossed is followed by the decision loop. The
			// hard one determines the interval.
			continue
		}
		if headroom < 0 {
			// A reading above the threshold is needed before the next crossing can be
			// seen, which may follow directly after the kill.
			return minPollInterval
		}
		seconds := float64(headroom) / (2 * st.rate)
		wait = min(wait, time.Duration(seconds*float64(time.Second)))
	}
	return max(wait, minPollInterval)
}
