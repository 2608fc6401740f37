package evict

import (
	"cmp"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Step decides: from what was and what is observed to what is and what is to
// be done. It is a pure function of its arguments and keeps none of them.
//
// One signal is acted upon in a step, the two memory signals counting as one:
// hard thresholds before soft ones, then in the order of signals, the first
// that is past its grace and has something to do. Pods over their own limits
// on local storage go first and postpone disk and PID signals, never memory.
func Step(before State, in Inputs, now time.Time) (State, Orders) {
	d := newDecision(&before, &in, now)
	d.adopt()
	d.pretend()
	d.takeOutcomes()
	d.settle()
	d.revive()
	d.evaluate()
	d.endBackoffs()
	d.report()
	d.harden()
	d.enforceLimits()
	d.relieve()
	d.contend()
	d.publish()
	d.finish()
	return d.State, d.out
}

// report takes what evaluate found into the books and the orders.
func (d *decision) report() {
	d.Timers = nil
	var signals [signal.Count]bool
	for i := range d.marks {
		m := &d.marks[i]
		if !m.met {
			continue
		}
		if m.waiting {
			d.out.Waiting = append(d.out.Waiting, m.key)
		}
		signals[m.Signal] = true
		d.Timers = append(d.Timers, m.timer)
		d.see(m.Signal.Condition())
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

// publish lists the conditions, which outlive their last sight by a while.
func (d *decision) publish() {
	for _, c := range d.Conditions {
		if d.now.Sub(c.LastSeen) < d.policy.TransitionPeriod {
			d.out.Conditions = append(d.out.Conditions, c.Condition)
		}
	}
	slices.Sort(d.out.Conditions)
}

func (d *decision) see(c signal.Condition) {
	for i := range d.Conditions {
		if d.Conditions[i].Condition == c {
			d.Conditions[i].LastSeen = d.now
			return
		}
	}
	d.Conditions = append(d.Conditions, ConditionTimer{Condition: c, LastSeen: d.now})
}

// enforceLimits evicts the pods that use more local storage than they may, in
// the order of their UIDs.
func (d *decision) enforceLimits() {
	type offence struct {
		pod            *entry
		cause, message string
	}
	var offences []offence
	for i := range d.pods {
		pod := &d.pods[i]
		cause, message := pod.overLimit(d.policy.Layout)
		if cause == "" {
			continue
		}
		if reason, _ := d.busy(pod.UID, d.now); reason != "" {
			continue
		}
		if reason, _ := d.policy.exempt(pod.Pod); reason != "" {
			continue
		}
		offences = append(offences, offence{pod, cause, message})
	}
	slices.SortFunc(offences, func(a, b offence) int { return cmp.Compare(a.pod.UID, b.pod.UID) })
	for _, o := range offences {
		d.limited = true
		d.evict(o.pod, Key{Signal: signal.NodeFsAvailable}, Order{
			UID: o.pod.UID, Pod: o.pod.Key(), Cause: o.cause, Hard: true, Grace: time.Second,
			Expected: o.pod.disk(partsAll, false), Reason: ReasonEvicted, Message: o.message,
		})
	}
}

// relieve acts upon one signal.
func (d *decision) relieve() {
	for _, soft := range []bool{false, true} {
		for s := signal.Signal(0); s < signal.Count; s++ {
			if group(s) != s {
				continue // acted upon with the first of its group
			}
			if d.postponed(s, soft) {
				continue
			}
			t, deficit := d.worst(s, soft)
			if t == nil {
				t = d.reclaimedInVain(s, soft)
			}
			if t != nil && d.relieveSignal(t, deficit) {
				d.out.Acted = t
				return
			}
		}
	}
}

// postponed reports whether a signal waits for a later step: because pods over
// their own limits went, because a reclaim is under way that may change what
// the disks hold, or because the step only continues after the reclaim for
// another threshold. Hard memory thresholds never wait.
func (d *decision) postponed(s signal.Signal, soft bool) bool {
	r := d.Reclaim
	switch {
	case s.IsMemory() && !soft:
		return false
	case d.limited:
		return !s.IsMemory()
	case r == nil:
		return false
	case r.Waiting:
		return s.IsDisk()
	}
	return d.resumed && (r.Threshold.Signal != s || r.Threshold.Soft != soft)
}

// reclaimedInVain returns the threshold for which a reclaim has just been done
// if it is still met, also where victims on their way cover what is missing: the
// next kind of reclaim may be had without another.
func (d *decision) reclaimedInVain(s signal.Signal, soft bool) *Threshold {
	if !d.resumed || d.Reclaim == nil || d.Reclaim.Threshold.Signal != s || d.Reclaim.Threshold.Soft != soft {
		return nil
	}
	for i := range d.marks {
		if m := &d.marks[i]; m.past && m.key == d.Reclaim.Threshold {
			return m.Threshold
		}
	}
	return nil
}

// relieveSignal reclaims from the node or chooses victims, and reports whether
// there was something to do: not where nothing can be freed, be it what runs or
// what does not.
func (d *decision) relieveSignal(t *Threshold, deficit int64) bool {
	if d.observed[t.Signal].ReadOnly {
		return false
	}
	if stages := d.policy.Layout.stages(t.Signal); len(stages) > 0 {
		stage := 0
		if d.resumed && d.Reclaim != nil && d.Reclaim.Threshold == t.Key() {
			stage = d.Reclaim.Stage + 1
		}
		if stage < len(stages) && !(stage == 0 && d.reclaimsNothing(t, deficit)) {
			d.Reclaim = &Reclaiming{Threshold: t.Key(), Stage: stage, Waiting: true}
			d.out.Reclaim = &Reclaim{Kind: stages[stage], Signal: t.Signal, Deficit: deficit}
			return true
		}
	}
	return deficit > 0 && d.choose(t, deficit)
}

// reclaimsNothing reports whether the reclaims for a threshold are left out: the last ones
// brought nothing, and no pod would be evicted after them.
func (d *decision) reclaimsNothing(t *Threshold, deficit int64) bool {
	if !slices.Contains(d.in.NothingReclaimed, t.Key()) {
		return false
	}
	if deficit <= 0 || d.hindered(t) != Chosen {
		return true
	}
	ranked, _ := d.policy.Rank(d.in.Pods, t.Signal, &d.State, d.now)
	n, _ := d.victims(t, deficit, ranked)
	return n == 0
}

// choose evicts the first of the ranking, as many as the deficit needs; none for
// a disk where that would free next to nothing.
func (d *decision) choose(t *Threshold, deficit int64) bool {
	if d.hindered(t) != Chosen {
		return false
	}
	ranked, exempt := d.policy.Rank(d.in.Pods, t.Signal, &d.State, d.now)
	d.out.Ranking, d.out.Exempt = ranked, exempt
	n, futile := d.victims(t, deficit, ranked)
	if futile {
		d.giveUp(t, deficit, ranked, n)
	}
	for _, r := range ranked[:n] {
		pod := &d.pods[r.index]
		o := d.order(pod.Pod, t, d.observed[t.Signal])
		o.Deficit, o.Expected, o.Futile = deficit, r.Expected, futile
		d.evict(pod, t.Key(), o)
	}
	return n > 0
}

// order is the eviction of a pod for a signal, but for what is expected of it.
func (d *decision) order(pod *Pod, t *Threshold, o signal.Observation) Order {
	text, annotations := message(pod, t.Threshold, o)
	return Order{
		UID: pod.UID, Pod: pod.Key(), Cause: t.Signal.String(), Hard: t.Hard(), Grace: d.grace(t, pod),
		Threshold: t.Value.Amount(o.Capacity), Available: o.Available,
		Reason: ReasonEvicted, Message: text, Annotations: annotations,
	}
}

// defaultGraceSeconds is a pod's own grace where it states none, as the API
// server sets it.
const defaultGraceSeconds = 30

// grace is the kubelet's: a second for a hard threshold, else the shorter of
// the operator's and the pod's own, at least a second.
func (d *decision) grace(t *Threshold, pod *Pod) time.Duration {
	if t.Hard() {
		return time.Second
	}
	seconds := d.policy.MaxPodGraceSeconds
	if seconds < 0 {
		seconds = defaultGraceSeconds
		if own := pod.TerminationGraceSeconds; own != nil {
			seconds = *own
		}
	}
	if own := pod.TerminationGraceSeconds; own != nil && *own < seconds {
		seconds = *own
	}
	return time.Duration(max(1, seconds)) * time.Second
}

// evict orders a pod's eviction and takes it into the books.
func (d *decision) evict(e *entry, k Key, o Order) {
	d.out.Evict = append(d.out.Evict, o)
	d.enter(e, k, &o)
}

// finish drops what no longer matters.
func (d *decision) finish() {
	if d.resumed && d.out.Reclaim == nil {
		d.Reclaim = nil
	}
}
