package evict

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// When a pod is evicted next. The settle timeout is configured
// ([Policy].SettleTimeout).
const (
	// The back-off between two victims of a futile signal. It starts at the default settle
	// timeout, in which the last victim's memory returns, and doubles up to 1 min, so
	// that a signal that no pod can relieve does not empty the node.
	futileBackoffMin, futileBackoffMax = time.Second, time.Minute
	// The back-off before a pod that its kubelet started again is evicted again. The first
	// is as long as a kubelet's container restart back-off (10 s), and it doubles up to
	// 10 min, so that a pod that is always started again is not killed all the time.
	revivalBackoffMin, revivalBackoffMax = 10 * time.Second, 10 * time.Minute
	// failedRetryAfter is how long a pod whose eviction could not be carried out is not
	// chosen again: long enough that other pods are tried first.
	failedRetryAfter = 10 * time.Second
	// stuckRetryAfter is how long a pod that was evicted and is still listed is not chosen
	// again. Its processes have been killed already, so another SIGKILL rarely helps.
	stuckRetryAfter = time.Minute
)

// The grace periods of pods, at an eviction and at a shutdown.
const (
	// DefaultGrace is that of a pod that specifies none, as the API server sets it
	// (pkg/apis/core/v1/defaults.go).
	DefaultGrace = 30 * time.Second
	// MinGrace is the minimum, and that of an eviction that does not wait: runtimes count in
	// whole seconds, and the kubelet gives no less (pkg/kubelet/eviction:
	// immediateEvictionGracePeriodSeconds).
	MinGrace = time.Second
)

// When a victim counts as settled, and a signal as futile.
const (
	// A victim is settled when settledTenths/10 of the expected memory is back.
	settledTenths = 8
	// A victim makes progress when it has freed 1/progressDivisor of the expected memory,
	// or progressBytes if that is less. Smaller amounts do not restart the settle timeout,
	// so that a slow trickle does not delay the next victim.
	progressDivisor, progressBytes = 20, 16 << 20
	// poorReturnsLimit is how many victims in a row that free less than half of what was
	// expected make a signal futile.
	poorReturnsLimit = 3
	// stuckLimit is how many stuck victims make a signal futile.
	stuckLimit = 2
)

// applyDryRunVictims counts each dry-run victim as gone until its episode ends: it adds
// the victim's usage to the observations. It removes the victims that are not listed
// any more and those whose episode has ended.
func (d *decision) applyDryRunVictims() {
	if !d.in.DryRun {
		d.DryRunVictims = nil
	}
	if d.in.PodsUnknown {
		return
	}
	d.DryRunVictims = slices.DeleteFunc(d.DryRunVictims, func(v DryRunVictim) bool {
		pod := d.findPod(v.UID)
		return pod == nil || d.episodeEnded(&v, pod)
	})
	for _, v := range d.DryRunVictims {
		pod := d.findPod(v.UID)
		for s := range d.observed {
			addBack(&d.observed[s], pod.expected(signal.Signal(s), d.policy.Layout))
		}
	}
}

// episodeEnded reports whether the episode in which a dry-run victim counts as gone is
// over: the signal has reached its targets without the addition of applyDryRunVictims,
// the contention or the memory pressure has ended, or the pod no longer exceeds its own limit. A [Table] has
// new readings of the memory signals only, so it ends no other episodes; the next Step
// does.
func (d *decision) episodeEnded(v *DryRunVictim, pod *podEntry) bool {
	switch {
	case d.fromTable && (v.OverLimit || !v.Signal.IsMemory()):
		return false
	case v.Contention != "":
		return !d.hasContention(v.Contention)
	case v.Cause == CauseAdmission:
		return !d.underMemoryPressure()
	case v.OverLimit:
		cause, _ := pod.overLimit(d.policy.Layout)
		return cause == ""
	}
	return !d.mayBeBelowTarget(group(v.Signal))
}

// addBack adds the usage of a dry-run victim to the available amount. That may be
// negative, which saturatingAdd does not accept: its negative part is added afterwards,
// which can't overflow.
func addBack(o *signal.Observation, usage int64) {
	if o.Status == signal.Observed {
		o.Available = saturatingAdd(max(o.Available, 0), usage) + min(o.Available, 0)
	}
}

// mayBeBelowTarget reports whether a signal of the group, without the usage of dry-run
// victims, is below the target of one of its thresholds. It also returns true if such a
// signal could not be read, so that an unreadable signal does not end an episode.
func (d *decision) mayBeBelowTarget(g signal.Signal) bool {
	for i := range d.thresholds {
		c := &d.thresholds[i]
		if group(c.Signal) != g {
			continue
		}
		o := &d.in.Observations[c.Signal]
		if o.Status == signal.Unreadable || o.Below(c.target(o.Capacity)) {
			return true
		}
	}
	return false
}

// applyOutcomes updates the victims and the reclaim with the outcomes of earlier
// orders.
func (d *decision) applyOutcomes() {
	for _, o := range d.in.Outcomes {
		switch {
		case o.UID == "": // the node-level reclaim has ended; ignored if the state has none
			d.afterReclaim = d.Reclaim != nil
		case o.Err != nil:
			d.markFailed(o.UID)
		}
	}
}

// markFailed records that a victim could not be killed.
func (d *decision) markFailed(uid string) {
	if v := d.victim(uid); v != nil && v.Status == Unsettled {
		v.Status, v.ProgressAt = Failed, d.now
	}
}

// settleVictims removes the victims that are gone and those that may be chosen again,
// and updates the others. A pod that was started again with the same UID counts as gone:
// the processes of the victim are.
func (d *decision) settleVictims() {
	if d.in.PodsUnknown {
		return
	}
	d.Victims = slices.DeleteFunc(d.Victims, func(v Victim) bool {
		pod := d.findPod(v.UID)
		if restarted := pod != nil && pod.LastStart > v.LastStart; pod == nil || restarted {
			d.victimGone(&v)
			return true
		}
		return v.expired(d.in.Measured, d.now)
	})
	for i := range d.Victims {
		d.updateVictim(&d.Victims[i])
	}
}

// detectRevivals finds evicted pods that their kubelet started again, and starts or
// doubles their back-off. It forgets a Revival 10 min (revivalBackoffMax) after the
// back-off has ended or, if the pod was not started again, after the pod was gone.
func (d *decision) detectRevivals() {
	if d.in.PodsUnknown {
		return
	}
	for i := range d.Revivals {
		if r := &d.Revivals[i]; r.Gone && d.findPod(r.UID) != nil {
			r.Gone = false
			r.Delay = min(max(2*r.Delay, revivalBackoffMin), revivalBackoffMax)
			r.Until = d.now.Add(r.Delay)
			d.out.Revived = append(d.out.Revived, r.UID)
		}
	}
	d.Revivals = slices.DeleteFunc(d.Revivals, func(r Revival) bool {
		return d.now.Sub(r.Until) > revivalBackoffMax
	})
}

// victimGone handles a victim that is gone. If it was unsettled, it counts as having
// freed what was expected. For a kubelet's pod it adds or updates a Revival, so that
// detectRevivals notices when the pod is started again.
func (d *decision) victimGone(v *Victim) {
	if v.Status == Unsettled {
		d.noteReturn(v, false)
	}
	if !v.Kubelet {
		return
	}
	for i := range d.Revivals {
		if r := &d.Revivals[i]; r.UID == v.UID {
			r.Gone, r.Until = true, d.now
			return
		}
	}
	d.Revivals = append(d.Revivals, Revival{UID: v.UID, Gone: true, Until: d.now})
}

// updateVictim settles a victim that has freed enough or has been waited for long
// enough. It goes by memory, also for a victim of a disk or PID signal: memory falls
// when the victim's processes exit, and it is all that a [Table] keeps current.
func (d *decision) updateVictim(v *Victim) {
	pod := d.findPod(v.UID)
	end := v.update(victimMemory{
		measured:    d.in.Measured,
		known:       d.in.Measured && pod.measured,
		outstanding: d.outstanding(v, pod, signal.MemoryAvailable),
	}, d.policy.SettleTimeout, d.now)
	if end == becameStuck && !d.fromTable {
		d.out.Stuck = append(d.out.Stuck, v.UID)
	}
	d.noteSettleResult(v, end)
}
