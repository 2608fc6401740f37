package evict

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// decision is one decision in progress: that of a Step, or that of a Table, which
// decides repeatedly and only on hard memory thresholds. The methods that both call are
// in this file, crossing.go, settle.go and victim.go. With a Table's preallocated state
// they do not allocate.
type decision struct {
	State
	in            Inputs
	policy        *Policy
	now           time.Time
	observed      signal.Observations // with the usage of dry-run victims added
	pods          []podEntry          // same indexes as in.Pods
	thresholds    []thresholdCalc     // all thresholds in a Step, those on memory in a Table
	fromTable     bool                // the decision is a Table's, not a Step's
	afterReclaim  bool                // the node-level reclaim in the state has just ended
	limitEviction bool                // a pod is evicted for exceeding its own limit
	out           Orders
}

// podEntry is a pod with its memory in bytes, which a Table keeps current: its working
// set and the part that a kill frees. Both are 0 if they were not measured.
type podEntry struct {
	*Pod
	memory, freeable int64
	measured         bool
	ends             EndingPod // of State.Ending; zero if the pod is not in it
}

func newDecision(before *State, in *Inputs, now time.Time) decision {
	d := decision{
		State: before.Clone(), in: *in, policy: in.Policy, now: now, observed: in.Observations,
		pods: make([]podEntry, len(in.Pods)), thresholds: make([]thresholdCalc, len(in.Policy.Thresholds)),
	}
	for i := range in.Pods {
		d.pods[i].Pod = &in.Pods[i]
		if pod := &in.Pods[i]; pod.HasStats {
			d.pods[i].setUsage(pod.Usage.Memory, pod.Usage.Freeable)
		}
		d.pods[i].ends = d.endingPod(&in.Pods[i])
	}
	for i := range in.Policy.Thresholds {
		c := &d.thresholds[i]
		*c = newThresholdCalc(&in.Policy.Thresholds[i])
		c.actNow = slices.Contains(in.ActNow, c.key)
		if timer := d.timer(c.key); timer != nil {
			c.timer, c.met = *timer, true
		}
	}
	return d
}

func (e *podEntry) setUsage(memory, freeable int64) {
	e.memory, e.freeable, e.measured = memory, freeable, true
}

// expected is Pod.expected with the entry's memory.
func (e *podEntry) expected(s signal.Signal, l Layout) int64 {
	if s.IsMemory() {
		return e.freeable
	}
	return e.Pod.expected(s, l)
}

// findPod returns the pod with a UID, or nil if it is not listed.
func (d *decision) findPod(uid string) *podEntry {
	for i := range d.pods {
		if d.pods[i].UID == uid {
			return &d.pods[i]
		}
	}
	return nil
}

// evaluateThresholds updates which thresholds are met and which must be acted on.
func (d *decision) evaluateThresholds() {
	for i := range d.thresholds {
		c := &d.thresholds[i]
		if d.fromTable && c.met && d.observed[c.Signal].Status == signal.Unreadable {
			// A Step has waited for its readings, so a missing one resets the timer.
			// The hot path waits less long, so the next reading may have the signal
			// again: a missing one neither ends the crossing nor causes a kill.
			c.active, c.waiting = false, false
			continue
		}
		d.updateThreshold(c)
	}
}

// endBackoffs removes the back-offs of signals that are no longer low.
func (d *decision) endBackoffs() {
	d.Backoffs = slices.DeleteFunc(d.Backoffs, func(b Backoff) bool { return !d.groupMet(b.Signal) })
}

// groupMet reports whether a threshold of the group is met.
func (d *decision) groupMet(g signal.Signal) bool {
	return slices.ContainsFunc(d.thresholds, func(c thresholdCalc) bool { return c.met && group(c.Signal) == g })
}

// escalateVictims ends the grace period of victims whose signal now meets a hard
// threshold, also one that is left to the kubelet.
func (d *decision) escalateVictims() {
	for i := range d.thresholds {
		c := &d.thresholds[i]
		if !c.active && !c.leftToKubelet || !c.Hard() {
			continue
		}
		for j := range d.Victims {
			v := &d.Victims[j]
			if group(v.Signal.Signal) == group(c.Signal) && v.escalate(d.in.Measured, d.now) && !d.fromTable {
				d.out.Escalate = append(d.out.Escalate, v.UID)
			}
		}
	}
}

// firstUncovered considers the group's hard or soft thresholds that must be acted on
// and whose deficit neither victims in flight nor other ending pods cover. It returns the first of them in the
// order of signals and the largest of their deficits; nil if there is none.
func (d *decision) firstUncovered(g signal.Signal, soft bool) (first *Threshold, deficit int64) {
	for i := range d.thresholds {
		c := &d.thresholds[i]
		if !c.active || c.Hard() == soft || group(c.Signal) != g {
			continue
		}
		o := &d.observed[c.Signal]
		need := shortfall(c.target(o.Capacity), o.Available) - d.inFlight(c.Signal)
		if need > 0 {
			need = d.subtractEnding(c, need)
		}
		if need <= 0 {
			continue
		}
		if first == nil || c.Signal < first.Signal {
			first = c.Threshold
		}
		deficit = max(deficit, need)
	}
	return first, deficit
}

// inFlight returns how much of a signal's quantity the victims in flight are still
// expected to free.
func (d *decision) inFlight(s signal.Signal) (sum int64) {
	for i := range d.Victims {
		v := &d.Victims[i]
		if !v.inFlight(d.policy.SettleTimeout, d.now) {
			continue
		}
		if e := d.findPod(v.UID); e != nil {
			sum = saturatingAdd(sum, d.outstanding(v, e, s))
		}
	}
	return sum
}

// outstanding returns how much of a signal's quantity a victim is still expected to
// free.
func (d *decision) outstanding(v *Victim, e *podEntry, s signal.Signal) int64 {
	expected := e.expected(s, d.policy.Layout)
	if !s.IsMemory() || !d.in.Measured {
		return expected
	}
	return v.outstanding(e.memory, expected)
}

// blockedBy reports whether no pod may be chosen for a threshold now, and why. reason is
// valid only if blocked is set.
func (d *decision) blockedBy(t *Threshold) (reason VerdictReason, blocked bool) {
	switch {
	case d.in.PodsUnknown:
		return PodsUnknown, true
	case d.backingOff(group(t.Signal), t.Hard(), d.now):
		return BackingOff, true
	}
	return 0, false
}

// victimCount returns how many of the ranked pods are evicted for a deficit, and
// whether the signal is futile: their eviction can't relieve it.
func (d *decision) victimCount(t *Threshold, deficit int64, ranked []Ranked) (n int, futile bool) {
	n, enough := VictimCount(ranked, deficit, d.policy.MaxVictims)
	if enough && !d.poorReturns(group(t.Signal)) {
		return n, false
	}
	if t.Signal.IsDisk() && d.negligible(t.Signal, deficit, ranked) {
		return 0, true
	}
	return min(1, len(ranked)), true
}

// addVictim adds a pod to the victims, in dry run to the dry-run victims. It does not
// allocate in a Table.
func (d *decision) addVictim(e *podEntry, k ThresholdKey, o *Order) {
	_, isSignal := signal.Parse(o.Cause) // else it is a limit or a contention condition
	if d.in.DryRun {
		d.DryRunVictims = append(d.DryRunVictims, DryRunVictim{UID: e.UID, Cause: o.Cause, Signal: k.Signal, OverLimit: !isSignal})
		return
	}
	v := newVictim(e, k, o, d.now)
	v.OverLimit = !isSignal
	d.Victims = append(d.Victims, v)
}
