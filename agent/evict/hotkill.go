package evict

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// HotKill is an eviction by the hot path for a hard memory threshold since the last Step.
// It was decided by a Table and has been carried out or attempted.
type HotKill struct {
	// Pod is the victim with the usage on which it was chosen.
	Pod *Pod
	// Threshold and Observation are what the decision was made on.
	Threshold   Threshold
	Observation signal.Observation
	Deficit     int64
	Expected    int64
	Time        time.Time
	DryRun      bool
}

// adoptHotKills takes over the hot path's kills since the last Step: it adds them to
// the victims and returns the orders that Step would have given.
func (d *decision) adoptHotKills() {
	for i := range d.in.HotKills {
		k := &d.in.HotKills[i]
		o := d.newOrder(k.Pod, &k.Threshold, k.Observation)
		o.Deficit, o.Expected = k.Deficit, k.Expected
		d.out.Adopted = append(d.out.Adopted, o)
		// The crossing may end before a Step observes it.
		d.noteCondition(k.Threshold.Signal.Condition())
		d.activate(k)
		if k.DryRun {
			d.DryRunVictims = append(d.DryRunVictims, DryRunVictim{UID: k.Pod.UID, Cause: o.Cause, Signal: k.Threshold.Signal})
			continue
		}
		// The hot path had settled an earlier victim with this UID, or it could not have
		// chosen the pod again.
		pod := podEntry{Pod: k.Pod, memory: k.Pod.Usage.Memory, freeable: k.Expected}
		d.Victims = slices.DeleteFunc(d.Victims, func(v Victim) bool { return v.UID == k.Pod.UID })
		d.Victims = append(d.Victims, newVictim(&pod, k.Threshold.Key(), &o, k.Time))
	}
}

// activate marks the threshold for which a pod was killed as acted on. This Step's
// readings may be of another source than the hot path's, and would otherwise make it
// wait for file cache.
func (d *decision) activate(k *HotKill) {
	for i := range d.thresholds {
		c := &d.thresholds[i]
		if c.key != k.Threshold.Key() {
			continue
		}
		if !c.met {
			c.timer, c.met = Timer{Threshold: c.key, Since: k.Time}, true
		}
		c.timer.Active = true
	}
}
