package agent

import (
	"context"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/metrics"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/self"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/agent/status"
	"github.com/evictd/evictd/agent/tasks"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// memoryOptions returns where memory is read, and how it is counted.
func (d *daemon) memoryOptions(cfg *config.Config, h *cgroup.Hierarchy) memory.Options {
	return memory.Options{
		Procfs: kernel.FS(d.options.Procfs), Hierarchy: h, CgroupRoot: cfg.CgroupRoot,
		CountCache: cfg.MemoryAccounting == config.AccountingAvailable, Thresholds: &d.thresholds,
		Drift: memory.HostDrift(kernel.FS(d.options.Sysfs)),
	}
}

// buildLanes makes and opens the lanes. It fails if a required one is not available.
func (d *daemon) buildLanes(cfg *config.Config, h *cgroup.Hierarchy) error {
	options := d.memoryOptions(cfg, h)
	read, err := memory.Open(options)
	if err != nil {
		return err
	}
	d.closers = append(d.closers, read.Close)
	n := cfg.Notification
	d.lanes = lanes.NewSet(lanes.SetOptions{
		Options: options, Sysfs: kernel.FS(d.options.Sysfs), Wait: d.hot, Poll: d.poll,
		Read: func(now time.Time, into *signal.Observations) { read.Read(now, into) },
		Modes: map[string]lanes.Mode{
			lanes.BPF: lanes.Mode(n.BPF), lanes.Memcg: lanes.Mode(n.Memcg), lanes.Events: lanes.Mode(n.Events),
			lanes.PSI: lanes.Mode(n.PSI), lanes.Reclaim: lanes.Mode(n.Reclaim), lanes.Forks: lanes.Mode(n.Forks),
		},
		Tasks:        countedTasks{d.tasks},
		BPFMinPeriod: n.BPFFloor, BPFMaxPeriod: n.BPFCeiling,
		Stall: cfg.Pressure.Memory.Full.Stall, StallWindow: cfg.Pressure.Memory.Full.Window,
		SamplerReader: d.samplerReader,
		Changed:       d.logLane,
	})
	d.closers = append(d.closers, d.lanes.Close)
	d.metrics.Notification(d.notification)
	thresholds := thresholdsOf(cfg.Policy(d.disks.Layout()))
	d.thresholds.Set(thresholds)
	d.lanes.Arm(thresholds)
	return d.lanes.Open()
}

// countedTasks is a tasks.Watch as lanes.Tasks.
type countedTasks struct{ *tasks.Watch }

// Use implements lanes.Tasks.
func (t countedTasks) Use(c lanes.TaskCounter) error { return t.Watch.SetCounter(c) }

// thresholdsOf returns the thresholds of a policy, as the lanes watch them.
func thresholdsOf(p *evict.Policy) []signal.Threshold {
	var list []signal.Threshold
	for _, t := range p.Thresholds {
		list = append(list, t.Threshold)
	}
	return list
}

// logLane logs a lane's change of state.
func (d *daemon) logLane(s lanes.Status) {
	switch s.State {
	case lanes.Degraded:
		d.log.Warn("lane degraded; the other lanes remain", "lane", s.Name, "why", s.Reason)
	case lanes.Unavailable:
		d.log.Info("lane not available on this host", "lane", s.Name, "why", s.Reason)
	case lanes.Up:
		attributes := []any{"lane", s.Name}
		if s.Reason != "" {
			attributes = append(attributes, "note", s.Reason)
		}
		d.log.Info("lane up", attributes...)
	}
}

// startLanes starts the lanes and the reader of the OOM killer's victims.
func (d *daemon) startLanes(ctx context.Context, g *group) {
	g.run("lanes", func() error { return d.lanes.Run(ctx) })
	g.run("kernel's kills", func() error { d.kernelOOMKills().Run(ctx); return nil })
}

// followContainers gives the cgroups of the running containers to the lanes.
func (d *daemon) followContainers(s *pods.Snapshot) {
	cgroups := map[string]bool{}
	for _, h := range s.Handles {
		for _, c := range h.Containers {
			if c.Cgroup != "" {
				cgroups[c.Cgroup] = true
			}
		}
	}
	d.lanes.FollowContainers(cgroups)
	kubelet := s.Kubelet.Process
	if kubelet != "" {
		kubelet += ", boot " + d.bootID
	}
	d.facts.SeeKubelet(kubelet)
}

// notification returns the metrics of the lanes and the hot path.
func (d *daemon) notification() (n metrics.Notification) {
	n = status.Notification(d.lanes, kernel.FS(d.options.Procfs))
	n.Alarms, n.Readings = d.hotPathCounts()
	return n
}

// lanesStarting reports whether a lane has not been opened yet.
func (d *daemon) lanesStarting() bool {
	return slices.ContainsFunc(d.lanes.Statuses(time.Now()), func(s lanes.Status) bool { return s.State == lanes.Starting })
}

// urgency returns the pressure level of the loop's last iteration.
func (d *daemon) urgency() self.Urgency {
	v := d.lastView.Load()
	switch {
	case v == nil || v.Busy():
		return self.Busy
	case v.NearThreshold():
		return self.Near
	}
	return self.Idle
}

// kernelOOMKills makes the reporter of the kernel's OOM kills.
func (d *daemon) kernelOOMKills() *status.KernelOOMKills {
	return &status.KernelOOMKills{
		Victims: d.lanes.OOMVictims(), Records: d.records, Warn: d.log.Warn,
		Count: d.metrics.KernelOOMKilled, Save: d.stateWriter.Request, List: d.inventory.Refresh,
		Snapshot: func() *pods.Snapshot {
			if v := d.lastView.Load(); v != nil {
				return &v.Snapshot
			}
			return &pods.Snapshot{}
		},
	}
}
