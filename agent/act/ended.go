package act

import (
	"context"
	"errors"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel/cgroup"
)

// allEnded reports whether the containers have ended. errs has the runtime's
// answers, in the order of the containers. An error is ignored if the container's
// cgroup is empty: under pressure the runtime may time out and still stop the
// container.
func (k *Killer) allEnded(containers []evict.RunningContainer, errs []error) bool {
	for i, c := range containers {
		if errs[i] != nil && !k.cgroupEmpty(c) {
			return false
		}
	}
	return true
}

// cgroupEmpty reports whether a container's cgroup has no process or is gone. It
// returns false if that can't be read.
func (k *Killer) cgroupEmpty(c evict.RunningContainer) bool {
	if c.Cgroup == "" {
		return false
	}
	group, err := k.hierarchy.Open(c.Cgroup)
	if err != nil {
		return errors.Is(err, cgroup.ErrGone)
	}
	defer group.Close()
	if group.ID() != c.CgroupID {
		return true // the path names a newer cgroup
	}
	populated, err := group.Populated()
	return err == nil && !populated || errors.Is(err, cgroup.ErrGone)
}

// waitEnded waits up to drainTimeout for containers that the runtime was asked to
// stop without answering, and reports whether they ended.
func (k *Killer) waitEnded(ctx context.Context, containers []evict.RunningContainer, errs []error) bool {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		if k.allEnded(containers, errs) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
}
