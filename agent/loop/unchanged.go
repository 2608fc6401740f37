package loop

import (
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

const (
	// maxStepGap is the longest time without a step while nothing changes: less than
	// 10 s, so that there always is a reading to compare a crossing with
	// ([signal.Readings]).
	maxStepGap = 9 * time.Second
	// idleHandleCheckInterval is how often the top-ranked pods are checked for new
	// processes while nothing changes. The check reads files of up to recheckedPods pods.
	idleHandleCheckInterval = 5 * time.Second
)

// iterateUnchanged is an iteration without a step, for when a step would decide the same:
// no threshold is met, no victim is in flight, reclaim stalls as it did at the last step,
// and a BPF walk shows that no pod has come, gone or changed its usage noticeably since.
// It returns the last step's view with new readings, and nil when a step is needed, which
// is always so without a BPF sampler. Beside 100 pods it takes a tenth of a step's time.
func (l *Loop) iterateUnchanged(now time.Time) *View {
	if l.stepDue(now) {
		return nil
	}
	last := l.view
	snapshot, ok := l.inventory.MeasureUnchanged(now)
	if !ok || snapshot.Version != last.Snapshot.Version || l.reclaimStalls.check(now) != l.stalled || l.killHandles.processesChanged(now) {
		return nil
	}
	v := *last
	v.Time, v.Snapshot = now, snapshot
	known := l.unaccounted.Bytes()
	l.readNode(&v)
	l.readDisks(&v)
	l.applyDiskUsage(&v)
	unaccountedFell := known-l.unaccounted.Bytes() >= evict.UnaccountedMin // the hot path's table has the old amount
	if unaccountedFell || v.anyThresholdMet() || v.anyStorageLimit() || l.disks.Layout() != l.policy.Layout ||
		!l.updateMode(&v.Snapshot).equal(last.Mode) {
		return nil
	}
	l.trackCrossings(&v)
	return &v
}

// stepDue reports whether a step is due whatever the readings are: the last one is too long
// ago or left something pending, or it lacks an input that has come since.
func (l *Loop) stepDue(now time.Time) bool {
	switch {
	case l.view == nil || now.Sub(l.lastStep) >= maxStepGap || !l.view.nothingPending():
		return true
	case len(l.outcomes) > 0 || len(l.toResume) > 0 || len(l.contention()) > 0:
		return true
	}
	return !l.arbiter.Valid(l.generation) // the hot path has killed a pod
}

// nothingPending reports whether the step left nothing for the next one to continue.
func (v *View) nothingPending() bool {
	s, o := &v.State, &v.Orders
	return len(s.Timers)+len(s.Conditions)+len(s.Victims)+len(s.Backoffs)+len(s.DryRunVictims)+len(s.Revivals)+len(s.ContentionEvictions) == 0 &&
		s.Reclaim == nil && len(o.Met)+len(o.Waiting)+len(o.Unreadable)+len(o.Evict)+len(o.Adopted)+len(o.Escalate) == 0
}

// anyThresholdMet reports whether the view's readings meet a threshold, or one could not
// be read.
func (v *View) anyThresholdMet() bool {
	for i := range v.Policy.Thresholds {
		t := &v.Policy.Thresholds[i]
		o := &v.Observations[t.Signal]
		if o.Status == signal.Unreadable || o.Below(t.Value.Amount(o.Capacity)) {
			return true
		}
	}
	return false
}

// anyStorageLimit reports whether a pod has a limit on local storage, which only a step
// enforces.
func (v *View) anyStorageLimit() bool {
	for i := range v.Snapshot.Pods {
		if v.Snapshot.Pods[i].HasStorageLimit() {
			return true
		}
	}
	return false
}

// nearFraction is the fraction of the capacity, as 1/16, within which a threshold is near.
const nearFraction = 16

// NearThreshold reports whether a memory signal is less than a sixteenth of its capacity above a
// threshold, so that it may cross it soon.
func (v *View) NearThreshold() bool {
	for i := range v.Policy.Thresholds {
		t := &v.Policy.Thresholds[i]
		o := &v.Observations[t.Signal]
		if t.Signal.IsMemory() && o.Status == signal.Observed && o.Available-t.Value.Amount(o.Capacity) < o.Capacity/nearFraction {
			return true
		}
	}
	return false
}
