package agent

import (
	"cmp"
	"runtime"
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/self"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/cpu"
)

// buildObservers makes the inventory of the pods and the readers of memory.
func (d *daemon) buildObservers(cfg *config.Config, h *cgroup.Hierarchy) error {
	o := d.options
	procfs := kernel.FS(o.Procfs)
	inventory := pods.Options{
		Hierarchy: h, Procfs: procfs, CgroupRoot: cfg.CgroupRoot,
		TrustAnnotations: cfg.TrustAnnotations, KubeletAbsent: cfg.Kubelet == config.KubeletAbsent, Log: d.log.Logger,
	}
	if cfg.RuntimeEndpoint != config.RuntimeNone {
		endpoint := cmp.Or(cfg.RuntimeEndpoint, cri.FindEndpoint(o.Rootfs))
		var err error
		if d.runtime, err = cri.Connect(endpoint); err != nil {
			return err
		}
		d.closers = append(d.closers, d.runtime.Close)
		inventory.Runtime = pods.CountFailures(pods.NewCRI(d.runtime, endpoint), d.metrics.RuntimeCallFailed)
	}
	if d.facts != nil {
		d.facts.Busy = func() bool { return d.urgency() == self.Busy }
		inventory.Specifications, inventory.Forbidden = d.facts, d.orders.Forbidden
	}
	d.samplerReader = memory.NewSamplerReader(nil)
	inventory.Tree = d.samplerReader.Tree()
	d.inventory = pods.New(inventory)
	d.closers = append(d.closers, d.inventory.Close)

	options := d.memoryOptions(cfg, h)
	cpus, err := cpu.Online(kernel.FS(o.Sysfs))
	if err != nil {
		cpus = runtime.NumCPU() // for the first estimate of the fill rate
	}
	if d.pollReader, err = memory.Open(options); err != nil {
		return err
	}
	d.closers = append(d.closers, d.pollReader.Close)
	d.poll = lanes.NewPoll(func(now time.Time, into *signal.Observations) {
		d.pollReader.Read(now, into)
		d.lanes.Observe(now, into)
	}, cpus, options.Drift)
	return d.buildHot(options)
}
