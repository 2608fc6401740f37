package evict

import (
	"fmt"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Contention is a run of stalls on memory that goes on: tasks wait for memory
// that is taken away from them as soon as they have it. What is available may
// look well meanwhile.
type Contention struct {
	// Condition names the node's condition, and so the place.
	Condition signal.Condition
	Since     time.Time
}

// ContentionPolicy is what an operator wants done about contention.
type ContentionPolicy struct {
	// Sustained is how long stalls must have gone on; 0 is never.
	Sustained time.Duration
	// Evict takes a pod each time; else it is only told.
	Evict bool
}

// Contended is a place with sustained contention for which a pod was evicted.
type Contended struct {
	Condition signal.Condition `json:"condition"`
	Acted     time.Time        `json:"acted"`
}

// contend sees to sustained contention, where a pod has not just been chosen for
// something else: one pod goes, in the order of memory, and the stalls have to go
// on for as long again before the next does.
func (d *decision) contend() {
	d.Contended = slices.DeleteFunc(d.Contended, func(c Contended) bool { return !d.stalls(c.Condition) })
	if d.policy.Contention.Sustained == 0 {
		return
	}
	for _, c := range d.in.Contention {
		if d.now.Sub(c.Since) < d.policy.Contention.Sustained {
			continue
		}
		d.see(c.Condition)
		if d.policy.Contention.Evict && !d.occupied() && d.now.Sub(d.acted(c.Condition)) >= d.policy.Contention.Sustained {
			d.evictFor(c)
		}
	}
}

// stalls reports whether contention in a place goes on.
func (d *decision) stalls(c signal.Condition) bool {
	return slices.ContainsFunc(d.in.Contention, func(in Contention) bool { return in.Condition == c })
}

// occupied reports whether a pod is already on its way, or it is not known what
// runs.
func (d *decision) occupied() bool {
	return d.in.Unlisted || len(d.out.Evict) > 0 || slices.ContainsFunc(d.Victims, func(v Victim) bool {
		return v.counts(d.in.Measured, d.policy.SettleTimeout, d.now)
	})
}

// acted returns when a pod was last evicted for contention in a place.
func (d *decision) acted(c signal.Condition) time.Time {
	for _, known := range d.Contended {
		if known.Condition == c {
			return known.Acted
		}
	}
	return time.Time{}
}

// evictFor evicts the first pod of memory's ranking.
func (d *decision) evictFor(c Contention) {
	ranked, exempt := d.policy.Rank(d.in.Pods, signal.MemoryAvailable, &d.State, d.now)
	d.out.Ranking, d.out.Exempt = ranked, exempt
	d.Contended = slices.DeleteFunc(d.Contended, func(known Contended) bool { return known.Condition == c.Condition })
	d.Contended = append(d.Contended, Contended{Condition: c.Condition, Acted: d.now})
	if len(ranked) == 0 {
		return
	}
	pod := &d.pods[ranked[0].index]
	d.evict(pod, Key{Signal: signal.MemoryAvailable}, Order{
		UID: pod.UID, Pod: pod.Key(), Cause: string(c.Condition), Hard: true, Grace: time.Second,
		Expected: ranked[0].Expected, Reason: ReasonEvicted, Message: contentionMessage(c, d.now),
		Annotations: map[string]string{starvedResource: string(signal.Memory)},
	})
	if d.in.DryRun {
		d.Pretended[len(d.Pretended)-1].Contention = c.Condition
	}
}

// contentionMessage begins as the kubelet's messages do.
func contentionMessage(c Contention, now time.Time) string {
	return fmt.Sprintf("The node was low on resource: %s. Tasks have stalled on it for %s (%s). ",
		signal.Memory, now.Sub(c.Since).Round(100*time.Millisecond), c.Condition)
}
