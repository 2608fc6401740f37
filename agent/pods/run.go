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
	// shortestGap is left between lists that changes ask for: they come in
	// bursts.
	shortestGap = 100 * time.Millisecond
	// watchAgain and watchAgainUnable are left between attempts to watch a
	// source.
	watchAgain, watchAgainUnable = time.Second, time.Minute
	// watchHolds is how long a watch must last to be relied on: it is not
	// acknowledged, only refused.
	watchHolds = time.Second
)

// Run keeps the list fresh until ctx ends, and returns nil then.
func (i *Inventory) Run(ctx context.Context) error {
	var watches sync.WaitGroup
	defer watches.Wait()
	for _, s := range i.sources {
		watches.Go(func() { i.watch(ctx, s) })
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
		if err == nil && i.watched() {
			timer.Reset(watchedEvery)
		} else {
			timer.Reset(listEvery)
		}
	}
}

// watched reports whether every source tells of changes.
func (i *Inventory) watched() bool {
	for _, s := range i.sources {
		if since := s.watched.Load(); since == nil || time.Since(*since) < watchHolds {
			return false
		}
	}
	return true
}

// watch follows a source's changes until ctx ends.
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
