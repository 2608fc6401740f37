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
	// immediateGrace is the grace period of an eviction that does not wait, which the
	// kubelet sets to 1 s too (pkg/kubelet/eviction: immediateEvictionGracePeriodSeconds).
	immediateGrace = time.Second
)

// When a victim counts as settled, and a signal as futile.
const (
	// settledTenths is the share, in tenths, of the expected memory with whose return a
	// victim is settled.
	settledTenths = 8
	// A victim makes progress when it has freed a 20th of the expected memory, or
	// progressBytes if that is less. Smaller amounts do not restart the settle timeout, so
	// that a slow trickle does not delay the next victim.
	progressShare, progressBytes = 20, 16 << 20
	// poorReturnsLimit is how many victims in a row that free less than half of what was
	// expected make a signal futile.
	poorReturnsLimit = 3
	// stuckLimit is how many stuck victims make a signal futile.
	stuckLimit = 2
)

// applyDryRunVictims counts dry-run victims as gone: it adds their usage to the
// observations until the episode ends, which it does when the signal is no longer low
// without that addition.
func (d *decision) applyDryRunVictims() {
	if !d.in.DryRun {
		d.DryRunVictims = nil
	}
	if d.in.PodsUnknown {
		return
	}
	d.DryRunVictims = slices.DeleteFunc(d.DryRunVictims, func(p DryRunVictim) bool {
		pod := d.findPod(p.UID)
		return pod == nil || d.episodeEnded(&p, pod)
	})
	for _, p := range d.DryRunVictims {
		pod := d.findPod(p.UID)
		for s := range d.observed {
			addBack(&d.observed[s], pod.expected(signal.Signal(s), d.policy.Layout))
		}
	}
}

// episodeEnded reports whether the episode in which a dry-run victim counts as gone is
// over. A Table can only end episodes of memory; the others last until the next Step.
func (d *decision) episodeEnded(p *DryRunVictim, pod *podEntry) bool {
	switch {
	case d.fromTable && (p.OverLimit || !p.Signal.IsMemory()):
		return false
	case p.Contention != "":
		return !d.hasContention(p.Contention)
	case p.OverLimit:
		cause, _ := pod.overLimit(d.policy.Layout)
		return cause == ""
	}
	return !d.belowTarget(group(p.Signal))
}

// addBack adds the usage of a dry-run victim to the available amount.
func addBack(o *signal.Observation, usage int64) {
	if o.Status == signal.Observed {
		o.Available = saturatingAdd(max(o.Available, 0), usage) + min(o.Available, 0)
	}
}

// belowTarget reports whether a signal of the group, as read, is below the target of
// one of its thresholds or could not be read: an unreadable signal does not end an
// episode.
func (d *decision) belowTarget(g signal.Signal) bool {
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
		case o.UID == "": // of the reclaim; nil if it was ordered before a restart
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

// settleVictims removes the victims that are gone and those whose retry delay has
// passed, and updates the others.
func (d *decision) settleVictims() {
	if d.in.PodsUnknown {
		return
	}
	d.Victims = slices.DeleteFunc(d.Victims, func(v Victim) bool {
		pod := d.findPod(v.UID)
		if pod == nil || pod.LastStart > v.LastStart {
			d.victimGone(&v)
			return true
		}
		return v.expired(d.in.Measured, d.now)
	})
	for i := range d.Victims {
		d.updateVictim(&d.Victims[i])
	}
}

// detectRevivals finds evicted pods that their kubelet started again. It removes a
// Revival revivalBackoffMax after its back-off has ended, or after the pod was gone if
// it was not started again.
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

// victimGone handles a victim that is gone. If it was unsettled, it has freed what was
// expected. For a kubelet's pod it adds a Revival, so that detectRevivals notices that
// the pod is started again.
func (d *decision) victimGone(v *Victim) {
	if v.Status == Unsettled {
		d.noteReturn(group(v.Signal.Signal), false)
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
// enough.
func (d *decision) updateVictim(v *Victim) {
	pod := d.findPod(v.UID)
	known := d.in.Measured && pod.measured
	end := v.update(d.outstanding(v, pod, signal.MemoryAvailable), known, d.in.Measured, d.policy.SettleTimeout, d.now)
	if end == becameStuck && !d.fromTable {
		d.out.Stuck = append(d.out.Stuck, v.UID)
	}
	d.noteSettleResult(v, end)
}
