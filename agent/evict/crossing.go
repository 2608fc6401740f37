package evict

import (
	"math"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// mark is a threshold with its amounts computed as far as that can be done
// without a capacity: the exact numbers of some quantities take memory to
// compute, which the urgent half of the decision must not.
type mark struct {
	*Threshold
	key            Key
	value, reclaim amount
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

// circumstances are what, beside a reading, decides whether a crossing waits.
type circumstances struct {
	now time.Time
	// stalled tells that the kernel's reclaim makes no headway, of the node or, for
	// the pods' signal, of all pods together: see stalls.
	stalled bool
	// answered tells that a lane's own readings have answered the crossing
	// (signal.Crossing.Answered).
	answered bool
	// drift is what per-CPU counters may hold back, in bytes; measured tells that
	// the readings come from a kernel, where there is such a drift.
	drift    int64
	measured bool
}

// stalls reports whether a stalled reclaim, of the node or for the limit of all pods,
// is one of the signal's memory.
func stalls(s signal.Signal, node, pods bool) bool {
	return node || pods && s == signal.AllocatableMemoryAvailable
}

// growthFloor returns the growth floor for a threshold of so many bytes.
func (c *circumstances) growthFloor(threshold int64) int64 {
	if !c.measured {
		return signal.DefaultGrowthFloor
	}
	return signal.GrowthFloor(c.drift, threshold)
}

// meets reports whether the threshold is met by what is observed now; before is
// its timer where it was met until now, else nil. If it is met, timer is the one to
// keep, and waiting tells that file cache brought the crossing of a hard threshold,
// which waits for that. read is the reading as it was taken, which o repeats with
// what dry run adds, and past are earlier ones, to which meets adds it. Both Step and
// Table decide by this function. It allocates nothing.
func (m *mark) meets(before *Timer, o, read *signal.Observation, past *signal.Readings, c *circumstances) (timer Timer, met, waiting bool) {
	answered := before != nil && before.Past
	at := m.at(o.Capacity)
	if answered {
		at = m.target(o.Capacity)
	}
	met = o.Below(at)
	patient := m.waitsForCache()
	timer = Timer{Threshold: m.key, Since: c.now}
	if before != nil {
		timer = *before
		if timer.Crossing.Time.IsZero() {
			timer.Crossing.Time = timer.Since // kept by an evictd that did not note the reading
		}
	}
	var crossing signal.Crossing
	if patient && o.Status == signal.Observed {
		crossing = past.Follow(timer.Crossing, read.Reading(c.now), met)
	}
	if !met {
		return Timer{}, false, false
	}
	if !patient {
		timer.Crossing = signal.MemoryReading{}
		timer.Past = c.now.Sub(timer.Since) >= m.Grace
		return timer, true, false
	}
	timer.Crossing = crossing.At
	timer.Past = answered || c.stalled || c.answered || o.Available < at-o.Cache || crossing.Answered(c.growthFloor(at))
	return timer, true, !timer.Past
}

// waitsForCache reports whether a crossing of the threshold may wait because file
// cache brought it.
func (m *mark) waitsForCache() bool { return m.Hard() && m.Signal.IsMemory() }

// need is how much is missing for a threshold that is past its grace, with what
// victims on their way are still expected to bring taken off.
func (m *mark) need(o *signal.Observation, underway int64) int64 {
	return shortfall(m.target(o.Capacity), o.Available) - underway
}

// shortage is what the thresholds of a group lack together: the first of them
// that victims on their way do not cover, and the largest need.
type shortage struct {
	first   *Threshold
	deficit int64
}

func (s *shortage) add(m *mark, need int64) {
	if need <= 0 {
		return
	}
	if s.first == nil || m.Signal < s.first.Signal {
		s.first = m.Threshold
	}
	s.deficit = max(s.deficit, need)
}

// shortfall returns how far what is available, which may be negative, is below
// the target.
func shortfall(target, available int64) int64 {
	if available < 0 {
		return saturatingAdd(target, -max(available, -math.MaxInt64))
	}
	return target - available
}
