package evict

import (
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// VerdictReason is why a Verdict has no victims, or Chosen if it has some.
type VerdictReason uint8

// The reasons of a Verdict.
const (
	// Chosen: there are victims.
	Chosen VerdictReason = iota
	// Recovered: no hard threshold is met.
	Recovered
	// Waiting: file cache caused the crossing, which is not acted on yet.
	Waiting
	// Covered: victims in flight are expected to free the deficit.
	Covered
	// PodsUnknown: the pods have not been listed yet.
	PodsUnknown
	// BackingOff: the signal is futile and its back-off has not ended.
	BackingOff
	// NoneEligible: no pod is eligible.
	NoneEligible
	// Futile: evicting can't relieve the signal. Only Step handles that.
	Futile

	// VerdictReasons is the number of reasons.
	VerdictReasons
)

// String returns the reason in words.
func (r VerdictReason) String() string {
	return [...]string{
		Chosen: "chosen", Recovered: "recovered", Waiting: "waiting for file cache", Covered: "covered by victims",
		PodsUnknown: "pods not listed", BackingOff: "backing off", NoneEligible: "no pod eligible", Futile: "futile", VerdictReasons: "unknown",
	}[min(r, VerdictReasons)]
}

// Verdict is a Table's decision.
type Verdict struct {
	Reason VerdictReason
	// Threshold is the threshold acted on. Deficit is the missing amount in bytes, less
	// what victims in flight are expected to free. They are nil and 0 for Recovered,
	// Waiting and Covered.
	Threshold *Threshold
	Deficit   int64
	// Observation is that of the threshold's signal, with the usage of dry-run victims
	// added.
	Observation signal.Observation
	// Ranking is the eligible pods in the order of eviction; the first N are the
	// victims. It is valid until the next call of a method of the table.
	Ranking []Ranked
	N       int
}

// Decide returns which pods to kill for the observations. It decides on the hard
// thresholds of the memory signals only.
func (t *Table) Decide(observed *signal.Observations, now time.Time) Verdict {
	d := &t.d
	t.observe(observed, now)
	d.settleVictims()
	d.evaluateThresholds()
	d.endBackoffs()
	d.escalateVictims()
	threshold, deficit := d.firstUncovered(signal.MemoryAvailable, false)
	if threshold == nil {
		return Verdict{Reason: t.noVictimReason()}
	}
	v := Verdict{Reason: Chosen, Threshold: threshold, Deficit: deficit, Observation: d.observed[threshold.Signal]}
	if reason, blocked := d.blockedBy(threshold); blocked {
		v.Reason = reason
		return v
	}
	v.Ranking = t.rank()
	n, futile := d.victimCount(threshold, deficit, v.Ranking)
	switch {
	case n == 0:
		v.Reason = NoneEligible
	case futile:
		v.Reason = Futile
	default:
		v.N = n
	}
	return v
}

// Observe records observations without deciding on them, so that the end of a crossing is
// noticed.
func (t *Table) Observe(observed *signal.Observations, now time.Time) {
	t.observe(observed, now)
	t.d.evaluateThresholds()
}

// SettleVictims updates the victims by the usage that was set last: those that have freed what
// was expected, or have been waited for long enough, are settled, as in a Step.
func (t *Table) SettleVictims(now time.Time) {
	t.d.now = now
	t.d.settleVictims()
}

// observe sets the observations and the time for the next decision.
func (t *Table) observe(observed *signal.Observations, now time.Time) {
	t.d.now, t.d.in.Observations, t.d.observed = now, *observed, *observed
	t.d.applyDryRunVictims()
}

// noVictimReason returns why no threshold needs to be acted on.
func (t *Table) noVictimReason() VerdictReason {
	reason := Recovered
	for i := range t.d.thresholds {
		switch c := &t.d.thresholds[i]; {
		case c.active && c.Hard():
			return Covered
		case c.waiting:
			reason = Waiting
		}
	}
	return reason
}

// rank returns the eligible pods in the order of eviction by their current usage. The
// candidates stay sorted from call to call, so little is left to sort.
func (t *Table) rank() []Ranked {
	for i := range t.candidates {
		r := &t.candidates[i]
		e := &t.d.pods[r.index]
		r.setUsage(e.memory, e.freeable, e.measured)
	}
	t.eligible = t.d.rank(t.eligible[:0], t.candidates, t.d.now)
	return t.eligible
}

// AddVictims adds the verdict's victims to the table's state, so that its next decisions
// count them. It is needed until a later table is made from a Step that took over the
// kills. v must be the last verdict that Decide returned.
func (t *Table) AddVictims(v *Verdict) {
	for i := range v.N {
		r := &v.Ranking[i]
		t.d.addVictim(&t.d.pods[r.index], v.Threshold.Key(), &Order{Pod: r.Pod, Cause: v.Threshold.Signal.String(), Hard: true})
	}
}

// MarkFailed records that a victim could not be killed.
func (t *Table) MarkFailed(uid string) { t.d.markFailed(uid) }
