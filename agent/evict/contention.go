package evict

import (
	"fmt"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Contention is an ongoing run of stalls on memory (thrashing): tasks wait again and
// again for memory that was reclaimed from them. It can occur while much memory is
// available.
type Contention struct {
	// Condition is the node condition for the stalls, which identifies the cgroup.
	Condition signal.Condition
	Since     time.Time
}

// ContentionPolicy is what to do about contention.
type ContentionPolicy struct {
	// Sustained is how long stalls must last before it is acted on; 0 means never.
	Sustained time.Duration
	// Evict makes Step evict a pod each time. Otherwise it only sets the condition.
	Evict bool
}

// ContentionEviction is when contention was last acted on by evicting a pod, or would
// have been if one had been eligible.
type ContentionEviction struct {
	Condition signal.Condition `json:"condition"`
	Acted     time.Time        `json:"acted"`
}

// evictForContention handles sustained contention. It sets the condition and, if no
// victim is in flight, evicts the first pod of the memory ranking. The stalls must last
// as long again before the next pod is evicted.
func (d *decision) evictForContention() {
	d.ContentionEvictions = slices.DeleteFunc(d.ContentionEvictions, func(e ContentionEviction) bool { return !d.hasContention(e.Condition) })
	if d.policy.Contention.Sustained == 0 {
		return
	}
	for _, c := range d.in.Contention {
		if d.now.Sub(c.Since) < d.policy.Contention.Sustained {
			continue
		}
		d.noteCondition(c.Condition)
		if d.policy.Contention.Evict && !d.evictionInFlight() && d.now.Sub(d.lastContentionEviction(c.Condition)) >= d.policy.Contention.Sustained {
			d.evictFirstRanked(c)
		}
	}
}

// hasContention reports whether the contention for a condition is ongoing.
func (d *decision) hasContention(c signal.Condition) bool {
	return slices.ContainsFunc(d.in.Contention, func(in Contention) bool { return in.Condition == c })
}

// evictionInFlight reports whether no pod may be evicted for contention now: a victim is
// in flight, or may be, because the pods have not been listed yet. Pods that are refused do not
// count: a controller that replaces them would hold back contention evictions for ever.
func (d *decision) evictionInFlight() bool {
	return d.in.PodsUnknown || len(d.out.Evict) > 0 || slices.ContainsFunc(d.Victims, func(v Victim) bool {
		return v.Cause != CauseAdmission && v.inFlight(d.policy.SettleTimeout, d.now)
	})
}

// lastContentionEviction returns when a condition's contention was last acted on, or the
// zero Time.
func (d *decision) lastContentionEviction(c signal.Condition) time.Time {
	for _, e := range d.ContentionEvictions {
		if e.Condition == c {
			return e.Acted
		}
	}
	return time.Time{}
}

// evictFirstRanked evicts the first pod of the memory ranking, if any, for contention.
func (d *decision) evictFirstRanked(c Contention) {
	ranked, exempt := d.policy.Rank(d.in.Pods, signal.MemoryAvailable, &d.State, d.now)
	d.out.Ranking, d.out.Exempt = ranked, exempt
	d.ContentionEvictions = slices.DeleteFunc(d.ContentionEvictions, func(e ContentionEviction) bool { return e.Condition == c.Condition })
	d.ContentionEvictions = append(d.ContentionEvictions, ContentionEviction{Condition: c.Condition, Acted: d.now})
	if len(ranked) == 0 {
		return
	}
	pod := &d.pods[ranked[0].index]
	d.evict(pod, ThresholdKey{Signal: signal.MemoryAvailable}, Order{
		UID: pod.UID, Pod: pod.Key(), Cause: string(c.Condition), Hard: true, Grace: MinGrace,
		Expected: ranked[0].Expected, Reason: ReasonEvicted, Message: contentionMessage(c, d.now),
		Annotations: map[string]string{starvedResource: string(signal.Memory)},
	})
	if d.in.DryRun { // evict has just added it
		d.DryRunVictims[len(d.DryRunVictims)-1].Contention = c.Condition
	}
}

// contentionMessage returns the message of the eviction. It begins like the kubelet's
// eviction messages.
func contentionMessage(c Contention, now time.Time) string {
	return fmt.Sprintf("The node was low on resource: %s. Tasks have stalled on it for %s (%s). ",
		signal.Memory, now.Sub(c.Since).Round(100*time.Millisecond), c.Condition)
}
