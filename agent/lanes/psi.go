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

// Stall is a sustained stall on memory, as PSI shows it: the node or the pods make little
// progress, even if no signal of available memory is low. Stalls in direct reclaim alone are
// [bpf.Stall].
type Stall struct {
	// Condition names where, as planned for Kubernetes (KEP-5394).
	Condition signal.Condition
	Since     time.Time
}

// psiLane is the lane of PSI triggers: one on the node and, on cgroup v2, one on kubepods.
type psiLane struct {
	o         SetOptions
	condition psi.Condition
	wait      Waiter
	notify    func()

	node, pods  *stallTrigger
	kubepods    *cgroup.Cgroup // nil while there is none, or none with PSI
	noCgroupPSI bool           // cgroups have no PSI on this kernel
	podsFailure partialFailure
}

// stallTrigger is a PSI trigger that is polled, and the growth of its total.
type stallTrigger struct {
	*psi.Trigger
	condition signal.Condition
	growth    psi.Growth
	sustained sustained
	fired     atomic.Bool // since the last check
	notify    func()
}

// Events implements Source. It is edge-triggered, as a removed cgroup would report
// EPOLLERR forever.
func (s *stallTrigger) Events() uint32 { return unix.EPOLLPRI | unix.EPOLLET }

// Ready implements Source. Reconcile reads the total, which confirms the event or not.
func (s *stallTrigger) Ready(time.Time) (Alarm, bool) {
	s.fired.Store(true)
	s.notify()
	return Alarm{}, false
}

// sustained determines since when stalls have continued at a rate.
type sustained struct {
	rate  psi.Condition
	total time.Duration // at from
	from  time.Time
	since time.Time // zero while they do not continue
}

// update records a total, once per window. If the reading is late, the rate applies to the
// time that has passed.
func (s *sustained) update(total time.Duration, now time.Time) {
	passed := now.Sub(s.from)
	if !s.from.IsZero() && passed < s.rate.Window {
		return
	}
	enough := (total - s.total).Seconds() >= passed.Seconds()*s.rate.Stall.Seconds()/s.rate.Window.Seconds()
	switch {
	case s.from.IsZero() || !enough:
		s.since = time.Time{}
	case s.since.IsZero():
		s.since = s.from
	}
	s.from, s.total = now, total
}

// open implements lane.
func (l *psiLane) open(now time.Time, _ *laneInput) error {
	node, err := psi.Arm(l.o.Procfs, psi.ForMemory, l.condition)
	if err != nil {
		return err
	}
	if l.node, err = l.add(node, signal.SystemMemoryContentionPressure, now); err != nil {
		return err
	}
	l.reconcilePods(now)
	return nil
}

// add polls a trigger. It closes the trigger on an error.
func (l *psiLane) add(t *psi.Trigger, c signal.Condition, now time.Time) (*stallTrigger, error) {
	s := &stallTrigger{Trigger: t, condition: c, sustained: sustained{rate: l.condition}, notify: l.notify}
	total, err := t.Total()
	if err == nil {
		s.growth = psi.NewGrowth(t.Armed(), total, now)
		s.sustained.update(total, now)
		err = l.wait.Add(s)
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return s, nil
}

// reconcile implements lane.
func (l *psiLane) reconcile(now time.Time, _ *laneInput) error {
	if err := l.check(l.node, now); err != nil {
		return err
	}
	l.reconcilePods(now)
	return nil
}

// reconcilePods reconciles the trigger of kubepods. Its failure does not affect the trigger
// of the node.
func (l *psiLane) reconcilePods(now time.Time) {
	if l.podsFailure.backingOff(now) {
		return
	}
	var err error
	if l.pods != nil {
		if err = l.check(l.pods, now); errors.Is(err, cgroup.ErrGone) {
			err = l.dropPods()
		}
	}
	if err == nil {
		err = l.followPods(now)
	}
	if err != nil {
		err = errors.Join(err, l.dropPods())
	}
	l.podsFailure.record(now, err)
}

// check reads a total, and raises an alarm if it confirms an event.
func (l *psiLane) check(s *stallTrigger, now time.Time) error {
	fired := s.fired.Swap(false)
	total, err := s.Total()
	if err != nil {
		return err
	}
	s.sustained.update(total, now)
	if grown := s.growth.Update(total, now); !fired || !grown {
		return nil
	}
	return l.wait.Raise(Alarm{Lane: PSI, Seen: now})
}

// followPods arms a trigger on the current kubepods cgroup, on cgroup v2.
func (l *psiLane) followPods(now time.Time) error {
	if l.noCgroupPSI || l.o.Hierarchy.Version != cgroup.V2 || l.kubepods != nil && l.kubepods.Check() == nil {
		return nil
	}
	if err := l.dropPods(); err != nil {
		return err
	}
	opened, err := openKubepods(l.o.Hierarchy, l.o.CgroupRoot)
	if err != nil || opened == nil {
		return err
	}
	l.kubepods = opened
	t, err := psi.ArmCgroup(l.o.Hierarchy, opened, psi.ForMemory, l.condition)
	switch {
	case errors.Is(err, cgroup.ErrGone):
		return l.dropPods()
	case permanent(err):
		l.noCgroupPSI = true // the node's trigger is left
		return l.dropPods()
	case err != nil:
		return err
	}
	l.pods, err = l.add(t, signal.KubepodsMemoryContentionPressure, now)
	return err
}

func (l *psiLane) dropPods() error {
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

// sustainedStalls returns the stalls that are sustained now.
func (l *psiLane) sustainedStalls() []Stall {
	var list []Stall
	for _, s := range []*stallTrigger{l.node, l.pods} {
		if s != nil && !s.sustained.since.IsZero() {
			list = append(list, Stall{s.condition, s.sustained.since})
		}
	}
	return list
}

// partialFailure implements partialFailer. It is the failure for kubepods, or the condition
// that the kernel has armed if that is not the configured one.
func (l *psiLane) partialFailure() string {
	if failed := l.podsFailure.describe("the stalls of the pods"); failed != "" {
		return failed
	}
	if l.node == nil || l.node.Armed() == l.condition {
		return ""
	}
	return "without CAP_SYS_RESOURCE the trigger is armed for " + l.node.Armed().String() + " instead of " + l.condition.String()
}

// close implements lane.
func (l *psiLane) close() error {
	err := l.dropPods()
	if l.node != nil {
		err = errors.Join(err, l.wait.Remove(l.node), l.node.Close())
	}
	l.node, l.noCgroupPSI, l.podsFailure = nil, false, partialFailure{}
	return err
}
