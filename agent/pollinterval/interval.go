package pollinterval

import (
	"math"
	"time"
)

// rateHalfLife is the half-life of the fastest rate seen. With 1 min, a rate has no
// effect after a few minutes, and a burst of writes a minute ago still shortens the
// interval.
const rateHalfLife = time.Minute

// Interval computes the polling interval for one quantity. Its exported fields must not
// change after first use.
type Interval struct {
	// MinRate is the minimum rate of fall that is assumed, in units per second.
	MinRate float64
	// Min and Max are the minimum and maximum interval. BelowAll is the interval while
	// the quantity is below every threshold, in which its recovery is noticed.
	Min, Max, BelowAll time.Duration

	readAt      time.Time // zero before the first reading
	available   int64
	fastestRate float64 // units per second, decaying with rateHalfLife
}

// Observe records a reading of the quantity.
func (i *Interval) Observe(now time.Time, available int64) {
	if !i.readAt.IsZero() && now.After(i.readAt) {
		elapsed := now.Sub(i.readAt)
		i.fastestRate *= math.Exp2(-elapsed.Seconds() / rateHalfLife.Seconds())
		if lost := float64(i.available - available); lost > 0 {
			i.fastestRate = max(i.fastestRate, lost/elapsed.Seconds())
		}
	}
	i.readAt, i.available = now, available
}

// Reset removes all readings, so that i can be used for another quantity.
func (i *Interval) Reset() { i.readAt, i.available, i.fastestRate = time.Time{}, 0, 0 }

// Next returns the interval until the next reading: half the time in which the quantity
// could fall to the next threshold at the fastest rate seen. thresholds may be in any
// order.
func (i *Interval) Next(thresholds []int64) time.Duration {
	next, found := int64(0), false
	for _, t := range thresholds {
		if t <= i.available && (t > next || !found) {
			next, found = t, true
		}
	}
	switch {
	case len(thresholds) == 0:
		return i.Max
	case !found:
		return i.BelowAll
	}
	seconds := float64(i.available-next) / (2 * max(i.MinRate, i.fastestRate))
	return min(max(time.Duration(seconds*float64(time.Second)), i.Min), i.Max)
}
