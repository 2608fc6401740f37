package pods

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// A detail that could not be had is asked for again after firstRetry, then
	// ever more rarely down to once in slowestRetry.
	firstRetry, slowestRetry = time.Second, 10 * time.Second
	// fairChance is how long a call must have had to count as an attempt when
	// the list's time ends it.
	fairChance = detailsTime / 2
)

// errNotAsked says that a detail was not asked for yet.
var errNotAsked = errors.New("its details were not asked for yet")

// details are what only single calls tell of things that are listed, kept by
// ID for as long as the things are. The zero value is empty.
type details[T any] struct {
	known  map[string]*detail[T]
	wanted map[string]*detail[T] // by the list at hand
	now    time.Time
}

// detail is what is known of one thing.
type detail[T any] struct {
	value T
	err   error // why value is not all; nil once it is
	// state is what the list said when it was asked for: with another, the
	// answer is another.
	state uint8
	next  time.Time // when to ask again
	delay time.Duration
}

// begin starts a list: what is not wanted until the next is forgotten.
func (d *details[T]) begin() {
	d.known, d.wanted = d.wanted, make(map[string]*detail[T], len(d.wanted))
}

// want says that a thing is listed, in a state.
func (d *details[T]) want(id string, state uint8, now time.Time) {
	d.now = now
	kept := d.known[id]
	if kept == nil || kept.state != state {
		kept = &detail[T]{state: state, err: errNotAsked}
	}
	d.wanted[id] = kept
}

// of returns what is known, and why that is not all; the zero value of what is
// not wanted.
func (d *details[T]) of(id string) (T, error) {
	if kept := d.wanted[id]; kept != nil {
		return kept.value, kept.err
	}
	var none T
	return none, errNotAsked
}

// due returns the calls to make, the first attempts before the others. Each
// writes to one detail alone, and does nothing once ctx, which has a deadline,
// has ended.
func (d *details[T]) due(ctx context.Context, ask func(ctx context.Context, id string) (T, error)) []func() {
	var first, again []func()
	end, _ := ctx.Deadline()
	for id, kept := range d.wanted {
		if kept.err == nil || d.now.Before(kept.next) {
			continue
		}
		call := func() {
			// The end of the time is looked for by the clock: a context learns of
			// it late when the processors are busy.
			if ctx.Err() != nil || time.Until(end) <= 0 {
				return
			}
			began := time.Now()
			value, err := ask(ctx, id)
			if err != nil && time.Until(end) <= 0 && time.Since(began) < fairChance {
				return
			}
			kept.value, kept.err = value, err
			kept.delay = min(max(2*kept.delay, firstRetry), slowestRetry)
			kept.next = d.now.Add(kept.delay)
		}
		if kept.delay == 0 {
			first = append(first, call)
		} else {
			again = append(again, call)
		}
	}
	return append(first, again...)
}

// parallel makes the calls, a few at a time, and returns when all are done.
func parallel(calls []func()) {
	queue := make(chan func())
	var workers sync.WaitGroup
	for range min(parallelDetails, len(calls)) {
		workers.Go(func() {
			for call := range queue {
				call()
			}
		})
	}
	for _, call := range calls {
		queue <- call
	}
	close(queue)
	workers.Wait()
}
