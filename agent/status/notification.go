package status

import (
	"time"

	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/metrics"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/psi"
)

// Notification returns the metrics of the lanes and the stalls that procfs has. The counts
// of the hot path are the caller's.
func Notification(set *lanes.Set, procfs kernel.FS) (n metrics.Notification) {
	n.Lanes = set.Statuses(time.Now())
	counts := set.Counts()
	if s := counts.Sampler; s != nil {
		n.Sampler = &metrics.Sampler{Ticks: s.Ticks, Lost: s.Lost, Period: s.Period, RunTime: s.RunTime}
	}
	if r := counts.Reclaim; r != nil {
		n.Reclaim = &metrics.Reclaim{KswapdWakes: r.KswapdWakes, Direct: r.DirectBegins, DirectTime: r.DirectTime, ThrottleTime: r.ThrottleTime}
	}
	if l := counts.Limits; l != nil {
		n.Limits = &metrics.Limits{Max: l.Max, OOM: l.OOM, OOMKills: l.OOMKills}
	}
	n.Stalls = stallTotals(procfs)
	return n
}

// stallTotals reads how long tasks have waited for each resource. It leaves out what the
// kernel does not have.
func stallTotals(procfs kernel.FS) (list []metrics.Stall) {
	both := func(resource psi.Resource, s psi.Stall, err error) {
		if err == nil {
			list = append(list, metrics.Stall{Resource: resource.String(), Kind: psi.Some.String(), Total: s.Some},
				metrics.Stall{Resource: resource.String(), Kind: psi.Full.String(), Total: s.Full})
		}
	}
	memory, err := psi.Memory(procfs)
	both(psi.ForMemory, memory, err)
	io, err := psi.IO(procfs)
	both(psi.ForIO, io, err)
	if cpu, err := psi.CPU(procfs); err == nil {
		list = append(list, metrics.Stall{Resource: psi.ForCPU.String(), Kind: psi.Some.String(), Total: cpu})
	}
	return list
}
