package psi

import "time"

// Growth bears out what a trigger says by the total that it watches: a fresh
// reading, before somebody is killed for it.
//
// To the growth within its window the kernel adds a share of the one before
// (kernel/sched/psi.c: window_update), so the stall that it reports lies within
// the last two windows. Growth counts from a reading at least that old. When
// readings are rare, more time counts, and stalls that have long ended may bear
// out an event: whoever keeps a trigger reads its total every window or so.
//
// The zero value is not usable. A Growth is a value, and knows no clock.
type Growth struct {
	condition Condition
	from      reading // at least two windows old, or the first
	last      reading
}

type reading struct {
	total time.Duration
	at    time.Time
}

// NewGrowth begins with the total when the trigger was armed.
func NewGrowth(armed Condition, total time.Duration, now time.Time) Growth {
	first := reading{total, now}
	return Growth{condition: armed, from: first, last: first}
}

// Read takes the next reading, and reports whether the total has grown by the
// trigger's stall or more.
func (g *Growth) Read(total time.Duration, now time.Time) bool {
	if now.Sub(g.last.at) >= 2*g.condition.Window {
		g.from, g.last = g.last, reading{total, now}
	}
	return total-g.from.total >= g.condition.Stall
}
