package pods

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// ListInterval is how often pods are listed without reports of changes, like the
	// kubelet's PLEG, and how often at most a part of evictd that waits for a change requests
	// a list. With reports it is watchedListInterval, as some may be lost.
	ListInterval, watchedListInterval = time.Second, 10 * time.Second
	// unchangedListInterval is the maximum while the runtime reports changes and a walk each
	// second finds the cgroups of all listed pods and no others.
	unchangedListInterval = 30 * time.Second
	// minListGap is the minimum between lists that changes request: changes come in bursts.
	minListGap = 100 * time.Millisecond
	// watchBackoff and unwatchableBackoff are the pauses between attempts to watch the
	// runtime, the second if it can't be watched.
	watchBackoff, unwatchableBackoff = time.Second, time.Minute
	// minWatchAge is how long a watch must last to be relied on: a runtime refuses a watch
	// within that time and does not confirm one.
	minWatchAge = time.Second
)

// Run keeps the list current until ctx ends, and returns nil then.
func (inv *Inventory) Run(ctx context.Context) error {
	var watches sync.WaitGroup
	defer watches.Wait()
	if inv.runtime != nil {
		watches.Go(func() { inv.watchRuntime(ctx, inv.runtime) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-inv.refresh:
		case <-inv.runtimeChanged:
			if rest := minListGap - time.Since(last); rest > 0 {
				timer.Reset(rest)
				continue
			}
		}
		// This list covers all requests so far.
		drain(inv.refresh)
		drain(inv.runtimeChanged)
		// The error is logged and in the status; the list is tried again.
		err := inv.Sync(ctx)
		last = time.Now()
		if err != nil {
			timer.Reset(ListInterval)
		} else {
			timer.Reset(nextListIn(inv.unchangedFor(last), inv.watched(), inv.current.Load().allBelowKubepods))
		}
	}
}

// nextListIn returns when to list next if nothing requests it earlier. unchanged is for how
// long walks have found the same cgroups. A runtime can be configured to place a pod
// outside the walked cgroups, so watchedListInterval bounds how long a pod goes unseen. The
// interval is longer only if the runtime reports changes and no pod is elsewhere.
func nextListIn(unchanged time.Duration, watched, allBelowKubepods bool) time.Duration {
	switch {
	case watched && allBelowKubepods:
		return min(max(unchanged, watchedListInterval), unchangedListInterval)
	case watched:
		return watchedListInterval
	}
	return min(max(unchanged, ListInterval), watchedListInterval)
}

// watched reports whether there is no runtime, or it reports changes.
func (inv *Inventory) watched() bool {
	if inv.runtime == nil {
		return true
	}
	since := inv.runtime.watched.Load()
	return since != nil && time.Since(*since) >= minWatchAge
}

// walkResult is what a walk of the cgroups shows about the list.
type walkResult struct {
	at       time.Time
	setHash  uint64
	changed  time.Time // when setHash was first this value
	complete bool      // it found all listed containers
}

// maxWalkAge is how old a walk may be to count: three of the intervals of a second at which the
// decision loop measures.
const maxWalkAge = 3 * time.Second

// unchangedFor returns for how long walks have found the same set of cgroups; 0 without a
// recent walk that found all containers. No container starts or ends without a change of
// its cgroup, so the next list may wait as long: a container whose cgroup was created
// recently is listed soon, and then less and less often.
func (inv *Inventory) unchangedFor(now time.Time) time.Duration {
	walk := inv.lastWalk.Load()
	if walk == nil || !walk.complete || inv.current.Load().hasUnstarted || now.Sub(walk.at) >= maxWalkAge {
		return 0
	}
	return now.Sub(walk.changed)
}

// watchRuntime watches the runtime's changes until ctx ends.
func (inv *Inventory) watchRuntime(ctx context.Context, r *trackedRuntime) {
	for ctx.Err() == nil {
		r.watched.Store(new(time.Now()))
		err := r.Watch(ctx, func() { notify(inv.runtimeChanged) })
		r.watched.Store(nil)
		again := watchBackoff
		if errors.Is(err, ErrUnwatchable) {
			again = unwatchableBackoff
		} else {
			notify(inv.runtimeChanged) // list what was not reported
		}
		inv.log.Debug("runtime does not report changes; listing instead", "endpoint", r.Name(), "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

// notify makes a channel of capacity 1 readable. It does not block.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// drain empties the channel.
func drain(c chan struct{}) {
	select {
	case <-c:
	default:
	}
}
