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

// Reclaim stalls when every task that could run has waited for memory for a tenth,
// 1/stallShare, of the last second, or of the time since the last look where that
// is longer ago, and tasks have scanned leastScanned pages for the node meanwhile: a
// task that waits for so long scans many times as many. For the limit of all pods
// they have met that limit leastHits times instead: so often a task tries again for
// one charge that reclaim brings nothing for (mm/memcontrol.c: MAX_RECLAIM_RETRIES).
const (
	stallWindow  = time.Second
	stallShare   = 10
	leastScanned = 4096
	leastHits    = 16
)

// stalls tells when the kernel's reclaim makes no headway, from the growth of the
// time that all tasks together waited for memory. Tasks that wait because their own
// container is at its limit are part of that time, which an eviction can't help: so
// it counts only where tasks have looked for memory of the node to reclaim, too, or,
// for the pods' signal, where they have met the limit of all pods. kswapd does not
// count, since it works wherever caches are full.
type stalls struct {
	proc kernel.FS
	tree *cgroup.Hierarchy
	node stallMeter
	pods stallMeter
}

// check reads the pressure and returns whether reclaim of the node stalls. Where the
// kernel does not tell it never does: a crossing that file cache brought then waits
// for its time.
func (s *stalls) check(now time.Time) bool {
	pressure, err := psi.Memory(s.proc)
	if err != nil {
		return false
	}
	return s.node.check(now, pressure.Full, leastScanned, func() (uint64, error) { return meminfo.DirectScanned(s.proc) })
}

// checkPods is check for the limit of the cgroup of all pods below cgroupRoot. low says
// whether the pods' signal was met at the last step: before that nothing is read. On
// v1, which has no pressure of cgroups, the tasks are those of the node.
func (s *stalls) checkPods(now time.Time, cgroupRoot string, low bool) bool {
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
	return s.pods.check(now, pressure.Full, leastHits, func() (uint64, error) { return memcg.LimitHits(s.tree, kubepods.Path) })
}

// stallMeter compares two growing numbers with what they were: for how long all tasks
// have waited, and how much work reclaim has done.
type stallMeter struct {
	from   time.Time
	full   time.Duration // at from
	work   uint64        // at from
	stalls bool
}

// check returns whether reclaim stalls. It reads work only where the answer can have
// changed; where that fails reclaim does not stall.
func (m *stallMeter) check(now time.Time, full time.Duration, least uint64, work func() (uint64, error)) bool {
	if !m.waited(now, full) && now.Sub(m.from) < stallWindow {
		return m.stalls
	}
	done, err := work()
	if err != nil {
		return false
	}
	return m.see(now, full, done, least)
}

// waited reports whether tasks have waited for memory by the share that makes a stall.
func (m *stallMeter) waited(now time.Time, full time.Duration) bool {
	return full-m.full >= max(stallWindow, now.Sub(m.from))/stallShare
}

func (m *stallMeter) see(now time.Time, full time.Duration, work, least uint64) bool {
	stalls := m.waited(now, full) && work-m.work >= least
	switch {
	case m.from.IsZero():
		m.from, m.full, m.work = now, full, work
	case stalls || now.Sub(m.from) >= stallWindow:
		m.from, m.full, m.work, m.stalls = now, full, work, stalls
	}
	return m.stalls
}
