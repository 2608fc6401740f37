package evict

import (
	"math"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// UnaccountedMin is the least amount of unaccounted memory, in bytes, beyond the known
// baseline, that indicates an unlisted pod.
const UnaccountedMin = 64 << 20

// Table decides between two Steps which pods to kill at once for a hard memory
// threshold. It is made from the result of the last Step and kept current with
// [Table.SetUsage] and observations. It uses the functions of Step with three differences:
// it does not enforce limits of pods, it leaves futile signals to Step, and a signal
// that could not be read in time does not end a crossing.
//
// The type Table of package hot contains one, together with what the hot path needs to
// kill the pods.
//
// A Table must be used by one goroutine at a time. After NewTable its methods do not
// allocate, so that they can run under memory pressure.
type Table struct {
	// UsageTime is when the usage in the table was read.
	UsageTime time.Time

	d          decision // with capacity for every pod to become a victim
	candidates []Ranked // the pods that the policy does not exempt
	eligible   []Ranked // the candidates that the state made eligible in the last Decide
}

// NewTable returns the table that follows from a Step with the inputs in, which
// returned state. usageTime is when the usage of the pods was read.
func NewTable(in *Inputs, state *State, usageTime time.Time) *Table {
	fresh := *in
	fresh.ActNow = nil // the Step has used them
	t := &Table{UsageTime: usageTime, d: newDecision(state, &fresh, usageTime)}
	d := &t.d
	d.fromTable = true
	d.thresholds = slices.DeleteFunc(d.thresholds, func(c thresholdCalc) bool { return !c.Signal.IsMemory() })
	for i := range d.thresholds {
		d.readings(d.thresholds[i].key)
	}
	for i := range in.Pods {
		if reason, _ := d.policy.exempt(&in.Pods[i]); reason == "" {
			t.candidates = append(t.candidates, d.policy.newRanked(&in.Pods[i], i, signal.MemoryAvailable))
		}
	}
	t.reserve()
	t.rank()
	return t
}

// Clone returns a copy that shares nothing mutable with t.
func (t *Table) Clone() *Table {
	c := *t
	c.d.State, c.d.pods, c.d.thresholds = t.d.State.Clone(), slices.Clone(t.d.pods), slices.Clone(t.d.thresholds)
	c.candidates = slices.Clone(t.candidates)
	c.reserve()
	return &c
}

// reserve allocates capacity for every pod to become a victim.
func (t *Table) reserve() {
	d, n := &t.d, len(t.d.pods)
	t.eligible = make([]Ranked, 0, len(t.candidates))
	d.Victims, d.DryRunVictims = slices.Grow(d.Victims, n), slices.Grow(d.DryRunVictims, n)
	d.Backoffs = slices.Grow(d.Backoffs, int(signal.Count))
}

// ActNow records that a lane found from its own readings that the crossing of the hard
// threshold on s must be acted on. The next decision does not wait for file cache.
func (t *Table) ActNow(s signal.Signal) {
	for i := range t.d.thresholds {
		if c := &t.d.thresholds[i]; c.Signal == s {
			c.actNow = true // has no effect if c is soft
		}
	}
}

// SetUsage updates the usage of pod i of the inputs: its working set and the part of it that
// a kill frees, in bytes.
func (t *Table) SetUsage(i int, memory, freeable int64) { t.d.pods[i].setUsage(memory, freeable) }

// HasUnlistedPod reports whether the pods' memory indicates an unlisted pod: kubepods, the
// working set of kubepods in bytes, exceeds the listed pods' memory and the unaccounted
// baseline by at least [UnaccountedMin].
func (t *Table) HasUnlistedPod(kubepods int64) bool {
	for i := range t.d.pods {
		kubepods -= t.d.pods[i].memory
	}
	return kubepods-t.d.in.UnaccountedBaseline >= UnaccountedMin
}

// HasUnsettled reports whether the table has an unsettled victim.
func (t *Table) HasUnsettled() bool {
	return slices.ContainsFunc(t.d.Victims, func(v Victim) bool { return v.Status == Unsettled })
}

// Headroom returns how far, in bytes, the nearest hard threshold is from being met.
// Below 0, one is met unless dry-run victims cover it: their usage is not added.
// Headroom does not change the table.
func (t *Table) Headroom(observed *signal.Observations) int64 {
	nearest := int64(math.MaxInt64)
	for i := range t.d.thresholds {
		c := &t.d.thresholds[i]
		o := &observed[c.Signal]
		if c.Hard() && o.Status == signal.Observed {
			nearest = min(nearest, -shortfall(c.metBelow(o.Capacity), o.Available))
		}
	}
	return nearest
}
