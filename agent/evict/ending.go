package evict

import (
	"cmp"
	"slices"
	"time"
)

// EndingPod is a pod that ends without evictd ([Pod].Ending).
type EndingPod struct {
	UID string `json:"uid"`
	// Seen is when Step first found the pod so.
	Seen time.Time `json:"seen"`
	// EndsBy is when its grace period ends. A pod that was deleted without one has MinGrace.
	EndsBy time.Time `json:"endsBy"`
}

// findEndingPods updates the list of pods that end without evictd.
func (d *decision) findEndingPods() {
	if d.in.PodsUnknown {
		return
	}
	var found []*podEntry
	for i := range d.pods {
		if d.pods[i].Ending {
			found = append(found, &d.pods[i])
		}
	}
	slices.SortFunc(found, compareUIDs)
	d.Ending = nil
	for _, pod := range found {
		e := &pod.ends // as in the last Step
		if e.UID == "" {
			*e = EndingPod{UID: pod.UID, Seen: d.now, EndsBy: d.now.Add(MinGrace)}
		}
		if !pod.EndsBy.IsZero() {
			e.EndsBy = pod.EndsBy
		}
		d.Ending = append(d.Ending, *e)
	}
}

func compareUIDs(a, b *podEntry) int { return cmp.Compare(a.UID, b.UID) }

// endingPod returns the entry of State.Ending, which is sorted by UID, for a pod; a zero one if
// there is none.
func (d *decision) endingPod(pod *Pod) (e EndingPod) {
	if !pod.Ending {
		return e
	}
	if i, ok := slices.BinarySearchFunc(d.Ending, pod.UID, func(e EndingPod, uid string) int { return cmp.Compare(e.UID, uid) }); ok {
		e = d.Ending[i]
	}
	return e
}

// subtractEnding returns how much of need, a threshold's deficit, pods that end without evictd
// leave. For a hard threshold it subtracts nothing if they don't cover all of it: they are ranked
// as others then, and a pod that is chosen must not count in the deficit too.
//
// A [Table] calls it too: it does not allocate, and costs nothing while no pod ends.
func (d *decision) subtractEnding(c *thresholdCalc, need int64) int64 {
	sum := d.coveredByEnding(c)
	if sum == 0 || c.Hard() && sum < need {
		return need
	}
	if c.timer.Covered.IsZero() {
		c.timer.Covered = d.now
		if t := d.timer(c.key); t != nil {
			t.Covered = d.now // recordThresholds has copied it before
		}
	}
	return need - sum
}

// coveredByEnding returns how much of a threshold's signal pods that end without evictd are
// expected to free. That is 0 when it must not hold back an eviction any longer: only the
// pods' owners know when they end, and an owner can delete pods again and again.
//
//   - A pod counts for a hard threshold until the settle timeout has passed since it was first
//     seen to end, as a victim without progress does. For a soft threshold it counts if its grace
//     period is at most that of a victim, until that has ended and the settle timeout has passed.
//   - All of them together count for the same time at most, from when they were first needed in a
//     crossing until the threshold is no longer met.
//   - For a hard threshold they count only while at least half of the threshold is left.
func (d *decision) coveredByEnding(c *thresholdCalc) (sum int64) {
	if len(d.Ending) == 0 {
		return 0
	}
	limit := d.policy.SettleTimeout
	if !c.Hard() {
		limit += d.longestGrace()
	}
	o := &d.observed[c.Signal]
	if c.Hard() && o.Available < c.crossingAt(o.Capacity)/2 || !c.timer.Covered.IsZero() && d.now.Sub(c.timer.Covered) >= limit {
		return 0
	}
	for i := range d.pods {
		e := &d.pods[i].ends
		if e.UID == "" || !d.endsSoon(e, c.Hard()) || d.victim(e.UID) != nil || d.isDryRunVictim(e.UID) {
			continue // a victim is counted as such
		}
		sum = saturatingAdd(sum, d.pods[i].expected(c.Signal, d.policy.Layout))
	}
	return sum
}

// awaitsEnding reports whether pods that end without evictd may hold back a hard threshold.
func (t *Timer) awaitsEnding(settle time.Duration, now time.Time) bool {
	return !t.Threshold.Soft && !t.Covered.IsZero() && now.Sub(t.Covered) < settle
}

// AwaitsEnding reports whether pods that end without evictd may hold back a hard threshold in a
// state. No lane raises another alarm for the same crossing, so the readings must be repeated until
// the threshold is no longer held back.
func (p *Policy) AwaitsEnding(s *State, now time.Time) bool {
	return slices.ContainsFunc(s.Timers, func(t Timer) bool { return t.awaitsEnding(p.SettleTimeout, now) })
}

// AwaitsEnding is [Policy.AwaitsEnding] for the hard memory thresholds at the last decision.
func (t *Table) AwaitsEnding() bool {
	if len(t.d.Ending) == 0 {
		return false
	}
	for i := range t.d.thresholds {
		if t.d.thresholds[i].timer.awaitsEnding(t.d.policy.SettleTimeout, t.d.now) {
			return true
		}
	}
	return false
}

// endsSoon reports whether a pod that ends counts for hard or soft thresholds by its own time.
func (d *decision) endsSoon(e *EndingPod, hard bool) bool {
	if hard {
		return d.now.Sub(e.Seen) < d.policy.SettleTimeout
	}
	return e.EndsBy.Sub(e.Seen) <= d.longestGrace() && d.now.Sub(e.EndsBy) < d.policy.SettleTimeout
}

// longestGrace returns the longest grace period of a soft eviction. If the policy has no limit, it
// is that of a pod that specifies none.
func (d *decision) longestGrace() time.Duration {
	if d.policy.MaxPodGraceSeconds < 0 {
		return DefaultGrace
	}
	return max(MinGrace, time.Duration(d.policy.MaxPodGraceSeconds)*time.Second)
}

// rankFor ranks the pods for a threshold. For a soft one, pods that end without evictd are
// exempt as long as they count by their own time ([decision.endsSoon]). No longer: else a pod whose
// owner deletes it with a long grace period would stay, and others would be evicted instead. For a
// hard one they are ranked as others.
func (d *decision) rankFor(t *Threshold) ([]Ranked, []Exempt) {
	ranked, exempt := d.policy.Rank(d.in.Pods, t.Signal, &d.State, d.now)
	if t.Hard() || len(d.Ending) == 0 {
		return ranked, exempt
	}
	ranked = slices.DeleteFunc(ranked, func(r Ranked) bool {
		e := &d.pods[r.index].ends
		ends := e.UID != "" && d.endsSoon(e, false)
		if ends {
			exempt = append(exempt, Exempt{Pod: r.Pod, UID: r.UID, Reason: ReasonTerminating, Detail: "ends soon by itself, and the threshold is soft"})
		}
		return ends
	})
	slices.SortFunc(exempt, compareExempt)
	return ranked, exempt
}

// graceLeft returns the grace period of a pod that is evicted for a soft threshold and would have
// grace. A pod that ends without evictd has got the time since it was first seen so, and no time
// after the end of its own grace period.
func (d *decision) graceLeft(e *podEntry, grace time.Duration) time.Duration {
	if e.ends.UID == "" {
		return grace
	}
	grace -= d.now.Sub(e.ends.Seen)
	if !e.EndsBy.IsZero() {
		grace = min(grace, e.EndsBy.Sub(d.now))
	}
	return max(MinGrace, grace)
}

func compareExempt(a, b Exempt) int {
	return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.UID, b.UID))
}
