package agent

import (
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/reclaim"
	"github.com/evictd/evictd/kernel"
)

// buildReclaimer makes what frees space before a pod has to go.
func (d *daemon) buildReclaimer(cfg *config.Config) {
	o := reclaim.Options{
		Space: d.disks, Unmeasured: d.unmeasured(), Rootfs: d.options.Rootfs, Procfs: kernel.FS(d.options.Procfs), Log: d.log.Logger,
		// Until a mode is known nothing is touched.
		DryRun: func() bool {
			v := d.view.Load()
			return v == nil || v.Mode.DryRun
		},
		Kubelet: d.inventory.Kubelet,
		Changed: func(r evict.ReclaimReport) {
			d.metrics.Reclaimed(&r)
			d.keeper.poke()
		},
	}
	o.Seen = func() { d.keeper.poke() }
	if d.runtime != nil {
		o.Runtime = d.runtime
	}
	d.reclaimer = reclaim.New(o, reclaimPolicy(cfg))
}

// listAgain is how often a list is asked for that is waited for.
const listAgain = time.Second

// unmeasured returns what names what of the pods' disk usage was not measured since a
// time, "" for nothing. A pod that has begun since may not be listed yet: before it
// is, another would be chosen for what it holds.
func (d *daemon) unmeasured() func(since time.Time) string {
	var asked time.Time
	return func(since time.Time) string {
		if d.runtime == nil || d.diskUsage.Covers(since) {
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
