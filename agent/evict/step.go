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
	d.findEndingPods()
	d.evaluateThresholds()
	d.endBackoffs()
	d.recordThresholds()
	d.escalateVictims()
	d.enforceLimits()
	d.relievePressure()
	d.evictForContention()
	d.publishConditions()
	d.refuseArrivals()
	d.clearReclaim()
	return d.State, d.out
}

// recordThresholds replaces the state's timers with those of the thresholds that are
// met, and marks the conditions of their signals as true now. In the orders it lists the
// signals with such a threshold, the thresholds that wait for file cache, and the
// signals that could not be read.
func (d *decision) recordThresholds() {
	d.Timers = nil
	var met [signal.Count]bool
	for i := range d.thresholds {
		c := &d.thresholds[i]
		if !c.met {
			continue
		}
		if c.waiting {
			d.out.Waiting = append(d.out.Waiting, c.key)
		}
		met[c.Signal] = true
		d.Timers = append(d.Timers, c.timer)
		d.noteCondition(c.Signal.Condition())
	}
	for s, o := range d.observed {
		if met[s] {
			d.out.Met = append(d.out.Met, signal.Signal(s))
		}
		if o.Status == signal.Unreadable {
			d.out.Unreadable = append(d.out.Unreadable, signal.Signal(s))
		}
	}
}

// publishConditions lists the conditions that were last true less than TransitionPeriod
// ago.
func (d *decision) publishConditions() {
	for i := range d.Conditions {
		if c := &d.Conditions[i]; d.published(c) {
			d.out.Conditions = append(d.out.Conditions, c.Condition)
		}
	}
	slices.Sort(d.out.Conditions)
}

// published reports whether a condition was last true less than TransitionPeriod ago.
func (d *decision) published(c *ConditionTimer) bool {
	return d.now.Sub(c.LastSeen) < d.policy.TransitionPeriod
}

// noteCondition records that a condition is true now.
func (d *decision) noteCondition(c signal.Condition) {
	for i := range d.Conditions {
		if known := &d.Conditions[i]; known.Condition == c {
			if !d.published(known) {
				known.Since = d.now
			}
			known.LastSeen = d.now
			return
		}
	}
	d.Conditions = append(d.Conditions, ConditionTimer{Condition: c, Since: d.now, LastSeen: d.now})
}

// kubeletLimitInterval is the time between two evictions of a kubelet's pods for their own
// local-storage limits, the kubelet's monitoring period. A limit is the only cause without
// pressure on the node, and these limits come from outside: a wrong source must not evict
// all pods at once.
const kubeletLimitInterval = 10 * time.Second

// enforceLimits evicts the pods over their own local-storage limits, in the order of
// their UIDs, except those that are ineligible now and those that the policy exempts. Of a
// kubelet's pods it evicts one per kubeletLimitInterval.
func (d *decision) enforceLimits() {
	type overLimit struct {
		pod            *podEntry
		cause, message string
	}
	var found []overLimit
	for i := range d.pods {
		pod := &d.pods[i]
		cause, message := pod.overLimit(d.policy.Layout)
		if cause == "" || d.isIneligible(pod.UID, d.now) {
			continue
		}
		if reason, _ := d.policy.exempt(pod.Pod); reason != "" {
			continue
		}
		found = append(found, overLimit{pod, cause, message})
	}
	slices.SortFunc(found, func(a, b overLimit) int { return cmp.Compare(a.pod.UID, b.pod.UID) })
	for _, o := range found {
		if o.pod.Kubelet {
			since := d.now.Sub(d.LimitEvicted)
			if !d.LimitEvicted.IsZero() && since >= 0 && since < kubeletLimitInterval {
				continue // since is negative if the wall clock was set back before a restart
			}
			d.LimitEvicted = d.now
		}
		d.limitEviction = true
		// A limit has no threshold, but a victim needs a threshold's key, which decides
		// nothing for it. nodefs.available is right for most limits, though not for that of
		// a memory-backed emptyDir.
		d.evict(o.pod, ThresholdKey{Signal: signal.NodeFsAvailable}, Order{
			UID: o.pod.UID, Pod: o.pod.Key(), Cause: o.cause, Hard: true, Grace: MinGrace,
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
				t = d.stillMetAfterReclaim(s, soft)
			}
			if t != nil && d.relieveSignal(t, deficit) {
				d.out.ActedOn = t
				return
			}
		}
	}
}

// postponed reports whether a signal's hard or soft thresholds wait for a later Step.
// Hard memory thresholds never do. For the others the first of these cases decides:
//
//   - This Step evicts pods over their own limits: disk and PID signals wait.
//   - A node-level reclaim is running: disk signals wait, because it may free their
//     space. PID signals do not, because it frees no PIDs.
//   - A node-level reclaim has just ended: all wait except the threshold that it was
//     ordered for, so that this Step continues with that threshold.
func (d *decision) postponed(s signal.Signal, soft bool) bool {
	switch {
	case s.IsMemory() && !soft:
		return false
	case d.limitEviction:
		return !s.IsMemory()
	case d.afterReclaim:
		return !d.reclaimEnded(s, soft)
	case d.Reclaim != nil:
		return s.IsDisk()
	}
	return false
}

// reclaimEnded reports whether a node-level reclaim for the signal's hard or soft
// threshold has just ended.
func (d *decision) reclaimEnded(s signal.Signal, soft bool) bool {
	return d.afterReclaim && d.Reclaim.Threshold.Signal == s && d.Reclaim.Threshold.Soft == soft
}

// stillMetAfterReclaim returns the signal's hard or soft threshold if its node-level
// reclaim has just ended and it is still met, else nil. It returns the threshold even if
// victims in flight cover the deficit, because the next kind of reclaim may free enough
// without another eviction.
func (d *decision) stillMetAfterReclaim(s signal.Signal, soft bool) *Threshold {
	if !d.reclaimEnded(s, soft) {
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
// returns false if nothing can help, as on a read-only filesystem.
func (d *decision) relieveSignal(t *Threshold, deficit int64) bool {
	if d.observed[t.Signal].ReadOnly {
		return false
	}
	kinds := d.policy.Layout.stages(t.Signal)
	next := 0 // index into kinds
	if d.reclaimEnded(t.Signal, !t.Hard()) {
		next = d.Reclaim.Stage + 1
	}
	if next < len(kinds) && !(next == 0 && d.skipReclaim(t, deficit)) {
		d.Reclaim = &PendingReclaim{Threshold: t.Key(), Stage: next}
		d.out.Reclaim = &Reclaim{Kind: kinds[next], Signal: t.Signal, Deficit: deficit}
		return true
	}
	return deficit > 0 && d.chooseVictims(t, deficit)
}

// skipReclaim reports whether the node-level reclaims for a threshold are skipped: the
// last ones freed nothing, and no pod would be evicted after them.
func (d *decision) skipReclaim(t *Threshold, deficit int64) bool {
	if !slices.Contains(d.in.NothingReclaimed, t.Key()) {
		return false
	}
	if _, blocked := d.blockedBy(t); blocked {
		return true
	}
	ranked, _ := d.rankFor(t)
	n, _ := d.victimCount(t, deficit, ranked)
	return n == 0
}

// chooseVictims evicts the first pods of the ranking, as many as the deficit needs. For
// a disk signal it evicts none if that would free a negligible amount. It reports
// whether it evicted any.
func (d *decision) chooseVictims(t *Threshold, deficit int64) bool {
	if _, blocked := d.blockedBy(t); blocked {
		return false
	}
	ranked, exempt := d.rankFor(t)
	d.out.Ranking, d.out.Exempt = ranked, exempt
	n, futile := d.victimCount(t, deficit, ranked)
	if futile {
		d.noteFutile(t, deficit, ranked, n)
	}
	for _, r := range ranked[:n] {
		pod := &d.pods[r.index]
		o := d.newOrder(pod.Pod, t, d.observed[t.Signal])
		o.Deficit, o.Expected, o.Futile = deficit, r.Expected, futile
		if !t.Hard() {
			o.Grace = d.graceLeft(pod, o.Grace)
		}
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

// grace returns a victim's grace period, like the kubelet's: 1 s for a hard threshold.
// For a soft one it is the shorter of MaxPodGraceSeconds and the pod's own, the one that
// is set if only one is, and DefaultGrace if neither is, but at least MinGrace. A negative
// MaxPodGraceSeconds is not set.
func (d *decision) grace(t *Threshold, pod *Pod) time.Duration {
	if t.Hard() {
		return MinGrace
	}
	limit, own := d.policy.MaxPodGraceSeconds, pod.TerminationGraceSeconds
	seconds := int64(DefaultGrace / time.Second)
	switch {
	case own != nil && limit >= 0:
		seconds = min(limit, *own)
	case own != nil:
		seconds = *own
	case limit >= 0:
		seconds = limit
	}
	return max(MinGrace, time.Duration(seconds)*time.Second)
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
