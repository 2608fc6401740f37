package lanes

import (
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/psi"
)

// Stall is a run of stalls on memory that goes on: the node, or the pods, get
// less and less done, which no signal of available memory need show.
type Stall struct {
	// Condition names the place, as Kubernetes planned to (KEP-5394).
	Condition signal.Condition
	Since     time.Time
}

// stalls is the lane of triggers on stalls: one on the node and, on cgroup v2, one
// on kubepods.
type stalls struct {
	o         SetOptions
	condition psi.Condition
	wait      Waiter
	poke      func()

	node, pods *stall
	kubepods   *cgroup.Cgroup // nil where there is none, or none that tells
	mute       bool           // cgroups do not tell of pressure here
	troubled   trouble        // with kubepods
}

// stall is a trigger, and what its total tells.
type stall struct {
	*psi.Trigger
	condition signal.Condition
	growth    psi.Growth
	run       run
	fired     atomic.Bool
	poke      func()
}

// Events implements Source. Edges alone, as a cgroup that is gone would report
// its error for ever.
func (s *stall) Events() uint32 { return unix.EPOLLPRI | unix.EPOLLET }

// Ready implements Source. Whether the event is borne out takes a look at the
// total, which the watch over the lanes takes.
func (s *stall) Ready(time.Time) (Raise, bool) {
	s.fired.Store(true)
	s.poke()
	return Raise{}, false
}

// run follows for how long stalls have gone on at a rate.
type run struct {
	rate  psi.Condition
	total time.Duration // at from
	from  time.Time
	since time.Time // zero while they do not
}

// see takes a reading in, once in a window. Where it came late, the rate counts
// for the time that has passed.
func (r *run) see(total time.Duration, now time.Time) {
	passed := now.Sub(r.from)
	if !r.from.IsZero() && passed < r.rate.Window {
		return
	}
	enough := (total - r.total).Seconds() >= passed.Seconds()*r.rate.Stall.Seconds()/r.rate.Window.Seconds()
	switch {
	case r.from.IsZero() || !enough:
		r.since = time.Time{}
	case r.since.IsZero():
		r.since = r.from
	}
	r.from, r.total = now, total
}

// open implements lane.
func (l *stalls) open(now time.Time, _ *watched) error {
	node, err := psi.Arm(l.o.Procfs, psi.ForMemory, l.condition)
	if err != nil {
		return err
	}
	if l.node, err = l.add(node, signal.SystemMemoryContentionPressure, now); err != nil {
		return err
	}
	l.tendPods(now)
	return nil
}

// add has a trigger polled. It is closed where that fails.
func (l *stalls) add(t *psi.Trigger, c signal.Condition, now time.Time) (*stall, error) {
	s := &stall{Trigger: t, condition: c, run: run{rate: l.condition}, poke: l.poke}
	total, err := t.Total()
	if err == nil {
		s.growth = psi.NewGrowth(t.Armed(), total, now)
		s.run.see(total, now)
		err = l.wait.Add(s)
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return s, nil
}

// tend implements lane.
func (l *stalls) tend(now time.Time, _ *watched) error {
	if err := l.look(l.node, now); err != nil {
		return err
	}
	l.tendPods(now)
	return nil
}

// tendPods looks after the trigger of the pods. What is amiss with it is not with
// that of the node.
func (l *stalls) tendPods(now time.Time) {
	if l.troubled.waits(now) {
		return
	}
	var err error
	if l.pods != nil {
		if err = l.look(l.pods, now); errors.Is(err, cgroup.ErrGone) {
			err = l.dropPods()
		}
	}
	if err == nil {
		err = l.follow(now)
	}
	if err != nil {
		err = errors.Join(err, l.dropPods())
	}
	l.troubled.set(now, err)
}

// look reads a total, and raises where it bears an event out.
func (l *stalls) look(s *stall, now time.Time) error {
	fired := s.fired.Swap(false)
	total, err := s.Total()
	if err != nil {
		return err
	}
	s.run.see(total, now)
	if grown := s.growth.Read(total, now); !fired || !grown {
		return nil
	}
	return l.wait.Raise(Raise{Lane: PSI, Seen: now})
}

// follow arms a trigger on the pods' cgroup that is there now, on cgroup v2.
func (l *stalls) follow(now time.Time) error {
	if l.mute || l.o.Hierarchy.Version != cgroup.V2 || l.kubepods != nil && l.kubepods.Check() == nil {
		return nil
	}
	if err := l.dropPods(); err != nil {
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
	if err != nil {
		return err
	}
	l.kubepods = opened
	t, err := psi.ArmCgroup(l.o.Hierarchy, opened, psi.ForMemory, l.condition)
	switch {
	case errors.Is(err, cgroup.ErrGone):
		return l.dropPods()
	case never(err):
		l.mute = true // that of the node tells
		return l.dropPods()
	case err != nil:
		return err
	}
	l.pods, err = l.add(t, signal.KubepodsMemoryContentionPressure, now)
	return err
}

func (l *stalls) dropPods() error {
	var errs []error
	if l.pods != nil {
		errs = append(errs, l.wait.Remove(l.pods), l.pods.Close())
	}
	if l.kubepods != nil {
		errs = append(errs, l.kubepods.Close())
	}
	l.pods, l.kubepods = nil, nil
	return errors.Join(errs...)
}

// now returns what stalls.
func (l *stalls) now() []Stall {
	var list []Stall
	for _, s := range []*stall{l.node, l.pods} {
		if s != nil && !s.run.since.IsZero() {
			list = append(list, Stall{s.condition, s.run.since})
		}
	}
	return list
}

// note implements noter: it says what is amiss with the pods' trigger, or what the kernel has armed
// where it is not what was asked for.
func (l *stalls) note() string {
	if note := l.troubled.note("the pods' stalls"); note != "" {
		return note
	}
	if l.node == nil || l.node.Armed() == l.condition {
		return ""
	}
	return "without CAP_SYS_RESOURCE the kernel watches for " + l.node.Armed().String() + " instead of " + l.condition.String()
}

// close implements lane.
func (l *stalls) close() error {
	err := l.dropPods()
	if l.node != nil {
		err = errors.Join(err, l.wait.Remove(l.node), l.node.Close())
	}
	l.node, l.mute, l.troubled = nil, false, trouble{}
	return err
}
