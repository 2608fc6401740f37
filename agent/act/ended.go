package act

import (
	"context"
	"errors"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel/cgroup"
)

// ended reports whether the containers have ended, whatever the runtime answered:
// under pressure it may be too slow to say so, and what it was asked for happens
// all the same. errs holds the answers, in the order of the containers.
func (k *Killer) ended(containers []evict.ContainerHandle, errs []error) bool {
	for i, c := range containers {
		if errs[i] != nil && !k.empty(c) {
			return false
		}
	}
	return true
}

// empty reports whether nobody is in a container's cgroup, or the cgroup is gone.
// What can't be told is not empty.
func (k *Killer) empty(c evict.ContainerHandle) bool {
	if c.Cgroup == "" {
		return false
	}
	group, err := k.hierarchy.Open(c.Cgroup)
	if err != nil {
		return errors.Is(err, cgroup.ErrGone)
	}
	defer group.Close()
	if group.ID() != c.CgroupID {
		return true // it is another one by now
	}
	populated, err := group.Populated()
	return err == nil && !populated || errors.Is(err, cgroup.ErrGone)
}

// endsLater waits, for as long as a pod is not ordered to go again, for containers
// to end that the runtime was asked to stop and did not answer for.
func (k *Killer) endsLater(ctx context.Context, containers []evict.ContainerHandle, errs []error) bool {
	ctx, cancel := context.WithTimeout(ctx, longestDrain)
	defer cancel()
	for wait := firstAgain; ; wait = min(2*wait, longestAgain) {
		if k.ended(containers, errs) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
}
