package evict

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// decision is a decision under way: that of a step, or that of a Table, which
// decides again and again on hard memory thresholds alone. What both call is in
// this file, crossing.go, settle.go and victim.go; with a Table's preallocated
// state it allocates nothing.
type decision struct {
	State
	in       Inputs
	policy   *Policy
	now      time.Time
	observed signal.Observations // with what dry run adds
	pods     []entry             // by index into in.Pods
	marks    []mark              // a step's are all thresholds, a Table's those of memory
	hurried  bool                // it is a Table's
	resumed  bool                // a node-level reclaim has just been done
	limited  bool                // a pod went over its own limits
	out      Orders
}

// entry is a pod with its memory, in bytes, as a Table keeps it up to date: its
// working set and what of it a kill gives back. Both are 0 where they are not known.
type entry struct {
	*Pod
	memory, freeable int64
	known            bool
}

func newDecision(before *State, in *Inputs, now time.Time) decision {
	d := decision{
		State: before.Clone(), in: *in, policy: in.Policy, now: now, observed: in.Observations,
		pods: make([]entry, len(in.Pods)), marks: make([]mark, len(in.Policy.Thresholds)),
	}
	for i := range in.Pods {
		d.pods[i].Pod = &in.Pods[i]
		if pod := &in.Pods[i]; pod.HasStats {
			d.pods[i].set(pod.Usage.Memory, pod.Usage.Freeable)
		}
	}
	for i := range in.Policy.Thresholds {
		m := &d.marks[i]
		*m = markOf(&in.Policy.Thresholds[i])
		m.answered = slices.Contains(in.Answered, m.key)
		if timer := d.timer(m.key); timer != nil {
			m.timer, m.met = *timer, true
		}
	}
	return d
}

func (e *entry) set(memory, freeable int64) {
	e.memory, e.freeable, e.known = memory, freeable, true
}

// expected is Pod.expected with the entry's memory.
func (e *entry) expected(s signal.Signal, l Layout) int64 {
	if s.IsMemory() {
		return e.freeable
	}
	return e.Pod.expected(s, l)
}

// find returns a pod by its UID; nil where it is not there.
func (d *decision) find(uid string) *entry {
	for i := range d.pods {
		if d.pods[i].UID == uid {
			return &d.pods[i]
		}
	}
	return nil
}

// evaluate finds which thresholds are met, and for how long.
func (d *decision) evaluate() {
	for i := range d.marks {
		m := &d.marks[i]
		if d.hurried && m.met && d.observed[m.Signal].Status == signal.Unreadable {
			// A step waits for its readings, and a timer begins anew where one is
			// missing. A reading in a hurry may lack a signal that the next has: it
			// does not say that the crossing is over, and calls for nothing.
			m.past, m.waiting = false, false
			continue
		}
		d.follow(m)
	}
}

// endBackoffs forgets that evicting was futile for a signal which is no longer met.
func (d *decision) endBackoffs() {
	d.Futile = slices.DeleteFunc(d.Futile, func(b Backoff) bool { return !d.met(b.Signal) })
}

// met reports whether a threshold of the group is met.
func (d *decision) met(g signal.Signal) bool {
	return slices.ContainsFunc(d.marks, func(m mark) bool { return m.met && group(m.Signal) == g })
}

// harden ends the grace of victims for whose signal a hard threshold is met
// meanwhile: what is urgent does not wait for what is polite.
func (d *decision) harden() {
	for i := range d.marks {
		m := &d.marks[i]
		if !m.past || !m.Hard() {
			continue
		}
		for j := range d.Victims {
			v := &d.Victims[j]
			if group(v.Signal.Signal) == group(m.Signal) && v.harden(d.in.Measured, d.now) && !d.hurried {
				d.out.Harden = append(d.out.Harden, v.UID)
			}
		}
	}
}

// worst returns, of the group's thresholds that are past their grace, the
// first that victims on their way do not cover, and the largest deficit of
// them; nil where nothing is left to do.
func (d *decision) worst(g signal.Signal, soft bool) (first *Threshold, deficit int64) {
	for i := range d.marks {
		m := &d.marks[i]
		if !m.past || m.Hard() == soft || group(m.Signal) != g {
			continue
		}
		o := &d.observed[m.Signal]
		need := shortfall(m.target(o.Capacity), o.Available) - d.underway(m.Signal)
		if need <= 0 {
			continue
		}
		if first == nil || m.Signal < first.Signal {
			first = m.Threshold
		}
		deficit = max(deficit, need)
	}
	return first, deficit
}

// underway sums what victims on their way are still expected to bring.
func (d *decision) underway(s signal.Signal) (sum int64) {
	for i := range d.Victims {
		v := &d.Victims[i]
		if !v.counts(d.in.Measured, d.policy.SettleTimeout, d.now) {
			continue
		}
		if e := d.find(v.UID); e != nil {
			sum = saturatingAdd(sum, d.held(v, e, s))
		}
	}
	return sum
}

// held returns what a victim still holds of what it is expected to bring.
func (d *decision) held(v *Victim, e *entry, s signal.Signal) int64 {
	expected := e.expected(s, d.policy.Layout)
	if !s.IsMemory() || !d.in.Measured || !e.known {
		return expected
	}
	return v.holds(e.memory, expected)
}

// hindered returns why no pod may be chosen for a threshold now, Chosen where
// one may.
func (d *decision) hindered(t *Threshold) Why {
	switch {
	case d.in.Unlisted:
		return Unlisted
	case d.backingOff(group(t.Signal), t.Hard(), d.now):
		return BackingOff
	}
	return Chosen
}

// victims returns how many of the ranked pods are evicted for a deficit, and whether that
// can't relieve the signal.
func (d *decision) victims(t *Threshold, deficit int64, ranked []Ranked) (n int, futile bool) {
	n, enough := Size(ranked, deficit, d.policy.MaxVictims)
	if enough && !d.disappointed(group(t.Signal)) {
		return n, false
	}
	if t.Signal.IsDisk() && d.negligible(t.Signal, deficit, ranked) {
		return 0, true
	}
	return min(1, len(ranked)), true
}

// enter takes a pod that is ordered to go into the books.
func (d *decision) enter(e *entry, k Key, o *Order) {
	_, isSignal := signal.Parse(o.Cause)
	if d.in.DryRun {
		d.Pretended = append(d.Pretended, Pretended{UID: e.UID, Signal: k.Signal, Limit: !isSignal})
		return
	}
	v := newVictim(e, k, o, d.now)
	v.Limit = !isSignal
	d.Victims = append(d.Victims, v)
}
