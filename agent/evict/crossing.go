package evict

import (
	"math"

	"github.com/evictd/evictd/agent/signal"
)

// thresholdCalc is a threshold with its state in a decision. Amounts that do not depend
// on a capacity are computed once, because converting some quantities to a number
// allocates, which a Table must not do.
type thresholdCalc struct {
	*Threshold
	key            ThresholdKey
	value, reclaim amount

	timer  Timer // set while the threshold is met
	met    bool
	active bool // the threshold must be acted on now
	// waiting is set if file cache caused the crossing of a hard threshold and it is not
	// acted on yet.
	waiting bool
	// actNow is set if since the last reading a lane found from its own readings that the
	// crossing must be acted on ([signal.Crossing.ActNow]).
	actNow bool
	// leftToKubelet is set while the threshold is met and the kubelet evicts for it instead:
	// then active is not set.
	leftToKubelet bool
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
func (c *thresholdCalc) crossingAt(capacity int64) int64 { return c.value.of(capacity) }

// target returns the amount at which a threshold that was acted on is no longer met, as
// Threshold.Target does.
func (c *thresholdCalc) target(capacity int64) int64 {
	return saturatingAdd(c.crossingAt(capacity), c.reclaim.of(capacity))
}

// reclaimStalled reports whether reclaim stalls for a memory signal. node is set if
// reclaim of the node stalls, pods if reclaim at the memory limit of all pods does, which
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
	return signal.GrowthFloor(d.in.CounterDrift, threshold)
}

// updateThreshold updates a threshold from the current observation of its signal.
// Crossings are computed from the readings without the usage of dry-run victims.
func (d *decision) updateThreshold(c *thresholdCalc) {
	o := &d.observed[c.Signal]
	wasActive, laneActs := c.timer.Active, c.actNow
	limit := c.metBelow(o.Capacity)
	timer := Timer{Threshold: c.key, Since: d.now}
	mayWait := c.mayWaitForCache()
	if c.met {
		timer = c.timer
		if mayWait && timer.Crossing.Time.IsZero() {
			// A hot kill started the timer, or a version that did not store the reading.
			timer.Crossing.Time = timer.Since
		}
	}
	c.met, c.actNow = o.Below(limit), false
	c.leftToKubelet = c.met && d.evictedByKubelet(c, timer.Since)
	var crossing signal.Crossing
	if mayWait && o.Status == signal.Observed {
		readings := d.readings(c.key)
		readings.Measured = d.in.Measured
		crossing = readings.Add(timer.Crossing, d.in.Observations[c.Signal].Reading(d.now), c.met)
	}
	switch {
	case !c.met:
		timer = Timer{}
	case !mayWait:
		timer.Active = !c.leftToKubelet && d.now.Sub(timer.Since) >= c.Grace
	default:
		timer.Crossing = crossing.First
		timer.Active = wasActive || laneActs || d.mustActNow(c, &crossing, limit)
	}
	c.timer, c.active, c.waiting = timer, timer.Active, c.met && mayWait && !timer.Active
}

// mustActNow reports whether a crossing of a hard memory threshold, which is met below
// limit, does not wait: reclaim stalls, the signal would be below limit even if file
// cache counted as available, or the readings of the crossing show that other memory
// grew or that 10 s have passed.
func (d *decision) mustActNow(c *thresholdCalc, crossing *signal.Crossing, limit int64) bool {
	o := &d.observed[c.Signal]
	return reclaimStalled(c.Signal, d.in.ReclaimStalled, d.in.PodsReclaimStalled) ||
		o.Available < limit-o.Cache || crossing.ActNow(d.growthFloor(limit))
}

// metBelow returns the amount below which the threshold is met now: its target if it
// was acted on, else its value.
func (c *thresholdCalc) metBelow(capacity int64) int64 {
	if c.timer.Active {
		return c.target(capacity)
	}
	return c.crossingAt(capacity)
}

// mayWaitForCache reports whether a crossing of the threshold waits if file cache
// caused it.
func (c *thresholdCalc) mayWaitForCache() bool { return c.Hard() && c.Signal.IsMemory() }

// shortfall returns how far available, which may be negative, is below target.
func shortfall(target, available int64) int64 {
	return saturatingAdd(target, -max(available, -math.MaxInt64))
}
