package loop

import (
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

const (
	// thorough is how often everything is gone through although nothing has moved: less
	// than 10 s, so that there is always a reading that a crossing can be compared with
	// (signal.Readings).
	thorough = 9 * time.Second
	// lookQuietly is how often it is looked whether pods that come first in the
	// ranking have other processes although nothing has moved.
	lookQuietly = 5 * time.Second
)

// quiet takes a turn without a step, where a step could change nothing: no signal
// is low, nobody is on the way out or waited for, reclaim goes as it did, and by a
// walk no pod has come, gone or moved noticeably since the last step. It returns the
// view of that, brought up to date; nil where it takes a step, and so always where
// nothing walks.
func (l *Loop) quiet(now time.Time) *View {
	last := l.view
	if last == nil || now.Sub(l.stepped) >= thorough || !last.atRest() || !l.desk.Current(l.generation) ||
		len(l.outcomes) > 0 || len(l.unfinished) > 0 || len(l.contention()) > 0 {
		return nil
	}
	still, ok := l.inventory.Still(now)
	if !ok || still.Version != last.Snapshot.Version || l.stalls.check(now) != l.stalled || l.holds.outdated(now) {
		return nil
	}
	v := *last
	v.Time, v.Snapshot = now, still
	known := l.unexplained.Known()
	l.readNode(&v)
	l.readDisks(&v)
	l.fillDisks(&v)
	less := known-l.unexplained.Known() >= evict.Stranger // which the hot path has to know
	if less || v.low() || v.limited() || l.disks.Layout() != l.policy.Layout ||
		!l.decideMode(&v.Snapshot).equal(last.Mode) {
		return nil
	}
	l.trackCrossings(&v)
	return &v
}

// atRest reports whether the step left nothing behind that the next would go on
// with.
func (v *View) atRest() bool {
	s, o := &v.State, &v.Orders
	return len(s.Timers)+len(s.Conditions)+len(s.Victims)+len(s.Futile)+len(s.Pretended)+len(s.Revivals)+len(s.Contended) == 0 &&
		s.Reclaim == nil && len(o.Met)+len(o.Waiting)+len(o.Unreadable)+len(o.Evict)+len(o.Adopted)+len(o.Harden) == 0
}

// low reports whether a threshold is crossed, by what was read, or whether that
// can't be told.
func (v *View) low() bool {
	for i := range v.Policy.Thresholds {
		t := &v.Policy.Thresholds[i]
		o := &v.Observations[t.Signal]
		if o.Status == signal.Unreadable || o.Below(t.Value.Amount(o.Capacity)) {
			return true
		}
	}
	return false
}

// limited reports whether a pod has a limit on local storage, which a step has to
// hold it to.
func (v *View) limited() bool {
	for i := range v.Snapshot.Pods {
		if v.Snapshot.Pods[i].Limited() {
			return true
		}
	}
	return false
}

// nearShare is the part of what there is by which a threshold is near.
const nearShare = 16

// Near reports whether so little is left above a threshold that it may be crossed
// soon.
func (v *View) Near() bool {
	for i := range v.Policy.Thresholds {
		t := &v.Policy.Thresholds[i]
		o := &v.Observations[t.Signal]
		if t.Signal.IsMemory() && o.Status == signal.Observed && o.Available-t.Value.Amount(o.Capacity) < o.Capacity/nearShare {
			return true
		}
	}
	return false
}
