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

// usage is the lane of cgroup v1's notices: thresholds of usage on the root and on
// kubepods, and the notice of critical reclaim on both.
//
// A threshold is of usage, with all file cache in it. So it stands at what may be
// used, the capacity without the mark, and at the inactive file pages of the
// moment above that, and moves with them.
//
// While a hard mark is crossed, the crossing may wait for other memory to grow
// (signal.Crossing): a second threshold then stands where it has, if all that is used
// from now on is other memory. It is set again once it has fired or the usage has
// fallen.
type usage struct {
	o    memory.Options
	wait Waiter

	groups   [2]group // the root, kubepods
	troubled trouble  // with the latter
}

// group is a cgroup with what is armed on it.
type group struct {
	cgroup   *cgroup.Cgroup
	armed    []*armed
	growth   []*armed // of hard marks that are crossed
	pressure *critical
}

// stands reports whether all that is wanted is armed on the cgroup, if not where it
// should be.
func (g *group) stands(wanted []level) bool {
	if g.cgroup == nil || g.pressure == nil || len(g.armed) != len(wanted) {
		return false
	}
	return !slices.ContainsFunc(wanted, func(lv level) bool {
		return !slices.ContainsFunc(g.armed, func(a *armed) bool { return a.mark == lv.mark && !a.broken.Load() })
	})
}

// open implements lane.
func (l *usage) open(now time.Time, w *watched) error {
	root, err := l.o.Hierarchy.Open("/")
	if err != nil {
		return err
	}
	l.groups[0].cgroup = root
	// A threshold that is never reached tells whether this kernel has any.
	const unreachable = 1 << 62
	try, err := memcg.ArmUsage(l.o.Hierarchy, root, unreachable)
	if err != nil {
		return err
	}
	if err := try.Close(); err != nil {
		return err
	}
	return l.tend(now, w)
}

// tend implements lane. What is amiss with kubepods is not with the root. In calm
// the thresholds stay where they are: the files that tell where they should be are
// of the slowest (mm/memcontrol-v1.c: memcg1_stat_format flushes what all CPUs have
// counted).
func (l *usage) tend(now time.Time, w *watched) error {
	atRoot, atPods := l.wanted(w, signal.MemoryAvailable), l.wanted(w, signal.AllocatableMemoryAvailable)
	if !w.calm || !l.groups[0].stands(atRoot) {
		if err := l.arm(&l.groups[0], atRoot, now); err != nil {
			return err
		}
	}
	if l.troubled.waits(now) || w.calm && l.groups[1].stands(atPods) && l.groups[1].cgroup.Check() == nil {
		return nil
	}
	err := l.tendPods(now, atPods)
	if err != nil {
		err = errors.Join(err, l.drop(&l.groups[1]))
	}
	l.troubled.set(now, err)
	return nil
}

func (l *usage) tendPods(now time.Time, wanted []level) error {
	if err := l.follow(); err != nil || l.groups[1].cgroup == nil {
		return err
	}
	err := l.arm(&l.groups[1], wanted, now)
	if errors.Is(err, cgroup.ErrGone) {
		return l.drop(&l.groups[1])
	}
	return err
}

// wanted returns what should be armed for a signal.
func (l *usage) wanted(w *watched, of signal.Signal) []level {
	return slices.DeleteFunc(w.levels(), func(lv level) bool { return lv.mark.Signal() != of })
}

// follow opens the pods' cgroup that is there now.
func (l *usage) follow() error {
	g := &l.groups[1]
	if g.cgroup != nil && g.cgroup.Check() == nil {
		return nil
	}
	if err := l.drop(g); err != nil {
		return err
	}
	found, ok, err := l.o.Hierarchy.Kubepods(l.o.CgroupRoot)
	if err != nil || !ok {
		return err
	}
	opened, err := l.o.Hierarchy.Open(found.Path)
	if errors.Is(err, cgroup.ErrGone) {
		return nil
	}
	g.cgroup = opened
	return err
}

// arm brings what is armed on a cgroup to where it should be.
func (l *usage) arm(g *group, wanted []level, now time.Time) error {
	for _, a := range g.armed {
		a.known = a.fires.Load()
	}
	var used cgroup.Memory
	if err := g.cgroup.ReadMemory(&used); err != nil {
		return err
	}
	for _, a := range g.armed {
		a.see(used.Usage)
	}
	if g.pressure == nil {
		notice, err := memcg.ArmPressure(l.o.Hierarchy, g.cgroup, memcg.Critical, memcg.Local)
		if err != nil {
			return err
		}
		pressure := &critical{Pressure: notice}
		if err := l.wait.Add(pressure); err != nil {
			return errors.Join(err, notice.Close())
		}
		g.pressure = pressure
	}
	// What is no threshold any more goes.
	for _, a := range slices.Clone(g.armed) {
		if !slices.ContainsFunc(wanted, func(lv level) bool { return lv.mark == a.mark }) {
			if err := l.disarm(g, a); err != nil {
				return err
			}
		}
	}
	for _, lv := range wanted {
		if err := l.armAt(g, lv, &used, now); err != nil {
			return err
		}
	}
	return l.armGrowth(g, wanted, &used)
}

// armGrowth arms, for each hard mark that is crossed, the usage at which other memory
// may have grown enough to answer the crossing. What has not fired stays, unless the
// usage has fallen since.
func (l *usage) armGrowth(g *group, wanted []level, used *cgroup.Memory) error {
	var next []*armed
	before := g.growth
	err := func() error {
		if l.o.CountCache {
			return nil // no crossing waits
		}
		for _, lv := range wanted {
			if !lv.mark.Hard() || used.Usage < l.threshold(lv, used) {
				continue
			}
			at := used.Usage + uint64(signal.GrowthFloor(l.o.Drift, lv.available))
			stands := func(a *armed) bool {
				return a.mark == lv.mark && a.fires.Load() == 0 && !a.broken.Load() && a.Bytes() <= at
			}
			if i := slices.IndexFunc(before, stands); i >= 0 {
				next = append(next, before[i])
				continue
			}
			threshold, err := memcg.ArmUsage(l.o.Hierarchy, g.cgroup, at)
			if err != nil {
				return err
			}
			a := &armed{Threshold: threshold, mark: lv.mark}
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

// armAt arms a mark, the new threshold before the old one is dropped.
func (l *usage) armAt(g *group, lv level, used *cgroup.Memory, now time.Time) error {
	bytes := l.threshold(lv, used)
	var old *armed
	if i := slices.IndexFunc(g.armed, func(a *armed) bool { return a.mark == lv.mark }); i >= 0 {
		old = g.armed[i]
		if old.broken.Load() {
			return errors.New("its eventfd can't be read")
		}
		if !moved(old.Bytes(), bytes, used.Usage, old.fired()) {
			return nil
		}
	}
	threshold, err := memcg.ArmUsage(l.o.Hierarchy, g.cgroup, bytes)
	if err != nil {
		return err
	}
	next := &armed{Threshold: threshold, mark: lv.mark}
	if used.Usage < bytes {
		next.lastAbove = now
	}
	if err := l.wait.Add(next); err != nil {
		return errors.Join(err, threshold.Close())
	}
	g.armed = append(g.armed, next)
	told := false
	if old != nil {
		told = old.fired() && old.Bytes() >= bytes // one that stood lower has told of less
		if err := l.disarm(g, old); err != nil {
			return err
		}
	}
	// What is above the new threshold already is not told.
	if err := g.cgroup.ReadMemory(used); err != nil {
		return err
	}
	if used.Usage < bytes {
		return nil
	}
	next.fires.Add(1)
	if told {
		return nil
	}
	return l.wait.Raise(Raise{Lane: Memcg, Mark: lv.mark, LastAbove: next.lastAbove, Seen: now})
}

// threshold returns the usage at which so much is available as a mark says.
func (l *usage) threshold(lv level, used *cgroup.Memory) uint64 {
	free := used.InactiveFile
	if l.o.CountCache {
		free += used.ActiveFile
	}
	return uint64(max(0, lv.capacity-lv.available)) + free
}

// The least and the most that the file cache may move before a threshold
// follows, in bytes, and the share of the distance to it.
const (
	leastStep = 4 << 20
	mostStep  = 256 << 20
	stepShare = 16
)

// moved reports whether a threshold has to follow from one place to another: what
// is far away may be less exact. What has fired too early follows at once.
func moved(from, to, usage uint64, fired bool) bool {
	moved := max(to, from) - min(to, from)
	if fired && usage < to {
		return moved > 0
	}
	distance := max(to, usage) - min(to, usage)
	return moved >= min(max(distance/stepShare, leastStep), mostStep)
}

func (l *usage) disarm(g *group, a *armed) error {
	g.armed = slices.DeleteFunc(g.armed, func(b *armed) bool { return a == b })
	return errors.Join(l.wait.Remove(a), a.Close())
}

// drop closes a cgroup with all that is armed on it.
func (l *usage) drop(g *group) error {
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
	*g = group{}
	return errors.Join(errs...)
}

// covers implements coverer. A CPU may hold back what it has charged in each cgroup,
// and file cache moves between two looks at it.
func (l *usage) covers(m signal.Mark) (slack int64, ok bool) {
	for i := range l.groups {
		if slices.ContainsFunc(l.groups[i].armed, func(a *armed) bool { return a.mark == m }) {
			return usageSlack, true
		}
	}
	return 0, false
}

// usageSlack is what a threshold may be wrong by where nothing is amiss.
const usageSlack = 64 << 20

// note implements noter.
func (l *usage) note() string { return l.troubled.note(ofPods) }

// close implements lane.
func (l *usage) close() error {
	l.troubled = trouble{}
	return errors.Join(l.drop(&l.groups[0]), l.drop(&l.groups[1]))
}

// armed is a threshold that is polled.
type armed struct {
	*memcg.Threshold
	mark      signal.Mark
	lastAbove time.Time // when it was armed, if it was not crossed then
	fires     atomic.Uint64
	broken    atomic.Bool
	// Of the watch over the lanes: fires before it read the usage, and of them
	// those that are over.
	known, over uint64
}

// see takes in a usage that was read after known was. Where it is below, what has
// fired before is over.
func (a *armed) see(usage uint64) {
	if usage < a.Bytes() {
		a.over = a.known
	}
}

// fired reports whether it has told that the usage is above, which has not been
// below since.
func (a *armed) fired() bool { return a.fires.Load() != a.over }

// Events implements Source.
func (a *armed) Events() uint32 { return unix.EPOLLIN }

// Ready implements Source. The kernel signals both directions: which it was is
// for the reading to say that confirms the alarm.
func (a *armed) Ready(now time.Time) (Raise, bool) {
	n, err := a.Take()
	if err != nil {
		a.broken.Store(true)
		return Raise{}, false
	}
	if n == 0 {
		return Raise{}, false
	}
	a.fires.Add(1)
	return Raise{Lane: Memcg, Mark: a.mark, LastAbove: a.lastAbove, Seen: now}, true
}

// critical is a notice of critical reclaim that is polled: a good moment to look
// whether a mark has been crossed. It is of reclaim for the cgroup's own sake, the
// node's want of memory or the pods' limit, not of that for a container's limit
// below it (mm/vmpressure.c: PRESSURE_LOCAL).
type critical struct {
	*memcg.Pressure
	last time.Time // alarm, of the thread that waits
}

// criticalPause is the least time between two alarms for critical reclaim, which
// the kernel notices every 512 pages.
const criticalPause = 100 * time.Millisecond

// Events implements Source.
func (c *critical) Events() uint32 { return unix.EPOLLIN }

// Ready implements Source.
func (c *critical) Ready(now time.Time) (Raise, bool) {
	n, err := c.Take()
	if err != nil || n == 0 || now.Sub(c.last) < criticalPause {
		return Raise{}, false
	}
	c.last = now
	return Raise{Lane: Memcg, Seen: now}, true
}
