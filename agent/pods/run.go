package pods

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// listEvery is how often the pods are listed where changes are not told;
	// where they are, tellings may be lost, so that watchedEvery finds what was
	// missed.
	listEvery, watchedEvery = time.Second, 10 * time.Second
	// steadyEvery is how often they are listed at least where changes are told and,
	// once a second, walks of the cgroups find all of them and nobody else.
	steadyEvery = 30 * time.Second
	// shortestGap is left between lists that changes ask for: they come in
	// bursts.
	shortestGap = 100 * time.Millisecond
	// watchAgain and watchAgainUnable are left between attempts to watch the
	// runtime.
	watchAgain, watchAgainUnable = time.Second, time.Minute
	// watchHolds is how long a watch must last to be relied on: it is not
	// acknowledged, only refused.
	watchHolds = time.Second
)

// Run keeps the list fresh until ctx ends, and returns nil then.
func (i *Inventory) Run(ctx context.Context) error {
	var watches sync.WaitGroup
	defer watches.Wait()
	if i.runtime != nil {
		watches.Go(func() { i.watch(ctx, i.runtime) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-i.refresh:
		case <-i.changed:
			if rest := shortestGap - time.Since(last); rest > 0 {
				timer.Reset(rest)
				continue
			}
		}
		// What was asked for until now is about to be done.
		drain(i.refresh)
		drain(i.changed)
		// What went wrong is logged and in the status; it is tried again.
		err := i.Sync(ctx)
		last = time.Now()
		if err != nil {
			timer.Reset(listEvery)
		} else {
			timer.Reset(rest(i.steady(last), i.watched(), i.world.Load().within))
		}
	}
}

// rest is how long a list is good enough unless something is told: steady is for
// how long walks have found nobody who came or went. A runtime can be told to put a
// pod where no walk comes by, so that this alone bounds by watchedEvery how long
// one is missed; beyond that it takes a runtime that tells, and no pod that is
// elsewhere.
func rest(steady time.Duration, watched, within bool) time.Duration {
	switch {
	case watched && within:
		return min(max(steady, watchedEvery), steadyEvery)
	case watched:
		return watchedEvery
	}
	return min(max(steady, listEvery), watchedEvery)
}

// watched reports whether there is no runtime, or it tells of changes.
func (i *Inventory) watched() bool {
	if i.runtime == nil {
		return true
	}
	since := i.runtime.watched.Load()
	return since != nil && time.Since(*since) >= watchHolds
}

// walk is what a walk of the cgroups told of the list.
type walk struct {
	at      time.Time
	shape   uint64
	changed time.Time // when the shape was first seen to be this
	covers  bool      // it found all containers that are listed
}

// walkHolds is how old a walk may be that is relied on.
const walkHolds = 3 * time.Second

// steady returns for how long walks of the cgroups have told that nobody came or
// went, as well as the runtime would: nothing runs, and nothing ends, without its
// cgroup. As long may pass until the next list: a container whose cgroup has come
// is soon listed, and the later the rarer. It is 0 where walks don't tell.
func (i *Inventory) steady(now time.Time) time.Duration {
	w := i.walk.Load()
	if w == nil || !w.covers || i.world.Load().unstarted || now.Sub(w.at) >= walkHolds {
		return 0
	}
	return now.Sub(w.changed)
}

// watch follows the runtime's changes until ctx ends.
func (i *Inventory) watch(ctx context.Context, s *tracked) {
	for ctx.Err() == nil {
		s.watched.Store(new(time.Now()))
		err := s.Watch(ctx, func() { poke(i.changed) })
		s.watched.Store(nil)
		again := watchAgain
		if errors.Is(err, ErrUnwatchable) {
			again = watchAgainUnable
		} else {
			poke(i.changed) // by listing, what was not told is found
		}
		i.log.Debug("changes are not told, listing instead", "source", s.Name(), "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

// poke makes a channel of capacity 1 readable. It never waits.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// drain makes it unreadable.
func drain(c chan struct{}) {
	select {
	case <-c:
	default:
	}
}
