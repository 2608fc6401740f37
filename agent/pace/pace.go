package pace

import (
	"math"
	"time"
)

// forgets is how long it takes for half of the fastest rate to be forgotten.
const forgets = time.Minute

// Pace is the pace for one quantity. Its fields are not changed after it was
// used first.
type Pace struct {
	// Least is the rate, in units a second, that the quantity is believed to fall
	// at whatever was seen.
	Least float64
	// Fastest and Slowest bound the time between two looks; Low is that below
	// every threshold, so that what comes back is seen.
	Fastest, Slowest, Low time.Duration

	at      time.Time // of the last look; zero for none
	left    int64
	learned float64 // the fastest rate seen lately
}

// Saw takes what was left at a time.
func (p *Pace) Saw(now time.Time, left int64) {
	if !p.at.IsZero() && now.After(p.at) {
		elapsed := now.Sub(p.at)
		p.learned *= math.Exp2(-elapsed.Seconds() / forgets.Seconds())
		if lost := float64(p.left - left); lost > 0 {
			p.learned = max(p.learned, lost/elapsed.Seconds())
		}
	}
	p.at, p.left = now, left
}

// Forget begins anew, for another quantity.
func (p *Pace) Forget() { p.at, p.left, p.learned = time.Time{}, 0, 0 }

// Next returns how long the next look may wait: half the time in which the
// quantity could fall to the next mark at the fastest rate. marks are where
// something happens, in any order.
func (p *Pace) Next(marks []int64) time.Duration {
	next, any := int64(0), false
	for _, m := range marks {
		if m <= p.left && (m > next || !any) {
			next, any = m, true
		}
	}
	switch {
	case len(marks) == 0:
		return p.Slowest
	case !any:
		return p.Low
	}
	seconds := float64(p.left-next) / (2 * max(p.Least, p.learned))
	return min(max(time.Duration(seconds*float64(time.Second)), p.Fastest), p.Slowest)
}
