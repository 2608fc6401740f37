package agent

import (
	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/oomscore"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// buildScores makes what keeps the OOM scores of containers at what they should be.
func (d *daemon) buildScores(h *cgroup.Hierarchy) *oomscore.Enforcer {
	return oomscore.New(oomscore.Options{
		Hierarchy: h, Procfs: kernel.FS(d.options.Procfs), Containers: d.enforcedScores,
		Changed: d.metrics.ScoresCorrected, Log: d.log.Logger,
	})
}

// enforcedScores lists the containers whose scores are enforced now: none in a dry
// run, and none of a kubelet's pods.
func (d *daemon) enforcedScores() (list []oomscore.Container) {
	v := d.view.Load()
	if v == nil || v.Mode.DryRun || v.Config.OOMScoreAdj != config.OOMScoreAdjEnforce {
		return nil
	}
	for i := range v.Snapshot.Pods {
		p := &v.Snapshot.Pods[i]
		handle := v.Snapshot.Handles[p.UID]
		for n := range handle.Containers {
			if c, ok := scored(p.Key(), &handle.Containers[n]); ok && handle.Owned {
				list = append(list, c)
			}
		}
	}
	return list
}

// scored returns a container whose score is known that it should have.
func scored(pod string, c *evict.ContainerHandle) (oomscore.Container, bool) {
	if c.Cgroup == "" || c.OOMScoreAdj == nil {
		return oomscore.Container{}, false
	}
	return oomscore.Container{Pod: pod, Name: c.Name, Cgroup: c.Cgroup, ID: c.CgroupID, Wanted: *c.OOMScoreAdj}, true
}
