package lanes

import "time"

// heeded is a source whose alarms the Set takes note of. It is a value, so that
// two of the same source are equal.
type heeded struct {
	Source
	set *Set
}

// Ready implements Source.
func (h heeded) Ready(now time.Time) (Raise, bool) {
	r, raised := h.Source.Ready(now)
	if !raised || !h.set.heed(&r, now) {
		return Raise{}, false
	}
	return r, true
}

// heed takes note of an alarm, and reports whether it is to be heard.
func (s *Set) heed(r *Raise, now time.Time) bool {
	for _, e := range s.entries {
		if e.name != r.Lane {
			continue
		}
		if e.fault.deaf() {
			return false
		}
		at := int64(now.Sub(s.start))
		e.raised.Add(1)
		e.heardAt.Store(at)
		if r.Mark != 0 {
			e.heard[r.Mark].Store(at)
		}
		if e.name == Memcg {
			s.poke() // a mark that is crossed has what is armed above the usage follow it
		}
		return true
	}
	return true
}

// Add implements Waiter for the lanes: their sources are heard through it.
func (s *Set) Add(source Source) error { return s.o.Wait.Add(heeded{source, s}) }

// Remove implements Waiter.
func (s *Set) Remove(source Source) error { return s.o.Wait.Remove(heeded{source, s}) }

// Raise implements Waiter.
func (s *Set) Raise(r Raise) error {
	if !s.heed(&r, time.Now()) {
		return nil
	}
	return s.o.Wait.Raise(r)
}
