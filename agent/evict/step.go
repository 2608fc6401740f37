package evict

import (
	"cmp"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Step makes one decision: it returns the new state and the orders that follow from the
// previous state and the inputs. It is a pure function and retains none of its
// arguments.
//
// Each Step acts on one signal; the two memory signals count as one. Hard thresholds
// come before soft ones, then the order of signals decides: Step acts on the first
// signal that is past its grace period and for which something can be done. Pods over
// their own local-storage limits are evicted first. That postpones disk and PID
// signals, never memory.
func Step(before State, in Inputs, now time.Time) (State, Orders) {
	d := newDecision(&before, &in, now)
	d.adoptHotKills()
	d.applyDryRunVictims()
	d.applyOutcomes()
	d.settleVictims()
	d.detectRevivals()
	d.evaluateThresholds()
	d.endBackoffs()
	d.reportThresholds()
	d.escalateVictims()
	d.enforceLimits()
	d.relievePressure()
	d.evictForContention()
	d.publishConditions()
	d.clearReclaim()
	return d.State, d.out
}

// reportThresholds puts the thresholds that are met into the state and the orders.
func (d *decision) reportThresholds() {
	d.Timers = nil
	var signals [signal.Count]bool
	for i := range d.thresholds {
		c := &d.thresholds[i]
		if !c.met {
			continue
		}
		if c.waiting {
			d.out.Waiting = append(d.out.Waiting, c.key)
		}
		signals[c.Signal] = true
		d.Timers = append(d.Timers, c.timer)
		d.noteCondition(c.Signal.Condition())
	}
	for s, o := range d.observed {
		if signals[s] {
			d.out.Met = append(d.out.Met, signal.Signal(s))
		}
		if o.Status == signal.Unreadable {
			d.out.Unreadable = append(d.out.Unreadable, signal.Signal(s))
		}
	}
}

// publishConditions lists the conditions that were set less than TransitionPeriod ago.
func (d *decision) publishConditions() {
	for _, c := range d.Conditions {
		if d.now.Sub(c.LastSeen) < d.policy.TransitionPeriod {
			d.out.Conditions = append(d.out.Conditions, c.Condition)
		}
	}
	slices.Sort(d.out.Conditions)
}

// noteCondition records that a condition is set now.
func (d *decision) noteCondition(c signal.Condition) {
	for i := range d.Conditions {
		if d.Conditions[i].Condition == c {
			d.Conditions[i].LastSeen = d.now
			return
		}
	}
	d.Conditions = append(d.Conditions, ConditionTimer{Condition: c, LastSeen: d.now})
}

// enforceLimits evicts the pods over their own local-storage limits, in the order of
// their UIDs.
func (d *decision) enforceLimits() {
	type overLimit struct {
		pod            *podEntry
		cause, message string
	}
	var found []overLimit
	for i := range d.pods {
		pod := &d.pods[i]
		cause, message := pod.overLimit(d.policy.Layout)
		if cause == "" {
			continue
		}
		if reason, _ := d.ineligible(pod.UID, d.now); reason != "" {
			continue
		}
		if reason, _ := d.policy.exempt(pod.Pod); reason != "" {
			continue
		}
		found = append(found, overLimit{pod, cause, message})
	}
	slices.SortFunc(found, func(a, b overLimit) int { return cmp.Compare(a.pod.UID, b.pod.UID) })
	for _, o := range found {
		d.limitEviction = true
		d.evict(o.pod, ThresholdKey{Signal: signal.NodeFsAvailable}, Order{
			UID: o.pod.UID, Pod: o.pod.Key(), Cause: o.cause, Hard: true, Grace: immediateGrace,
			Expected: o.pod.disk(partsAll, false), Reason: ReasonEvicted, Message: o.message,
		})
	}
}

// relievePressure acts on one signal.
func (d *decision) relievePressure() {
	for _, soft := range []bool{false, true} {
		for s := signal.Signal(0); s < signal.Count; s++ {
			if group(s) != s {
				continue // acted on with the first signal of its group
			}
			if d.postponed(s, soft) {
				continue
			}
			t, deficit := d.firstUncovered(s, soft)
			if t == nil {
				t = d.stillMetAfterReclaim(s)
			}
			if t != nil && d.relieveSignal(t, deficit) {
				d.out.ActedOn = t
				return
			}
		}
	}
}

// postponed reports whether a signal waits for a later Step: because this Step evicts
// pods over their own limits, because a node-level reclaim that may free disk space is
// still running, or because this Step only continues after another threshold's reclaim.
// Hard memory thresholds are never postponed.
func (d *decision) postponed(s signal.Signal, soft bool) bool {
	r := d.Reclaim
	switch {
	case s.IsMemory() && !soft:
		return false
	case d.limitEviction:
		return !s.IsMemory()
	case r == nil:
		return false
	case d.afterReclaim:
		return r.Threshold.Signal != s || r.Threshold.Soft != soft
	}
	return s.IsDisk()
}

// stillMetAfterReclaim returns the threshold of a signal whose node-level reclaim has
// just ended if it is still met, else nil. It returns the threshold even if victims in
// flight cover the deficit, because the next kind of reclaim may free enough without
// another eviction.
func (d *decision) stillMetAfterReclaim(s signal.Signal) *Threshold {
	if !d.afterReclaim || d.Reclaim.Threshold.Signal != s {
		return nil
	}
	for i := range d.thresholds {
		if c := &d.thresholds[i]; c.active && c.key == d.Reclaim.Threshold {
			return c.Threshold
		}
	}
	return nil
}

// relieveSignal orders a node-level reclaim or chooses victims for a threshold. It
// reports whether there was anything to do: on a read-only filesystem neither frees
// anything.
func (d *decision) relieveSignal(t *Threshold, deficit int64) bool {
	if d.observed[t.Signal].ReadOnly {
		return false
	}
	stages, stage := d.policy.Layout.stages(t.Signal), 0
	if d.afterReclaim { // of t: all other thresholds that have stages are postponed
		stage = d.Reclaim.Stage + 1
	}
	if stage < len(stages) && !(stage == 0 && d.skipReclaim(t, deficit)) {
		d.Reclaim = &PendingReclaim{Threshold: t.Key(), Stage: stage, Running: true}
		d.out.Reclaim = &Reclaim{Kind: stages[stage], Signal: t.Signal, Deficit: deficit}
		return true
	}
	return deficit > 0 && d.chooseVictims(t, deficit)
}

// skipReclaim reports whether the node-level reclaims for a threshold are left out: the
// last ones freed nothing, and no pod would be evicted after them.
func (d *decision) skipReclaim(t *Threshold, deficit int64) bool {
	if !slices.Contains(d.in.NothingReclaimed, t.Key()) {
		return false
	}
	if d.blockedBy(t) != Chosen {
		return true
	}
	ranked, _ := d.policy.Rank(d.in.Pods, t.Signal, &d.State, d.now)
	n, _ := d.victimCount(t, deficit, ranked)
	return n == 0
}

// chooseVictims evicts the first pods of the ranking, as many as the deficit needs. For
// a disk signal it evicts none if that would free a negligible amount. It reports
// whether it evicted any.
func (d *decision) chooseVictims(t *Threshold, deficit int64) bool {
	if d.blockedBy(t) != Chosen {
		return false
	}
	ranked, exempt := d.policy.Rank(d.in.Pods, t.Signal, &d.State, d.now)
	d.out.Ranking, d.out.Exempt = ranked, exempt
	n, futile := d.victimCount(t, deficit, ranked)
	if futile {
		d.noteFutile(t, deficit, ranked, n)
	}
	for _, r := range ranked[:n] {
		pod := &d.pods[r.index]
		o := d.newOrder(pod.Pod, t, d.observed[t.Signal])
		o.Deficit, o.Expected, o.Futile = deficit, r.Expected, futile
		d.evict(pod, t.Key(), o)
	}
	return n > 0
}

// newOrder returns the order to evict a pod for a threshold, without Deficit, Expected
// and Futile.
func (d *decision) newOrder(pod *Pod, t *Threshold, o signal.Observation) Order {
	text, annotations := message(pod, t.Threshold, o)
	return Order{
		UID: pod.UID, Pod: pod.Key(), Cause: t.Signal.String(), Hard: t.Hard(), Grace: d.grace(t, pod),
		Threshold: t.Value.Amount(o.Capacity), Available: o.Available,
		Reason: ReasonEvicted, Message: text, Annotations: annotations,
	}
}

// defaultGraceSeconds is the grace period of a pod that specifies none. The API server
// sets the same default.
const defaultGraceSeconds = 30

// grace returns a victim's grace period, as the kubelet does: 1 s for a hard threshold;
// else the shorter of MaxPodGraceSeconds and the pod's own, at least 1 s. If
// MaxPodGraceSeconds is negative, it is the pod's own.
func (d *decision) grace(t *Threshold, pod *Pod) time.Duration {
	if t.Hard() {
		return immediateGrace
	}
	seconds, own := d.policy.MaxPodGraceSeconds, pod.TerminationGraceSeconds
	switch {
	case own != nil && seconds >= 0:
		seconds = min(seconds, *own)
	case own != nil:
		seconds = *own
	case seconds < 0:
		seconds = defaultGraceSeconds
	}
	return time.Duration(max(1, seconds)) * time.Second
}

// evict orders a pod's eviction and adds the pod to the victims.
func (d *decision) evict(e *podEntry, k ThresholdKey, o Order) {
	d.out.Evict = append(d.out.Evict, o)
	d.addVictim(e, k, &o)
}

// clearReclaim removes the node-level reclaim from the state once it has ended and no
// further kind is ordered.
func (d *decision) clearReclaim() {
	if d.afterReclaim && d.out.Reclaim == nil {
		d.Reclaim = nil
	}
}
