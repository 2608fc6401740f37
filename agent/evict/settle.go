package evict

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

const (
	// The back-off between victims of a signal for which evicting is futile.
	firstBackoff, longestBackoff = time.Second, time.Minute
	// The hold-off before a pod that a kubelet brought back is evicted again.
	firstHoldOff, longestHoldOff = 10 * time.Second, 10 * time.Minute
	// enoughReturned is the share, in tenths, of what was expected of a victim
	// with which it is settled.
	enoughReturned = 8
	// A victim makes progress when it has let go of a twentieth of what is
	// expected, or of that many bytes where that is less: a trickle must not keep
	// the next one waiting.
	progressShare, progressBytes = 20, 16 << 20
	// poorRun is how many victims in a row may return less than half.
	poorRun = 3
	// mostStuck is how many stuck victims make a signal futile.
	mostStuck = 2
	// failedFor is how long a pod is left alone whose eviction could not be
	// carried out.
	failedFor = 10 * time.Second
	// stuckFor is how long a pod is left alone that did not go, or not quite,
	// before it may be ordered to go again.
	stuckFor = time.Minute
)

// pretend makes dry run's would-be victims count as gone: their part is added
// to what was read, until the signal that they were named for is no longer low
// without it.
func (d *decision) pretend() {
	if !d.in.DryRun {
		d.Pretended = nil
	}
	if d.in.Unlisted {
		return
	}
	d.Pretended = slices.DeleteFunc(d.Pretended, func(p Pretended) bool {
		pod := d.find(p.UID)
		return pod == nil || d.ended(&p, pod)
	})
	for _, p := range d.Pretended {
		pod := d.find(p.UID)
		for s := range d.observed {
			addBack(&d.observed[s], pod.expected(signal.Signal(s), d.policy.Layout))
		}
	}
}

// ended reports whether the episode is over for which a pod counts as gone. A
// Table knows of the episodes of memory only: others last until the next step.
func (d *decision) ended(p *Pretended, pod *entry) bool {
	switch {
	case d.hurried && (p.Limit || !p.Signal.IsMemory()):
		return false
	case p.Contention != "":
		return !d.stalls(p.Contention)
	case p.Limit:
		cause, _ := pod.overLimit(d.policy.Layout)
		return cause == ""
	}
	return !d.low(group(p.Signal))
}

// addBack counts as available what a would-be victim holds.
func addBack(o *signal.Observation, held int64) {
	if o.Status == signal.Observed {
		o.Available = saturatingAdd(max(o.Available, 0), held) + min(o.Available, 0)
	}
}

// low reports whether, by what was read, a signal of the group is below a
// target of its thresholds, or could not be read: an episode does not end
// because its signal is out of sight.
func (d *decision) low(g signal.Signal) bool {
	for i := range d.marks {
		m := &d.marks[i]
		if group(m.Signal) != g {
			continue
		}
		o := &d.in.Observations[m.Signal]
		if o.Status == signal.Unreadable || o.Below(m.target(o.Capacity)) {
			return true
		}
	}
	return false
}

// takeOutcomes brings the books up to date with what became of earlier orders.
func (d *decision) takeOutcomes() {
	for _, o := range d.in.Outcomes {
		if o.UID == "" {
			if d.Reclaim != nil && d.Reclaim.Waiting {
				d.Reclaim.Waiting, d.resumed = false, true
			}
			continue
		}
		if o.Err != nil {
			d.refuse(o.UID)
		}
	}
}

// refuse notes that a victim could not be killed.
func (d *decision) refuse(uid string) {
	if v := d.victim(uid); v != nil && v.Status == Unsettled {
		v.Status, v.Fell = Failed, d.now
	}
}

// settle takes victims that are gone out of the books, and those that were left
// alone for long enough, and settles the others where they have brought enough or
// were waited for long enough.
func (d *decision) settle() {
	if d.in.Unlisted {
		return
	}
	d.Victims = slices.DeleteFunc(d.Victims, func(v Victim) bool {
		pod := d.find(v.UID)
		if pod == nil || pod.LastStart > v.LastStart {
			d.left(&v)
			return true
		}
		return v.expired(d.in.Measured, d.now)
	})
	for i := range d.Victims {
		d.progress(&d.Victims[i])
	}
}

// revive notes which evicted pods a kubelet brought back, and forgets those that
// have stayed away.
func (d *decision) revive() {
	if d.in.Unlisted {
		return
	}
	for i := range d.Revivals {
		if r := &d.Revivals[i]; r.Gone && d.find(r.UID) != nil {
			r.Gone = false
			r.Delay = min(max(2*r.Delay, firstHoldOff), longestHoldOff)
			r.Until = d.now.Add(r.Delay)
			d.out.Revived = append(d.out.Revived, r.UID)
		}
	}
	d.Revivals = slices.DeleteFunc(d.Revivals, func(r Revival) bool {
		return d.now.Sub(r.Until) > longestHoldOff
	})
}

// left takes a victim that is gone out of the books.
func (d *decision) left(v *Victim) {
	if v.Status == Unsettled {
		d.returned(group(v.Signal.Signal), false)
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

// progress settles a victim that has brought enough or was waited for long
// enough.
func (d *decision) progress(v *Victim) {
	pod := d.find(v.UID)
	known := d.in.Measured && pod.known
	end := v.progress(d.held(v, pod, signal.MemoryAvailable), known, d.in.Measured, d.policy.SettleTimeout, d.now)
	if end == gotStuck && !d.hurried {
		d.out.Stuck = append(d.out.Stuck, v.UID)
	}
	d.conclude(v, end)
}
