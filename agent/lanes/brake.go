package lanes

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/memcg"
)

// BrakeOptions are those of the brake, which is no way to learn of pressure but
// one to slow it down.
type BrakeOptions struct {
	// Mode is Disabled by default, unlike that of a lane.
	Mode Mode
	// Allowed tells whether pods may be slowed down now.
	Allowed func() bool
	// Keep keeps what was moved, so that a crash does not lose it.
	Keep Keeper
	// open opens the limit; nil is the kernel's.
	open func(*cgroup.Cgroup) (high, error)
}

// Braked is a limit that was moved, or is about to be.
type Braked struct {
	Cgroup string
	ID     uint64 // of the cgroup
	// Was is what was found, in bytes, or memcg.Unlimited; From and To are where
	// the limit is moved from and to.
	Was, From, To uint64
}

// Keeper keeps a Braked.
type Keeper interface {
	LoadBrake() (b Braked, ok bool, err error)
	SaveBrake(Braked) error
	ClearBrake() error
}

// brake is cgroup v2's memory.high of kubepods, just below where the nearest hard
// threshold would be crossed. Tasks of pods that take memory beyond it have to
// reclaim, and from 1.2 % on to sleep (mm/memcontrol.c: calculate_high_delay),
// which leaves time to evict.
//
// The limit is of usage, with all file cache in it, and follows the inactive file
// pages as the thresholds of cgroup v1 do. It is written down before it is moved,
// and given back when the lane is closed, when pods may not be slowed down any
// more, and by the next start after a crash.
type brake struct {
	o SetOptions

	group *cgroup.Cgroup // nil where there is no kubepods
	brake high
	busy  chan error // of a write under way
	why   string     // it does nothing
	kept  bool       // something is written down
}

// high is a memory.high, as [memcg.Brake] has it.
type high interface {
	Held() (now, was uint64, on bool, err error)
	Lower(to uint64) (uint64, error)
	Raise(to uint64) (uint64, error)
	Restore() error
	Close() error
}

// openHigh opens the limit of a cgroup.
func (l *brake) openHigh(group *cgroup.Cgroup) (high, error) {
	if l.o.Brake.open != nil {
		return l.o.Brake.open(group)
	}
	b, err := memcg.OpenBrake(l.o.Hierarchy, group)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// brakeShare is the part of the limit by which it stands below the threshold: so
// much that tasks which pass it are slowed down before the threshold is crossed,
// and little else.
const brakeShare = 64

// writeWait is how long a write may take until the other lanes are looked after,
// and closeWait until the limit is left to the next start. Before Linux 6.16 a
// limit that comes to be below the usage makes its writer reclaim.
const (
	writeWait = 10 * time.Millisecond
	closeWait = 2 * time.Second
)

const errNoBrake = unavailableError("memory is in a v1 tree, which has no memory.high")

// open implements lane.
func (l *brake) open(now time.Time, w *watched) error {
	if l.o.Hierarchy.Version != cgroup.V2 {
		return errNoBrake
	}
	if _, err := ReleaseBrake(l.o.Hierarchy, l.o.Brake.Keep); err != nil {
		return err
	}
	return l.tend(now, w)
}

// ReleaseBrake gives back a limit that was moved by a brake which has ended
// without, and returns the path of its cgroup; "" where there was nothing to give
// back: no such cgroup any more, or a limit that another has written since.
func ReleaseBrake(h *cgroup.Hierarchy, keep Keeper) (released string, err error) {
	b, ok, err := keep.LoadBrake()
	if err != nil {
		return "", fmt.Errorf("%w; %s", err, highOfPods(h))
	}
	if !ok {
		return "", nil
	}
	switch err := release(h, b); {
	case err == nil:
		released = b.Cgroup
	case !errors.Is(err, cgroup.ErrGone) && !errors.Is(err, memcg.ErrTaken):
		return "", fmt.Errorf("release brake: %w", err)
	}
	return released, keep.ClearBrake()
}

// highOfPods is for whoever has to judge whether a limit is one that a brake has
// left.
func highOfPods(h *cgroup.Hierarchy) string {
	unknown := "memory.high of the pods' cgroup may be lower than it was set"
	found, ok, err := h.Kubepods("/")
	if err != nil || !ok {
		return unknown
	}
	group, err := h.Open(found.Path)
	if err != nil {
		return unknown
	}
	defer group.Close()
	limit, err := memcg.OpenBrake(h, group)
	if err != nil {
		return unknown
	}
	defer limit.Close()
	switch high, err := limit.High(); {
	case err != nil:
		return unknown
	case high == memcg.Unlimited:
		return fmt.Sprintf("memory.high of %s is max, so that nothing is left of it", found.Path)
	default:
		return fmt.Sprintf("memory.high of %s is %d, which may be lower than it was set", found.Path, high)
	}
}

func release(h *cgroup.Hierarchy, b Braked) error {
	group, err := h.Open(b.Cgroup)
	if err != nil {
		return err
	}
	defer group.Close()
	if group.ID() != b.ID {
		return cgroup.ErrGone
	}
	left, err := memcg.OpenBrake(h, group)
	if err != nil {
		return err
	}
	defer left.Close()
	if err := left.Adopt(b.Was, b.From, b.To); err != nil {
		return err
	}
	return left.Restore()
}

// tend implements lane.
func (l *brake) tend(_ time.Time, w *watched) error {
	if done, err := l.settled(writeWait); err != nil || !done {
		return err
	}
	if err := l.follow(); err != nil || l.brake == nil {
		return err
	}
	left, ok := nearest(w)
	switch {
	case !l.o.Brake.Allowed():
		l.why = "nothing is slowed down while evictd is in dry run"
	case !ok:
		l.why = "there is no hard threshold on memory that can be read"
	default:
		l.why = ""
		return l.move(left)
	}
	return l.restore()
}

// nearest returns how much more can be used until the first hard threshold on
// memory is crossed; less than nothing where one is.
func nearest(w *watched) (left int64, ok bool) {
	for _, lv := range w.levels() {
		if !lv.mark.Hard() {
			continue
		}
		if l := w.observed[lv.mark.Signal()].Available - lv.available; !ok || l < left {
			left, ok = l, true
		}
	}
	return left, ok
}

// move brings the limit to where it should be.
func (l *brake) move(left int64) error {
	var used cgroup.Memory
	err := l.group.ReadMemory(&used)
	if err != nil {
		return l.gone(err)
	}
	now, was, held, err := l.brake.Held()
	if err != nil {
		return l.gone(err)
	}
	if !held {
		was = now
	}
	to, ok := limit(used.Usage, left, now, was, held)
	if !ok {
		return nil
	}
	moving := Braked{Cgroup: l.group.Path(), ID: l.group.ID(), Was: was, From: now, To: to}
	l.kept = true
	l.busy = make(chan error, 1)
	go func(busy chan<- error, b high) { // a disk may be slow just now, too
		err := l.o.Brake.Keep.SaveBrake(moving)
		switch {
		case err != nil:
		case to < now:
			_, err = b.Lower(to)
		default:
			_, err = b.Raise(to)
		}
		busy <- err
	}(l.busy, l.brake)
	_, err = l.settled(writeWait)
	return err
}

// limit returns where to move the limit from where it is now: below the usage at
// which the nearest threshold is crossed. A limit of somebody else is never passed,
// and none is set so far down that the kernel would have to reclaim to reach it.
func limit(usage uint64, left int64, now, was uint64, held bool) (to uint64, ok bool) {
	to = uint64(max(0, int64(usage)+left))
	to = min(to-to/brakeShare, was)
	if to > now { // only what this brake has set may be raised
		to = wholePages(to)
		return to, held && moved(now, to, usage, false)
	}
	to = wholePages(max(to, usage+max(usage/brakeShare, leastStep)))
	return to, to < now && moved(now, to, usage, false)
}

// wholePages rounds as the kernel does.
func wholePages(bytes uint64) uint64 { return bytes &^ uint64(os.Getpagesize()-1) }

// settled reports whether no write is under way, for which it waits so long, and
// how the last went.
func (l *brake) settled(limit time.Duration) (bool, error) {
	if l.busy == nil {
		return true, nil
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-l.busy:
		l.busy = nil
		return true, l.gone(err)
	case <-timer.C:
		return false, nil
	}
}

// gone makes nothing of an error that says that the cgroup is no more.
func (l *brake) gone(err error) error {
	if errors.Is(err, cgroup.ErrGone) {
		return l.drop()
	}
	return err
}

// restore gives the limit back, and forgets it.
func (l *brake) restore() error {
	if err := l.brake.Restore(); err != nil && !errors.Is(err, memcg.ErrTaken) {
		return l.gone(err)
	}
	return l.forget()
}

// forget forgets what is written down.
func (l *brake) forget() error {
	if !l.kept {
		return nil
	}
	err := l.o.Brake.Keep.ClearBrake()
	l.kept = err != nil
	return err
}

// follow opens the brake of the pods' cgroup that is there now.
func (l *brake) follow() error {
	if l.group != nil {
		if err := l.group.Check(); !errors.Is(err, cgroup.ErrGone) {
			return err
		}
	}
	if err := l.drop(); err != nil {
		return err
	}
	l.why = "there is no cgroup of the pods"
	found, ok, err := l.o.Hierarchy.Kubepods(l.o.CgroupRoot)
	if err != nil || !ok {
		return err
	}
	if l.group, err = l.o.Hierarchy.Open(found.Path); err == nil {
		l.brake, err = l.openHigh(l.group)
	}
	if err != nil {
		return l.gone(err)
	}
	return nil
}

// drop closes a cgroup that is no more.
func (l *brake) drop() error {
	var errs []error
	if l.brake != nil {
		errs = append(errs, l.brake.Close(), l.forget())
	}
	if l.group != nil {
		errs = append(errs, l.group.Close())
	}
	l.group, l.brake = nil, nil
	return errors.Join(errs...)
}

// covers implements lane: it does not raise. The counts that the limit moves do.
func (l *brake) covers(Mark) (int64, bool) { return 0, false }

// beat implements lane: it is silent.
func (l *brake) beat() (uint64, bool) { return 0, false }

// period implements lane.
func (l *brake) period() time.Duration { return 0 }

// note implements lane.
func (l *brake) note() string {
	if l.busy != nil {
		return "the limit is being moved, for which the kernel may have to reclaim"
	}
	return l.why
}

// close implements lane: it gives the limit back.
func (l *brake) close() error {
	var errs []error
	done, err := l.settled(closeWait)
	switch {
	case !done:
		// The file stays open for the write. What is kept is for the next start.
		return fmt.Errorf("memory.high is not given back yet: its last write takes longer than %v", closeWait)
	case err != nil:
		errs = append(errs, err)
	}
	if l.brake != nil {
		errs = append(errs, l.restore())
	}
	if l.brake != nil {
		errs = append(errs, l.brake.Close())
	}
	if l.group != nil {
		errs = append(errs, l.group.Close())
	}
	*l = brake{o: l.o}
	return errors.Join(errs...)
}
