package status

import (
	"errors"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/oomscore"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// oomScores reads the oom_score_adj of each container.
func (b *Backend) oomScores(v *loop.View) (list control.List[control.OOMScore]) {
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

// oomScore reads the oom_score_adj of one container; ok is false if it is gone.
func (b *Backend) oomScore(pod string, c *evict.RunningContainer) (score control.OOMScore, ok bool) {
	score = control.OOMScore{Pod: pod, Container: c.Name, Wanted: c.OOMScoreAdj, From: c.OOMScoreFrom, Error: c.Unproven}
	if c.Cgroup == "" {
		return score, true
	}
	one := oomscore.Container{Cgroup: c.Cgroup, ID: c.CgroupID}
	if c.OOMScoreAdj != nil {
		one.Wanted = *c.OOMScoreAdj
	}
	seen, err := oomscore.Inspect(b.o.Hierarchy, kernel.FS(b.o.Procfs), one)
	switch {
	case errors.Is(err, cgroup.ErrGone):
		return score, false
	case err != nil:
		score.Error = err.Error()
		return score, true
	}
	score.Processes, score.Group = seen.Processes, seen.Group
	if seen.Processes > 0 {
		score.Min, score.Max = &seen.Min, &seen.Max
	}
	if c.OOMScoreAdj != nil {
		score.Mismatched = &seen.Mismatched
	}
	return score, true
}
