package agent

import (
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/reclaim"
	"github.com/evictd/evictd/kernel"
)

// buildReclaimer makes the node-level reclaim, which comes before evictions.
func (d *daemon) buildReclaimer(cfg *config.Config) {
	o := reclaim.Options{
		Filesystems: d.disks, Unmeasured: d.unmeasured(), Rootfs: d.options.Rootfs, Procfs: kernel.FS(d.options.Procfs), Log: d.log.Logger,
		// Before the first decision it is dry run.
		DryRun: func() bool {
			v := d.lastView.Load()
			return v == nil || v.Mode.DryRun
		},
		Kubelet: d.inventory.Kubelet,
		OnReport: func(r evict.ReclaimReport) {
			d.metrics.Reclaimed(&r)
			d.stateWriter.Request()
		},
	}
	o.OnImagesListed = func() { d.stateWriter.Request() }
	if d.runtime != nil {
		o.Runtime = d.runtime
	}
	d.reclaimer = reclaim.New(o, reclaimPolicy(cfg))
}

// unmeasured returns a function that describes which disk usage of the pods was not measured
// since a time; "" if all was. A pod that started since may not be listed yet, and another
// would be evicted for its disk usage.
func (d *daemon) unmeasured() func(since time.Time) string {
	var requested time.Time
	return func(since time.Time) string {
		if d.runtime == nil || d.diskUsage.Covers(since) {
			return d.usageMeter.Unmeasured(since)
		}
		if now := time.Now(); now.Sub(requested) >= pods.ListInterval {
			requested = now
			d.inventory.Refresh()
		}
		return "a list of the pods"
	}
}

// reclaimPolicy returns the configuration's policy of node-level reclaim.
func reclaimPolicy(cfg *config.Config) reclaim.Policy {
	return reclaim.Policy{
		Images: reclaim.Mode(cfg.ImageGC), MinAge: cfg.ImageMinimumGCAge, MaxAge: cfg.ImageMaximumGCAge,
		High: cfg.ImageGCHighThresholdPercent, Low: cfg.ImageGCLowThresholdPercent,
		Settle: cfg.SettleTimeout,
	}
}
