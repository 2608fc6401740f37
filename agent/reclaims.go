package agent

import (
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/reclaim"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
)

// buildReclaimer makes what frees space before a pod has to go.
func (d *daemon) buildReclaimer(cfg *config.Config) {
	o := reclaim.Options{
		Space: d.disks, Unmeasured: d.unmeasured(), Rootfs: d.options.Rootfs, Procfs: kernel.FS(d.options.Procfs), Log: d.log.Logger,
		// Until a mode is known nothing is touched.
		DryRun: func() bool {
			v := d.board.view.Load()
			return v == nil || v.Mode.dryRun
		},
		Kubelet: d.inventory.Kubelet,
		Changed: func(r reclaim.Report) {
			freed := r.Freed
			if r.Signal.IsInodes() {
				freed = 0
			}
			d.metrics.Reclaimed(string(r.Kind), len(r.Removed), freed, r.Took, r.DryRun)
			d.keeper.poke()
		},
	}
	o.Seen = func() { d.keeper.poke() }
	if d.runtime != nil {
		o.Runtime = d.runtime
	}
	d.reclaimer = reclaim.New(o, reclaimPolicy(cfg))
	d.loop.reclaimer, d.loop.usage.images = d.reclaimer, d.reclaimer.ImageBytes
}

// listAgain is how often a list is asked for that is waited for.
const listAgain = time.Second

// unmeasured returns what names what of the pods' disk usage was not measured since a
// time, "" for nothing. A pod that has begun since may not be listed yet: before it
// is, another would be chosen for what it holds.
func (d *daemon) unmeasured() func(since time.Time) string {
	var asked time.Time
	return func(since time.Time) string {
		if d.runtime == nil || d.loop.usage.covers(since) {
			return d.usages.Unmeasured(since)
		}
		if now := time.Now(); now.Sub(asked) >= listAgain {
			asked = now
			d.inventory.Refresh()
		}
		return "a list of the pods"
	}
}

func reclaimPolicy(cfg *config.Config) reclaim.Policy {
	return reclaim.Policy{
		Images: reclaim.Mode(cfg.ImageGC), MinAge: cfg.ImageMinimumGCAge, MaxAge: cfg.ImageMaximumGCAge,
		High: cfg.ImageGCHighThresholdPercent, Low: cfg.ImageGCLowThresholdPercent,
		Settle: cfg.SettleTimeout,
	}
}

// reclaimed takes the report of an order, which the next step waits for. That goes by
// what was measured meanwhile.
func (l *loop) reclaimed() {
	l.reclaiming = false
	l.usage.looked = time.Time{}
	l.outcomes = append(l.outcomes, evict.Outcome{})
}

// reclaim has an order carried out. One of an earlier run is done with.
func (l *loop) reclaim(v *View) {
	switch {
	case v.Orders.Reclaim != nil && !l.reclaiming:
		l.reclaiming = true
		l.reclaimer.Order(*v.Orders.Reclaim)
	case v.State.Reclaim != nil && v.State.Reclaim.Waiting && !l.reclaiming:
		l.outcomes = append(l.outcomes, evict.Outcome{})
	}
}

// discard tells the reclaimer of a pod that is killed for what it holds on a disk:
// that comes back when the runtime removes it, and is waited for until then.
func (l *loop) discard(v *View, o *evict.Order) {
	s, known := signal.Parse(o.Cause)
	if h := v.Snapshot.Handles[o.UID]; o.Hard && !(known && !s.IsDisk()) && h.Owned && !v.Mode.dryRun {
		l.reclaimer.Evicted(h.SandboxID, reclaim.Held{Amount: o.Expected, Inodes: known && s.IsInodes()})
	}
}

// gone tells the reclaimer what became of an eviction.
func (l *loop) gone(uid string, stage act.Stage) {
	h, ok := l.handles[uid]
	switch {
	case !ok || !h.Owned || l.mode.dryRun:
	case stage == act.LastGone:
		l.reclaimer.Evicted(h.SandboxID, reclaim.Held{})
	case stage == act.Refused:
		l.reclaimer.Spared(h.SandboxID)
	}
}

// reclaimStatus is a reclaim as evictctl shows it.
func reclaimStatus(r *reclaim.Report) control.Reclaim {
	return control.Reclaim{
		At: r.At, Kind: r.Kind, Reason: string(r.Reason), Signal: r.Signal, DryRun: r.DryRun, Removed: r.Removed,
		Freed: r.Freed, TookSeconds: r.Took.Seconds(), Note: r.Note, Error: r.Error,
	}
}
