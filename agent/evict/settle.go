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
		pod := d.pod(p.UID)
		if pod == nil || !p.Limit {
			return pod == nil || !d.low(group(p.Signal))
		}
		cause, _ := pod.overLimit(d.policy.Layout)
		return cause == ""
	})
	for _, p := range d.Pretended {
		pod := d.pod(p.UID)
		for s := range d.observed {
			o := &d.observed[s]
			if o.Status == signal.Observed {
				o.Available = saturatingAdd(max(o.Available, 0), pod.expected(signal.Signal(s), d.policy.Layout)) + min(o.Available, 0)
			}
		}
	}
}

// low reports whether, by what was read, a signal of the group is below a
// target of its thresholds, or could not be read: an episode does not end
// because its signal is out of sight.
func (d *decision) low(g signal.Signal) bool {
	for _, t := range d.policy.Thresholds {
		if group(t.Signal) != g {
			continue
		}
		o := d.in.Observations[t.Signal]
		if o.Status == signal.Unreadable || o.Below(t.Target(o.Capacity)) {
			return true
		}
	}
	return false
}

// follow brings the books up to date with what became of earlier orders.
func (d *decision) follow() {
	for _, o := range d.in.Outcomes {
		if o.UID == "" {
			if d.Reclaim != nil && d.Reclaim.Waiting {
				d.Reclaim.Waiting, d.resumed = false, true
			}
			continue
		}
		if v := d.victim(o.UID); v != nil && o.Err != nil && v.Status == Unsettled {
			v.Status, v.Fell = Failed, d.now
		}
	}
	if d.in.Unlisted {
		return
	}
	d.Victims = slices.DeleteFunc(d.Victims, func(v Victim) bool {
		pod := d.pod(v.UID)
		if pod == nil || pod.LastStart > v.LastStart {
			d.left(&v)
			return true
		}
		return v.Status == Failed && d.now.Sub(v.Fell) >= failedFor ||
			v.Status == Stuck && d.now.Sub(v.Fell) >= stuckFor ||
			v.Status == Settled && d.in.Measured && d.now.Sub(v.Fell) >= stuckFor && d.now.Sub(v.Due) >= stuckFor
	})
	for i := range d.Victims {
		d.progress(&d.Victims[i])
	}
	for i := range d.Revivals {
		if r := &d.Revivals[i]; r.Gone && d.pod(r.UID) != nil {
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
	if v.Status != Unsettled && v.Status != Settled {
		return
	}
	if pod := d.pod(v.UID); d.in.Measured && pod.HasStats {
		held := pod.expected(signal.MemoryAvailable, d.policy.Layout)
		if v.Lowest-held >= min(progressBytes, max(1, v.Expected/progressShare)) {
			v.Lowest, v.Fell = held, d.now
		}
		if v.Status == Unsettled && v.Expected > 0 && held*10 <= v.Expected*(10-enoughReturned) {
			v.Status = Settled
			d.returned(group(v.Signal.Signal), false)
		}
	}
	if v.Status == Settled {
		return
	}
	from := v.Due
	if v.Fell.After(from) {
		from = v.Fell
	}
	if d.now.Sub(from) < d.policy.SettleTimeout {
		return
	}
	v.Status = Settled
	if !d.in.Measured {
		return
	}
	v.Status = Stuck
	d.out.Stuck = append(d.out.Stuck, v.UID)
	if !v.Limit {
		d.returned(group(v.Signal.Signal), v.Lowest > v.Expected/2)
	}
}

// backingOff reports whether a futile signal's next victim has to wait.
func (d *decision) backingOff(g signal.Signal) bool {
	return slices.ContainsFunc(d.Futile, func(b Backoff) bool { return b.Signal == g && d.now.Before(b.Until) })
}

// disappointed reports whether victims of the group do not return what is
// expected of them.
func (d *decision) disappointed(g signal.Signal) bool {
	stuck := 0
	for i := range d.Victims {
		if v := &d.Victims[i]; v.Status == Stuck && !v.Limit && group(v.Signal.Signal) == g {
			stuck++
		}
	}
	return stuck >= mostStuck || slices.ContainsFunc(d.Futile, func(b Backoff) bool { return b.Signal == g && b.Poor >= poorRun })
}

// giveUp starts or lengthens the back-off of a futile signal.
func (d *decision) giveUp(s signal.Signal, deficit int64, ranked []Ranked) {
	b := d.backoff(group(s))
	if len(ranked) > 0 {
		b.Delay = min(max(2*b.Delay, firstBackoff), longestBackoff)
		b.Until = d.now.Add(b.Delay)
	}
	f := Futility{Signal: s, Deficit: deficit, Until: b.Until}
	for i := range ranked {
		f.Coverage = saturatingAdd(f.Coverage, ranked[i].Expected)
	}
	d.out.Futile = append(d.out.Futile, f)
}
