package evict

import (
	"math"

	"github.com/evictd/evictd/agent/signal"
)

// mark is a threshold with its amounts computed as far as that can be done
// without a capacity: the exact numbers of some quantities take memory to
// compute, which the urgent half of the decision must not.
type mark struct {
	*Threshold
	key            Key
	value, reclaim amount

	// timer runs while the threshold is met. past tells that it is acted upon now;
	// waiting that file cache brought the crossing of a hard threshold, which waits
	// for that; answered that a lane's own readings have answered the crossing
	// (signal.Crossing.Answered) since the last reading.
	timer                        Timer
	met, past, waiting, answered bool
}

// amount is a Value and, where that is a quantity, what it amounts to.
type amount struct {
	signal.Value
	whole int64
}

func markOf(t *Threshold) mark {
	return mark{Threshold: t, key: t.Key(), value: amountOf(t.Value), reclaim: amountOf(t.MinReclaim)}
}

func amountOf(v signal.Value) amount {
	a := amount{Value: v}
	if !v.IsPercentage() {
		a.whole = v.Amount(0)
	}
	return a
}

// of is Value.Amount. It allocates nothing.
func (a *amount) of(capacity int64) int64 {
	if a.IsPercentage() {
		return a.Amount(capacity)
	}
	return a.whole
}

// at returns where the threshold is crossed, and target where it is no longer
// met once it has been acted upon, as Threshold.Target does.
func (m *mark) at(capacity int64) int64 { return m.value.of(capacity) }
func (m *mark) target(capacity int64) int64 {
	return saturatingAdd(m.at(capacity), m.reclaim.of(capacity))
}

// stalls reports whether a stalled reclaim, of the node or for the limit of all pods,
// is one of the signal's memory.
func stalls(s signal.Signal, node, pods bool) bool {
	return node || pods && s == signal.AllocatableMemoryAvailable
}

// growthFloor returns the growth floor for a threshold of so many bytes: larger
// where readings come from a kernel, whose per-CPU counters drift.
func (d *decision) growthFloor(threshold int64) int64 {
	if !d.in.Measured {
		return signal.DefaultGrowthFloor
	}
	return signal.GrowthFloor(d.in.Drift, threshold)
}

// follow brings a threshold up to date with what is observed of its signal now.
// Crossings are compared as they were read, without what dry run adds.
func (d *decision) follow(m *mark) {
	o := &d.observed[m.Signal]
	answered, lane := m.timer.Past, m.answered
	at := m.current(o.Capacity)
	timer := Timer{Threshold: m.key, Since: d.now}
	if m.met {
		timer = m.timer
		if timer.Crossing.Time.IsZero() {
			timer.Crossing.Time = timer.Since // kept by an evictd that did not note the reading
		}
	}
	patient := m.waitsForCache()
	m.met, m.answered = o.Below(at), false
	var crossing signal.Crossing
	if patient && o.Status == signal.Observed {
		crossing = d.readings(m.key).Follow(timer.Crossing, d.in.Observations[m.Signal].Reading(d.now), m.met)
	}
	switch {
	case !m.met:
		timer = Timer{}
	case !patient:
		timer.Crossing = signal.MemoryReading{}
		timer.Past = d.now.Sub(timer.Since) >= m.Grace
	default:
		timer.Crossing = crossing.At
		timer.Past = answered || lane || stalls(m.Signal, d.in.ReclaimStalled, d.in.PodsReclaimStalled) ||
			o.Available < at-o.Cache || crossing.Answered(d.growthFloor(at))
	}
	m.timer, m.past, m.waiting = timer, timer.Past, m.met && patient && !timer.Past
}

// current returns the amount below which the threshold is met now.
func (m *mark) current(capacity int64) int64 {
	if m.timer.Past {
		return m.target(capacity)
	}
	return m.at(capacity)
}

// waitsForCache reports whether a crossing of the threshold may wait because file
// cache brought it.
func (m *mark) waitsForCache() bool { return m.Hard() && m.Signal.IsMemory() }

// shortfall returns how far what is available, which may be negative, is below
// the target.
func shortfall(target, available int64) int64 {
	if available < 0 {
		return saturatingAdd(target, -max(available, -math.MaxInt64))
	}
	return target - available
}
