package agent

import (
	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/proactive"
	"github.com/evictd/evictd/agent/reclaim"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel/cgroup"
)

// buildProactiveReclaim makes the proactive reclaimer of pods' memory.
func (d *daemon) buildProactiveReclaim(h *cgroup.Hierarchy) *proactive.Reclaimer {
	return proactive.New(proactive.Options{Hierarchy: h, Plan: d.proactivePlan, Done: d.proactiveReclaimed, Log: d.log.Logger})
}

// proactivePlan returns how much memory is missing above a soft threshold, and the pods to
// reclaim it from; an empty plan in dry run.
func (d *daemon) proactivePlan() proactive.Plan {
	v := d.lastView.Load()
	if v == nil || v.Mode.DryRun || v.Config.Reclaim.Memory == config.ReclaimMemoryOff {
		return proactive.Plan{}
	}
	c := v.Policy.ProactiveReclaim(v.Snapshot.Pods, &v.Observations, &v.State, v.Time)
	plan := proactive.Plan{Missing: c.Deficit}
	for _, r := range c.Pods {
		pod := proactive.Pod{UID: r.UID, Pod: r.Pod}
		for _, h := range v.Snapshot.Handles[r.UID].Containers {
			if h.Cgroup != "" {
				pod.Groups = append(pod.Groups, proactive.Group{Path: h.Cgroup, ID: h.CgroupID})
			}
		}
		plan.Pods = append(plan.Pods, pod)
	}
	return plan
}

// proactiveReclaimed reports what was reclaimed from a pod.
func (d *daemon) proactiveReclaimed(r proactive.Report) {
	report := evict.ReclaimReport{
		At: r.At, Kind: evict.ReclaimMemory, Reason: reclaim.Pressure, Signal: signal.MemoryAvailable,
		Removed: []string{r.Pod}, Freed: r.Gained, Duration: r.Took,
	}
	if r.Err != nil {
		report.Error = r.Err.Error()
	}
	d.statusBackend.AddProactiveReclaim(report)
	d.metrics.Reclaimed(&report)
	d.log.Info("memory of a pod reclaimed proactively", "pod", r.Pod, "asked", r.Asked, "gained", r.Gained, "took", r.Took.String(), "error", report.Error)
}
