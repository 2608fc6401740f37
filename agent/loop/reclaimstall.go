package loop

import (
	"errors"
	"time"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/memcg"
	"github.com/evictd/evictd/kernel/meminfo"
	"github.com/evictd/evictd/kernel/psi"
)

// Reclaim of the node stalls when all runnable tasks have waited for memory for a tenth,
// 1/stallFraction, of stallWindow (or of the time since the last check, if that is longer),
// and direct reclaim has scanned minScannedPages in that time: a task that waits for so
// long scans many times as many. Reclaim at the limit of all pods stalls when tasks have
// hit that limit minLimitHits times instead: so often a task retries one charge for which
// reclaim frees nothing (mm/memcontrol.c: MAX_RECLAIM_RETRIES).
const (
	stallWindow     = time.Second
	stallFraction   = 10
	minScannedPages = 4096
	minLimitHits    = 16
)

// stallDetector detects that the kernel's reclaim makes no progress, by the growth of the
// "full" line of memory.pressure. That includes tasks which wait because their own
// container is at its limit, where an eviction does not help. So the node's stall also
// needs direct reclaim of the node, and that of the pods' signal needs hits of the limit
// of all pods. kswapd does not count, since it works whenever caches are full.
type stallDetector struct {
	proc kernel.FS
	tree *cgroup.Hierarchy
	node stallMeter
	pods stallMeter
}

// check reads the pressure and returns whether reclaim of the node stalls. It returns false
// on a kernel without PSI: a crossing that file cache caused then waits its full time.
func (s *stallDetector) check(now time.Time) bool {
	pressure, err := psi.Memory(s.proc)
	if err != nil {
		return false
	}
	return s.node.check(now, pressure.Full, minScannedPages, func() (uint64, error) { return meminfo.DirectScanned(s.proc) })
}

// checkPods is check for the limit of kubepods below cgroupRoot. It reads files only if
// low says that the pods' signal was met at the last step. On cgroup v1, which has no
// pressure files, the pressure is that of the node.
func (s *stallDetector) checkPods(now time.Time, cgroupRoot string, low bool) bool {
	if !low {
		s.pods = stallMeter{}
		return false
	}
	kubepods, ok, err := s.tree.Kubepods(cgroupRoot)
	if err != nil || !ok {
		return false
	}
	pressure, err := psi.CgroupMemory(s.tree, kubepods.Path)
	if errors.Is(err, kernel.ErrUnavailable) {
		pressure, err = psi.Memory(s.proc)
	}
	if err != nil {
		return false
	}
	return s.pods.check(now, pressure.Full, minLimitHits, func() (uint64, error) { return memcg.LimitHits(s.tree, kubepods.Path) })
}

// stallMeter compares two counters with their values at the start of a window: the time that
// all tasks have waited, and the work that reclaim has done.
type stallMeter struct {
	from     time.Time
	full     time.Duration // at from
	work     uint64        // at from
	stalling bool
}

// check returns whether reclaim stalls. It calls work only if the result can have changed,
// and returns false if that fails.
func (m *stallMeter) check(now time.Time, full time.Duration, minWork uint64, work func() (uint64, error)) bool {
	if !m.waited(now, full) && now.Sub(m.from) < stallWindow {
		return m.stalling
	}
	done, err := work()
	if err != nil {
		return false
	}
	return m.update(now, full, done, minWork)
}

// waited reports whether tasks have waited for memory for long enough to be a stall.
func (m *stallMeter) waited(now time.Time, full time.Duration) bool {
	return full-m.full >= max(stallWindow, now.Sub(m.from))/stallFraction
}

// update takes both counters, starts a new window if the last one is over or reclaim
// stalls, and returns whether reclaim stalls.
func (m *stallMeter) update(now time.Time, full time.Duration, work, minWork uint64) bool {
	stalls := m.waited(now, full) && work-m.work >= minWork
	switch {
	case m.from.IsZero():
		m.from, m.full, m.work = now, full, work
	case stalls || now.Sub(m.from) >= stallWindow:
		m.from, m.full, m.work, m.stalling = now, full, work, stalls
	}
	return m.stalling
}
