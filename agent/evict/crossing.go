package evict

import (
	"math"

	"github.com/evictd/evictd/agent/signal"
)

// thresholdCalc is a threshold with its state in a decision. Amounts that do not depend
// on a capacity are computed once, because converting some quantities to a number
// allocates, and a Table must not.
type thresholdCalc struct {
	*Threshold
	key            Key
	value, reclaim amount

	// timer is set while the threshold is met. active is set if it must be acted on now;
	// waiting if file cache caused the crossing of a hard threshold and it is not acted on
	// yet; actNow if since the last reading a lane found from its own readings that the
	// crossing must be acted on ([signal.Crossing.Answered]).
	timer                        Timer
	met, active, waiting, actNow bool
}

// amount is a Value with its number if that does not depend on a capacity.
type amount struct {
	signal.Value
	whole int64
}

func newThresholdCalc(t *Threshold) thresholdCalc {
	return thresholdCalc{Threshold: t, key: t.Key(), value: newAmount(t.Value), reclaim: newAmount(t.MinReclaim)}
}

func newAmount(v signal.Value) amount {
	a := amount{Value: v}
	if !v.IsPercentage() {
		a.whole = v.Amount(0)
	}
	return a
}

// of is Value.Amount without allocation.
func (a *amount) of(capacity int64) int64 {
	if a.IsPercentage() {
		return a.Amount(capacity)
	}
	return a.whole
}

// crossingAt returns the amount below which the threshold is crossed.
func (m *thresholdCalc) crossingAt(capacity int64) int64 { return m.value.of(capacity) }

// target returns the amount at which a threshold that was acted on is no longer met, as
// Threshold.Target does.
func (m *thresholdCalc) target(capacity int64) int64 {
	return saturatingAdd(m.crossingAt(capacity), m.reclaim.of(capacity))
}

// reclaimStalled reports whether reclaim stalls for a memory signal. node says that
// reclaim of the node stalls, pods that reclaim at the limit of all pods does, which
// concerns allocatableMemory.available only.
func reclaimStalled(s signal.Signal, node, pods bool) bool {
	return node || pods && s == signal.AllocatableMemoryAvailable
}

// growthFloor returns the least growth of memory that is not noise for a threshold, in
// bytes. It is larger for readings of a kernel, whose per-CPU counters drift.
func (d *decision) growthFloor(threshold int64) int64 {
	if !d.in.Measured {
		return signal.DefaultGrowthFloor
	}
	return signal.GrowthFloor(d.in.Drift, threshold)
}

// updateThreshold updates a threshold from the current observation of its signal.
// Crossings are computed from the readings as they were, without the usage of dry-run
// victims.
func (d *decision) updateThreshold(m *thresholdCalc) {
	o := &d.observed[m.Signal]
	wasActive, laneActs := m.timer.Past, m.actNow
	at := m.metBelow(o.Capacity)
	timer := Timer{Threshold: m.key, Since: d.now}
	mayWait := m.mayWaitForCache()
	if m.met {
		timer = m.timer
		if mayWait && timer.Crossing.Time.IsZero() {
			timer.Crossing.Time = timer.Since // from a version that did not store the reading
		}
	}
	m.met, m.actNow = o.Below(at), false
	var crossing signal.Crossing
	if mayWait && o.Status == signal.Observed {
		crossing = d.readings(m.key).Follow(timer.Crossing, d.in.Observations[m.Signal].Reading(d.now), m.met)
	}
	switch {
	case !m.met:
		timer = Timer{}
	case !mayWait:
		timer.Past = d.now.Sub(timer.Since) >= m.Grace
	default:
		timer.Crossing = crossing.At
		timer.Past = wasActive || laneActs || reclaimStalled(m.Signal, d.in.ReclaimStalled, d.in.PodsReclaimStalled) ||
			o.Available < at-o.Cache || crossing.Answered(d.growthFloor(at))
	}
	m.timer, m.active, m.waiting = timer, timer.Past, m.met && mayWait && !timer.Past
}

// metBelow returns the amount below which the threshold is met now: its target if it
// was acted on, else its value.
func (m *thresholdCalc) metBelow(capacity int64) int64 {
	if m.timer.Past {
		return m.target(capacity)
	}
	return m.crossingAt(capacity)
}

// mayWaitForCache reports whether a crossing of the threshold waits if file cache
// caused it.
func (m *thresholdCalc) mayWaitForCache() bool { return m.Hard() && m.Signal.IsMemory() }

// shortfall returns how far available, which may be negative, is below target.
func shortfall(target, available int64) int64 {
	return saturatingAdd(target, -max(available, -math.MaxInt64))
}
