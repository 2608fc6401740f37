package reclaim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// callPatience is after how long a call counts as hanging: a reclaim goes on
	// without it.
	callPatience = 2 * time.Second
	// mostOpen bounds the calls that are open at one time, those that hang included:
	// each keeps a goroutine, in a system call perhaps a thread.
	mostOpen = 32
	// firstRetry and slowestRetry are the waits before a call that hung is made again,
	// doubling.
	firstRetry, slowestRetry = 30 * time.Second, 8 * time.Minute
)

// errHangs says that a call has not been answered.
var errHangs = errors.New("has not answered in time, tried again later")

// calls are requests to the runtime and to filesystems that may never be answered.
// Each has a key. One that hangs is left alone: it keeps its goroutine until it
// returns, and is not made again before a back-off is over. Its methods are safe for
// concurrent use.
type calls struct {
	// ctx outlives the reclaims that make calls: it is Run's.
	ctx context.Context

	mu    sync.Mutex
	open  map[string]bool
	hangs map[string]backoff
}

// backoff is for how long a call that hung is not made again.
type backoff struct {
	until time.Time
	delay time.Duration
}

// begin makes a call on a goroutine of its own; answer is called with its result.
// The error, an errHangs, says that the call hangs since an earlier attempt, or that
// too many do.
func (c *calls) begin(key string, f func(context.Context) error, answer func(error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b, known := c.hangs[key]; c.open[key] || known && time.Now().Before(b.until) {
		return fmt.Errorf("%s: %w", key, errHangs)
	}
	if len(c.open) >= mostOpen {
		return fmt.Errorf("%s: not tried, %d other calls hang: %w", key, len(c.open), errHangs)
	}
	if c.open == nil {
		c.open, c.hangs = map[string]bool{}, map[string]backoff{}
	}
	c.open[key] = true
	go func() {
		err := f(c.ctx)
		c.mu.Lock()
		delete(c.open, key)
		switch b, known := c.hangs[key]; {
		case errors.Is(err, context.DeadlineExceeded):
			c.postpone(key)
		case known && err == nil || known && time.Now().After(b.until):
			delete(c.hangs, key)
		}
		c.mu.Unlock()
		answer(err)
	}()
	return nil
}

// hung notes that a call has not been answered for callPatience.
func (c *calls) hung(key string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[key] {
		c.postpone(key)
	}
	return fmt.Errorf("%s: %w", key, errHangs)
}

// postpone begins or doubles a back-off. The caller holds mu. Of a runtime that hangs
// over ever new things only the last are remembered.
func (c *calls) postpone(key string) {
	now := time.Now()
	b, known := c.hangs[key]
	switch {
	case !known:
		b.delay = firstRetry
	case now.Before(b.until):
		return // this attempt is counted
	default:
		b.delay = min(2*b.delay, slowestRetry)
	}
	b.until = now.Add(b.delay)
	c.hangs[key] = b
	for other, o := range c.hangs {
		if now.Sub(o.until) > slowestRetry {
			delete(c.hangs, other)
		}
	}
}

// do makes a call and waits for its answer, at most for callPatience or until ctx
// ends.
func (c *calls) do(ctx context.Context, key string, f func(context.Context) error) error {
	answers := make(chan error, 1)
	if err := c.begin(key, f, func(err error) { answers <- err }); err != nil {
		return err
	}
	timer := time.NewTimer(callPatience)
	defer timer.Stop()
	select {
	case err := <-answers:
		return err
	case <-timer.C:
		return c.hung(key)
	case <-ctx.Done():
		return ctx.Err()
	}
}
