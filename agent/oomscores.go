package agent

import (
	"errors"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/oomscore"
	"github.com/evictd/evictd/agent/pods"
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
	v := d.board.view.Load()
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
func scored(pod string, c *pods.ContainerHandle) (oomscore.Container, bool) {
	if c.Cgroup == "" || c.OOMScoreAdj == nil {
		return oomscore.Container{}, false
	}
	return oomscore.Container{Pod: pod, Name: c.Name, Cgroup: c.Cgroup, ID: c.CgroupID, Wanted: *c.OOMScoreAdj}, true
}

// oomScores reads what the kernel's OOM killer is told of each container.
func (b *board) oomScores(v *loop.View) (list control.List[control.OOMScore]) {
	if v.Config.OOMScoreAdj == config.OOMScoreAdjOff {
		return nil
	}
	for i := range v.Snapshot.Pods {
		p := &v.Snapshot.Pods[i]
		handle := v.Snapshot.Handles[p.UID]
		for n := range handle.Containers {
			if score, ok := b.oomScore(p.Key(), &handle.Containers[n]); ok {
				list = append(list, score)
			}
		}
	}
	return list
}

// oomScore reads that of one container, which may have gone.
func (b *board) oomScore(pod string, c *pods.ContainerHandle) (control.OOMScore, bool) {
	score := control.OOMScore{Pod: pod, Container: c.Name, Wanted: c.OOMScoreAdj, From: c.OOMScoreFrom, Error: c.Unproven}
	if c.Cgroup == "" {
		return score, true
	}
	one := oomscore.Container{Cgroup: c.Cgroup, ID: c.CgroupID}
	if c.OOMScoreAdj != nil {
		one.Wanted = *c.OOMScoreAdj
	}
	seen, err := oomscore.Look(b.hierarchy, kernel.FS(b.options.Procfs), one)
	switch {
	case errors.Is(err, cgroup.ErrGone):
		return score, false
	case err != nil:
		score.Error = err.Error()
		return score, true
	}
	score.Processes, score.Group = seen.Processes, seen.Group
	if seen.Processes > 0 {
		score.Least, score.Most = &seen.Least, &seen.Most
	}
	if c.OOMScoreAdj != nil {
		score.Wrong = &seen.Wrong
	}
	return score, true
}
