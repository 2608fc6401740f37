package psi

import "time"

// Growth confirms the event of a trigger by a fresh reading of its total, before
// a pod is killed for it.
//
// The kernel adds to the growth within a window a share of the growth in the
// previous window (kernel/sched/psi.c: window_update), so the stall that it reports
// lies within the last two windows. Growth therefore counts from a reading at least
// two windows old. If readings are rarer, it counts more time, and a stall that
// ended long ago may confirm an event: callers read the total about once per window.
//
// The zero value is not usable.
type Growth struct {
	condition Condition
	from      reading // at least two windows old, or the first
	last      reading
}

type reading struct {
	total time.Duration
	at    time.Time
}

// NewGrowth returns a Growth that starts from the total at the time of arming.
func NewGrowth(armed Condition, total time.Duration, now time.Time) Growth {
	first := reading{total, now}
	return Growth{condition: armed, from: first, last: first}
}

// Update adds a reading and reports whether the total has grown by at least the
// trigger's stall.
func (g *Growth) Update(total time.Duration, now time.Time) bool {
	if now.Sub(g.last.at) >= 2*g.condition.Window {
		g.from, g.last = g.last, reading{total, now}
	}
	return total-g.from.total >= g.condition.Stall
}
