package pods

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// minDetailBackoff and maxDetailBackoff bound the pause before a failed status call is
	// made again.
	minDetailBackoff, maxDetailBackoff = time.Second, 10 * time.Second
)

// errNotRequested means that no status call was made yet.
var errNotRequested = errors.New("its status was not read yet")

// details has the results of status calls for listed objects, by ID, while the objects are
// listed. The zero value is empty.
type details[T any] struct {
	known  map[string]*detail[T]
	wanted map[string]*detail[T] // in the current list
	now    time.Time
}

// detail is the result for one object.
type detail[T any] struct {
	value T
	err   error // why value is incomplete; nil if it is complete
	// state is the state in the list when the call was made. In another state the result is
	// outdated.
	state   uint8
	next    time.Time // when to call again
	backoff time.Duration
}

// begin starts a list. Results of objects that are not wanted until the next begin are dropped
// then.
func (d *details[T]) begin() {
	d.known, d.wanted = d.wanted, make(map[string]*detail[T], len(d.wanted))
}

// want adds a listed object with its state.
func (d *details[T]) want(id string, state uint8, now time.Time) {
	d.now = now
	result := d.known[id]
	if result == nil || result.state != state {
		result = &detail[T]{state: state, err: errNotRequested}
	}
	d.wanted[id] = result
}

// get returns the result, and why it is incomplete; the zero value for an object that is not
// wanted.
func (d *details[T]) get(id string) (T, error) {
	if result := d.wanted[id]; result != nil {
		return result.value, result.err
	}
	var none T
	return none, errNotRequested
}

// due returns the calls to make, first attempts before retries. Each writes one detail, and
// does nothing after the end of ctx, which has a deadline.
func (d *details[T]) due(ctx context.Context, read func(ctx context.Context, id string) (T, error)) []func() {
	var first, retries []func()
	end, _ := ctx.Deadline()
	for id, result := range d.wanted {
		if result.err == nil || d.now.Before(result.next) {
			continue
		}
		call := func() {
			// Check the clock too: a context ends late on a busy machine.
			if ctx.Err() != nil || time.Until(end) <= 0 {
				return
			}
			began := time.Now()
			value, err := read(ctx, id)
			if err != nil && time.Until(end) <= 0 && time.Since(began) < ListInterval/2 {
				return // the deadline ended it early: no attempt
			}
			result.value, result.err = value, err
			result.backoff = min(max(2*result.backoff, minDetailBackoff), maxDetailBackoff)
			result.next = d.now.Add(result.backoff)
		}
		if result.backoff == 0 {
			first = append(first, call)
		} else {
			retries = append(retries, call)
		}
	}
	return append(first, retries...)
}

// parallel makes the calls, parallelDetails at a time, and returns when all are done.
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
