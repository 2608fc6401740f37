package lanes

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/memcg"
)

// memcgLane is the lane of cgroup v1 notifications: usage thresholds and critical reclaim,
// on the root and on kubepods.
//
// A cgroup v1 threshold counts all file cache as usage. It is therefore armed at the
// capacity less the threshold's value, plus the inactive file cache of the moment, and
// follows that.
//
// While a hard threshold is crossed, the crossing may wait for other memory to grow
// (signal.Crossing). A second threshold is then armed at the usage at which other memory
// has grown enough, if all growth is other memory. It is armed again when it has fired or
// the usage has fallen.
type memcgLane struct {
	o    memory.Options
	wait Waiter

	root, pods  armedCgroup    // pods: on kubepods
	podsFailure partialFailure // of pods
}

// armedCgroup is a cgroup with what is armed on it.
type armedCgroup struct {
	cgroup   *cgroup.Cgroup
	armed    []*armedThreshold
	growth   []*armedThreshold // for hard thresholds that are crossed
	pressure *pressureNotice
}

// allArmed reports whether all wanted thresholds are armed on the cgroup, at whatever
// usage.
func (g *armedCgroup) allArmed(wanted []memoryThreshold) bool {
	if g.cgroup == nil || g.pressure == nil || len(g.armed) != len(wanted) {
		return false
	}
	return !slices.ContainsFunc(wanted, func(th memoryThreshold) bool {
		return !slices.ContainsFunc(g.armed, func(a *armedThreshold) bool { return a.id == th.id && !a.broken.Load() })
	})
}

// open implements lane.
func (l *memcgLane) open(now time.Time, in *laneInput) error {
	root, err := l.o.Hierarchy.Open("/")
	if err != nil {
		return err
	}
	l.root.cgroup = root
	// Probe with a threshold that is never reached.
	const unreachable = 1 << 62
	probe, err := memcg.ArmUsage(l.o.Hierarchy, root, unreachable)
	if err != nil {
		return err
	}
	if err := probe.Close(); err != nil {
		return err
	}
	return l.reconcile(now, in)
}

// reconcile implements lane. A failure of kubepods does not affect the root. While idle,
// the thresholds are not moved: reading memory.stat for their positions is slow, as it
// flushes the counters of all CPUs (mm/memcontrol-v1.c: memcg1_stat_format).
func (l *memcgLane) reconcile(now time.Time, in *laneInput) error {
	atRoot, atPods := l.wanted(in, signal.MemoryAvailable), l.wanted(in, signal.AllocatableMemoryAvailable)
	if !in.idle || !l.root.allArmed(atRoot) {
		if err := l.arm(&l.root, atRoot, now); err != nil {
			return err
		}
	}
	if l.podsFailure.backingOff(now) || in.idle && l.pods.allArmed(atPods) && l.pods.cgroup.Check() == nil {
		return nil
	}
	err := l.reconcilePods(now, atPods)
	if err != nil {
		err = errors.Join(err, l.drop(&l.pods))
	}
	l.podsFailure.record(now, err)
	return nil
}

func (l *memcgLane) reconcilePods(now time.Time, wanted []memoryThreshold) error {
	if err := l.followPods(); err != nil || l.pods.cgroup == nil {
		return err
	}
	err := l.arm(&l.pods, wanted, now)
	if errors.Is(err, cgroup.ErrGone) {
		return l.drop(&l.pods)
	}
	return err
}

// wanted returns the thresholds of a signal.
func (l *memcgLane) wanted(in *laneInput, of signal.Signal) []memoryThreshold {
	return slices.DeleteFunc(in.memoryThresholds(), func(th memoryThreshold) bool { return th.id.Signal() != of })
}

// followPods opens the current kubepods cgroup.
func (l *memcgLane) followPods() error {
	g := &l.pods
	if g.cgroup != nil && g.cgroup.Check() == nil {
		return nil
	}
	if err := l.drop(g); err != nil {
		return err
	}
	opened, err := openKubepods(l.o.Hierarchy, l.o.CgroupRoot)
	g.cgroup = opened
	return err
}

// openKubepods opens the current kubepods cgroup; nil if there is none.
func openKubepods(h *cgroup.Hierarchy, cgroupRoot string) (*cgroup.Cgroup, error) {
	found, ok, err := h.Kubepods(cgroupRoot)
	if err != nil || !ok {
		return nil, err
	}
	opened, err := h.Open(found.Path)
	if errors.Is(err, cgroup.ErrGone) {
		return nil, nil
	}
	return opened, err
}

// arm arms what is wanted on a cgroup at the current positions.
func (l *memcgLane) arm(g *armedCgroup, wanted []memoryThreshold, now time.Time) error {
	for _, a := range g.armed {
		a.firesRead = a.fires.Load()
	}
	var used cgroup.Memory
	if err := g.cgroup.ReadMemory(&used); err != nil {
		return err
	}
	for _, a := range g.armed {
		a.update(used.Usage)
	}
	if g.pressure == nil {
		notice, err := memcg.ArmPressure(l.o.Hierarchy, g.cgroup, memcg.Critical, memcg.Local)
		if err != nil {
			return err
		}
		pressure := &pressureNotice{Pressure: notice}
		if err := l.wait.Add(pressure); err != nil {
			return errors.Join(err, notice.Close())
		}
		g.pressure = pressure
	}
	// Thresholds that are not wanted any more.
	for _, a := range slices.Clone(g.armed) {
		if !slices.ContainsFunc(wanted, func(th memoryThreshold) bool { return th.id == a.id }) {
			if err := l.disarm(g, a); err != nil {
				return err
			}
		}
	}
	for _, th := range wanted {
		if err := l.armAt(g, th, &used, now); err != nil {
			return err
		}
	}
	return l.armGrowth(g, wanted, &used)
}

// armGrowth arms, for each hard threshold that is crossed, the usage at which other memory
// may have grown enough to answer the crossing. An armed one stays until it has fired or
// the usage has fallen.
func (l *memcgLane) armGrowth(g *armedCgroup, wanted []memoryThreshold, used *cgroup.Memory) error {
	var next []*armedThreshold
	before := g.growth
	err := func() error {
		if l.o.CountCache {
			return nil // no crossing waits
		}
		for _, th := range wanted {
			if !th.id.Hard() || used.Usage < l.threshold(th, used) {
				continue
			}
			at := used.Usage + uint64(signal.GrowthFloor(l.o.Drift, th.available))
			valid := func(a *armedThreshold) bool {
				return a.id == th.id && a.fires.Load() == 0 && !a.broken.Load() && a.Bytes() <= at
			}
			if i := slices.IndexFunc(before, valid); i >= 0 {
				next = append(next, before[i])
				continue
			}
			threshold, err := memcg.ArmUsage(l.o.Hierarchy, g.cgroup, at)
			if err != nil {
				return err
			}
			a := &armedThreshold{Threshold: threshold, id: th.id}
			if err := l.wait.Add(a); err != nil {
				return errors.Join(err, threshold.Close())
			}
			next = append(next, a)
		}
		return nil
	}()
	g.growth = next
	for _, a := range before {
		if !slices.Contains(next, a) {
			err = errors.Join(err, l.wait.Remove(a), a.Close())
		}
	}
	return err
}

// armAt arms a threshold at its current position, before it disarms the old one.
func (l *memcgLane) armAt(g *armedCgroup, th memoryThreshold, used *cgroup.Memory, now time.Time) error {
	bytes := l.threshold(th, used)
	var old *armedThreshold
	if i := slices.IndexFunc(g.armed, func(a *armedThreshold) bool { return a.id == th.id }); i >= 0 {
		old = g.armed[i]
		if old.broken.Load() {
			return errors.New("its eventfd can't be read")
		}
		if !mustMove(old.Bytes(), bytes, used.Usage, old.alarmed()) {
			return nil
		}
	}
	threshold, err := memcg.ArmUsage(l.o.Hierarchy, g.cgroup, bytes)
	if err != nil {
		return err
	}
	next := &armedThreshold{Threshold: threshold, id: th.id}
	if used.Usage < bytes {
		next.lastAbove = now
	}
	if err := l.wait.Add(next); err != nil {
		return errors.Join(err, threshold.Close())
	}
	g.armed = append(g.armed, next)
	raised := false
	if old != nil {
		raised = old.alarmed() && old.Bytes() >= bytes // an alarm of a lower position was for less
		if err := l.disarm(g, old); err != nil {
			return err
		}
	}
	// The kernel does not notify of a usage that is above the new threshold already.
	if err := g.cgroup.ReadMemory(used); err != nil {
		return err
	}
	if used.Usage < bytes {
		return nil
	}
	next.fires.Add(1)
	if raised {
		return nil
	}
	return l.wait.Raise(Alarm{Lane: Memcg, Threshold: th.id, LastAbove: next.lastAbove, Seen: now})
}

// threshold returns the usage at which as much is available as the threshold says.
func (l *memcgLane) threshold(th memoryThreshold, used *cgroup.Memory) uint64 {
	free := used.InactiveFile
	if l.o.CountCache {
		free += used.ActiveFile
	}
	return uint64(max(0, th.capacity-th.available)) + free
}

// A threshold moves when the file cache has changed by stepShare of the distance between
// usage and threshold, at least minStep and at most maxStep, in bytes.
const (
	minStep   = 4 << 20
	maxStep   = 256 << 20
	stepShare = 16
)

// mustMove reports whether an armed threshold has to move: one that is far away may be less
// exact, and one that has fired too early moves at once.
func mustMove(from, to, usage uint64, fired bool) bool {
	moved := max(to, from) - min(to, from)
	if fired && usage < to {
		return moved > 0
	}
	distance := max(to, usage) - min(to, usage)
	return moved >= min(max(distance/stepShare, minStep), maxStep)
}

func (l *memcgLane) disarm(g *armedCgroup, a *armedThreshold) error {
	g.armed = slices.DeleteFunc(g.armed, func(b *armedThreshold) bool { return a == b })
	return errors.Join(l.wait.Remove(a), a.Close())
}

// drop closes a cgroup with all that is armed on it.
func (l *memcgLane) drop(g *armedCgroup) error {
	var errs []error
	for _, a := range slices.Clone(g.armed) {
		errs = append(errs, l.disarm(g, a))
	}
	for _, a := range g.growth {
		errs = append(errs, l.wait.Remove(a), a.Close())
	}
	if g.pressure != nil {
		errs = append(errs, l.wait.Remove(g.pressure), g.pressure.Close())
	}
	if g.cgroup != nil {
		errs = append(errs, g.cgroup.Close())
	}
	*g = armedCgroup{}
	return errors.Join(errs...)
}

// covers implements coverer. The tolerance is for charges that CPUs batch per cgroup, and
// for file cache that changes between two reconciles.
func (l *memcgLane) covers(id signal.ThresholdID) (tolerance int64, ok bool) {
	for _, g := range []*armedCgroup{&l.root, &l.pods} {
		if slices.ContainsFunc(g.armed, func(a *armedThreshold) bool { return a.id == id }) {
			return memcgTolerance, true
		}
	}
	return 0, false
}

// memcgTolerance is how many bytes a threshold of a healthy lane may be wrong by.
const memcgTolerance = 64 << 20

// partialFailure implements partialFailer.
func (l *memcgLane) partialFailure() string { return l.podsFailure.describe(podsPart) }

// close implements lane.
func (l *memcgLane) close() error {
	l.podsFailure = partialFailure{}
	return errors.Join(l.drop(&l.root), l.drop(&l.pods))
}

// armedThreshold is a usage threshold that is polled.
type armedThreshold struct {
	*memcg.Threshold
	id        signal.ThresholdID
	lastAbove time.Time // when it was armed, if it was not crossed then
	fires     atomic.Uint64
	broken    atomic.Bool
	// Used by the Set's goroutine: fires before it read the usage, and those of them whose
	// crossing is over.
	firesRead, firesOver uint64
}

// update records a usage that was read after firesRead. If it is below the threshold,
// earlier fires are over.
func (a *armedThreshold) update(usage uint64) {
	if usage < a.Bytes() {
		a.firesOver = a.firesRead
	}
}

// alarmed reports whether it has fired and the usage has not been below since.
func (a *armedThreshold) alarmed() bool { return a.fires.Load() != a.firesOver }

// Events implements Source.
func (a *armedThreshold) Events() uint32 { return unix.EPOLLIN }

// Ready implements Source. The kernel notifies of both directions; the reading that
// confirms the alarm shows which it was.
func (a *armedThreshold) Ready(now time.Time) (Alarm, bool) {
	n, err := a.Drain()
	if err != nil {
		a.broken.Store(true)
		return Alarm{}, false
	}
	if n == 0 {
		return Alarm{}, false
	}
	a.fires.Add(1)
	return Alarm{Lane: Memcg, Threshold: a.id, LastAbove: a.lastAbove, Seen: now}, true
}

// pressureNotice is a notification of critical reclaim that is polled: a threshold may
// have been crossed. It is of reclaim for the cgroup itself, that is the node or the limit
// of the pods, and not for the limit of a container below it (mm/vmpressure.c:
// PRESSURE_LOCAL).
type pressureNotice struct {
	*memcg.Pressure
	last time.Time // last alarm; used by the waiting thread
}

// Events implements Source.
func (p *pressureNotice) Events() uint32 { return unix.EPOLLIN }

// Ready implements Source.
func (p *pressureNotice) Ready(now time.Time) (Alarm, bool) {
	n, err := p.Drain()
	if err != nil || n == 0 || now.Sub(p.last) < cgroupAlarmInterval {
		return Alarm{}, false
	}
	p.last = now
	return Alarm{Lane: Memcg, Seen: now}, true
}
