package loop

import (
	"time"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/meminfo"
	"github.com/evictd/evictd/kernel/psi"
)

// Reclaim stalls when every task that could run has waited for memory for a tenth,
// 1/stallShare, of the last second, or of the time since the last look where that
// is longer ago, and tasks have scanned leastScanned pages for the node meanwhile: a
// task that waits for so long scans many times as many.
const (
	stallWindow  = time.Second
	stallShare   = 10
	leastScanned = 4096
)

// stalls tells when the kernel's reclaim of the node makes no headway, from the
// growth of the time that all tasks together waited for memory. Tasks that wait
// because their own container is at its limit are part of that time, which the node
// can't help: so it counts only where tasks have looked for memory of the node to
// reclaim, too. kswapd does not count, since it works wherever caches are full.
type stalls struct {
	proc   kernel.FS
	from   time.Time
	full   time.Duration // at from
	pages  uint64        // that reclaim of the node had scanned at from
	stalls bool
}

// check reads the pressure and returns whether reclaim stalls. Where the kernel does
// not tell it never does: a crossing that file cache brought then waits for its time.
func (s *stalls) check(now time.Time) bool {
	pressure, err := psi.Memory(s.proc)
	if err != nil {
		return false
	}
	if !s.waited(now, pressure.Full) && now.Sub(s.from) < stallWindow {
		return s.stalls // nothing can have changed
	}
	pages, err := meminfo.DirectScanned(s.proc)
	if err != nil {
		return false
	}
	return s.see(now, pressure.Full, pages)
}

// waited reports whether tasks have waited for memory by the share that makes a stall.
func (s *stalls) waited(now time.Time, full time.Duration) bool {
	return full-s.full >= max(stallWindow, now.Sub(s.from))/stallShare
}

func (s *stalls) see(now time.Time, full time.Duration, pages uint64) bool {
	stalls := s.waited(now, full) && pages-s.pages >= leastScanned
	switch {
	case s.from.IsZero():
		s.from, s.full, s.pages = now, full, pages
	case stalls || now.Sub(s.from) >= stallWindow:
		s.from, s.full, s.pages, s.stalls = now, full, pages, stalls
	}
	return s.stalls
}
