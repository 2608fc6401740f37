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

// meets reports whether the threshold is met, by what is observed now and by
// what the timer says of before, nil for not met then; and if so, the timer of
// now, and whether active file cache alone explains the crossing, which waits
// for that. It allocates nothing.
func (m *mark) meets(before *Timer, o *signal.Observation, stalled bool, now time.Time) (timer Timer, met, held bool) {
	past := before != nil && before.Past
	at := m.at(o.Capacity)
	if past {
		at = m.target(o.Capacity)
	}
	if !o.Below(at) {
		return Timer{}, false, false
	}
	timer = Timer{Threshold: m.key, Since: now}
	if before != nil {
		timer.Since = before.Since
	}
	grace := m.Grace
	cached := m.Hard() && !past && o.Cache > 0 && o.Available+o.Cache >= at && !stalled
	if cached {
		grace = cacheHold
	}
	timer.Past = now.Sub(timer.Since) >= grace
	return timer, true, cached && !timer.Past
}

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
