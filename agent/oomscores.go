package agent

import (
	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/oomscore"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// buildScores makes the enforcer of the containers' OOM scores.
func (d *daemon) buildScores(h *cgroup.Hierarchy) *oomscore.Enforcer {
	return oomscore.New(oomscore.Options{
		Hierarchy: h, Procfs: kernel.FS(d.options.Procfs), Containers: d.enforcedScores,
		Changed: d.metrics.OOMScoresCorrected, Log: d.log.Logger,
	})
}

// enforcedScores returns the containers whose scores are enforced: none in dry run, and
// none of a kubelet's pods.
func (d *daemon) enforcedScores() (list []oomscore.Container) {
	v := d.lastView.Load()
	if v == nil || v.Mode.DryRun || v.Config.OOMScoreAdj != config.OOMScoreAdjEnforce {
		return nil
	}
	for i := range v.Snapshot.Pods {
		p := &v.Snapshot.Pods[i]
		handle := v.Snapshot.Handles[p.UID]
		for n := range handle.Containers {
			if c, ok := wantedScore(p.Key(), &handle.Containers[n]); ok && handle.Owned {
				list = append(list, c)
			}
		}
	}
	return list
}

// wantedScore returns a container with the score that it should have; ok is false if that
// is not known.
func wantedScore(pod string, c *evict.RunningContainer) (oomscore.Container, bool) {
	if c.Cgroup == "" || c.OOMScoreAdj == nil {
		return oomscore.Container{}, false
	}
	return oomscore.Container{Pod: pod, Name: c.Name, Cgroup: c.Cgroup, ID: c.CgroupID, Wanted: *c.OOMScoreAdj}, true
}
