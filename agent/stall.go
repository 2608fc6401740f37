package agent

import (
	"time"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/psi"
)

// Reclaim stalls when every task that could run has waited for memory for a tenth,
// 1/stallShare, of the last second, or of the time since the last look where that
// is longer ago.
const (
	stallWindow = time.Second
	stallShare  = 10
)

// stalls tells when the kernel's reclaim makes no headway, from the growth of
// the time that all tasks together waited for memory.
type stalls struct {
	proc   kernel.FS
	from   time.Time
	full   time.Duration // at from
	stalls bool
}

// check reads the pressure and returns whether reclaim stalls. Where the kernel
// does not tell it never does: the hold of a crossing by cache alone then ends
// by its time.
func (s *stalls) check(now time.Time) bool {
	pressure, err := psi.Memory(s.proc)
	if err != nil {
		return false
	}
	return s.see(now, pressure.Full)
}

func (s *stalls) see(now time.Time, full time.Duration) bool {
	passed := now.Sub(s.from)
	switch {
	case s.from.IsZero():
		s.from, s.full = now, full
	case full-s.full >= max(stallWindow, passed)/stallShare:
		s.from, s.full, s.stalls = now, full, true
	case passed >= stallWindow:
		s.from, s.full, s.stalls = now, full, false
	}
	return s.stalls
}
