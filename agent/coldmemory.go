package agent

import (
	"github.com/evictd/evictd/agent/cold"
	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/reclaim"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel/cgroup"
)

// buildCold makes what has the kernel take back cold memory of pods.
func (d *daemon) buildCold(h *cgroup.Hierarchy) *cold.Reclaimer {
	return cold.New(cold.Options{Hierarchy: h, Plan: d.coldPlan, Done: d.coldDone, Log: d.log.Logger})
}

// coldPlan returns what memory is short under a soft threshold; nothing, in a dry
// run.
func (d *daemon) coldPlan() cold.Plan {
	v := d.view.Load()
	if v == nil || v.Mode.DryRun || v.Config.Reclaim.Memory == config.ReclaimMemoryOff {
		return cold.Plan{}
	}
	c := v.Policy.Cold(v.Snapshot.Pods, &v.Observations, &v.State, v.Time)
	plan := cold.Plan{Short: c.Short}
	for _, r := range c.Pods {
		pod := cold.Pod{UID: r.UID, Pod: r.Pod}
		for _, h := range v.Snapshot.Handles[r.UID].Containers {
			if h.Cgroup != "" {
				pod.Groups = append(pod.Groups, cold.Group{Path: h.Cgroup, ID: h.CgroupID})
			}
		}
		plan.Pods = append(plan.Pods, pod)
	}
	return plan
}

// coldDone tells what became of a pod's cold memory.
func (d *daemon) coldDone(r cold.Report) {
	report := evict.ReclaimReport{
		At: r.At, Kind: evict.ReclaimMemory, Reason: reclaim.Pressure, Signal: signal.MemoryAvailable,
		Removed: []string{r.Pod}, Freed: r.Gained, Took: r.Took,
	}
	if r.Err != nil {
		report.Error = r.Err.Error()
	}
	d.board.AddReclaim(report)
	d.metrics.Reclaimed(&report)
	d.log.Info("cold memory reclaimed", "pod", r.Pod, "asked", r.Asked, "gained", r.Gained, "took", r.Took.String(), "error", report.Error)
}
