package reclaim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// callTimeout is after how long a call counts as hung: the reclaim goes on
	// without it. It is a fifth of orderTimeout.
	callTimeout = 2 * time.Second
	// maxOpenCalls limits the calls without a result, including those that hang:
	// each has a goroutine, and in a system call perhaps a thread.
	maxOpenCalls = 32
	// A call that hung is retried after hangBackoff, doubling to maxHangBackoff.
	hangBackoff, maxHangBackoff = 30 * time.Second, 8 * time.Minute
)

// errHung reports that a call has not returned in time.
var errHung = errors.New("no answer in time; will be retried")

// calls are requests to the runtime and to filesystems that may never return, by
// key. A call that hangs keeps its goroutine until it returns, and is not started
// again before its back-off has ended. Its methods are safe for concurrent use.
type calls struct {
	// ctx is the context of Run: calls outlive the reclaims that start them.
	ctx context.Context

	mu       sync.Mutex
	open     map[string]bool
	backoffs map[string]backoff
}

// backoff is the time during which a call that hung is not started again.
type backoff struct {
	until time.Time
	delay time.Duration
}

// start starts a call on a goroutine of its own, which passes the result to onResult.
// The error is errHung if an earlier call of the same key hangs or its
// back-off has not ended, or if maxOpenCalls have no result.
func (c *calls) start(key string, f func(context.Context) error, onResult func(error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b, known := c.backoffs[key]; c.open[key] || known && time.Now().Before(b.until) {
		return fmt.Errorf("%s: %w", key, errHung)
	}
	if len(c.open) >= maxOpenCalls {
		return fmt.Errorf("%s: not started, %d other calls in flight: %w", key, len(c.open), errHung)
	}
	if c.open == nil {
		c.open, c.backoffs = map[string]bool{}, map[string]backoff{}
	}
	c.open[key] = true
	go func() {
		err := f(c.ctx)
		c.mu.Lock()
		delete(c.open, key)
		switch b, known := c.backoffs[key]; {
		case errors.Is(err, context.DeadlineExceeded):
			c.extendBackoff(key)
		case known && err == nil || known && time.Now().After(b.until):
			delete(c.backoffs, key)
		}
		c.mu.Unlock()
		onResult(err)
	}()
	return nil
}

// markHung records that a call has not returned within callTimeout, and returns an
// errHung.
func (c *calls) markHung(key string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[key] {
		c.extendBackoff(key)
	}
	return fmt.Errorf("%s: %w", key, errHung)
}

// extendBackoff starts or doubles a back-off. mu must be locked. Back-offs that
// ended more than maxHangBackoff ago are deleted, so that the map does not grow with
// each new key whose call hangs.
func (c *calls) extendBackoff(key string) {
	now := time.Now()
	b, known := c.backoffs[key]
	switch {
	case !known:
		b.delay = hangBackoff
	case now.Before(b.until):
		return // this attempt was counted before
	default:
		b.delay = min(2*b.delay, maxHangBackoff)
	}
	b.until = now.Add(b.delay)
	c.backoffs[key] = b
	for other, o := range c.backoffs {
		if now.Sub(o.until) > maxHangBackoff {
			delete(c.backoffs, other)
		}
	}
}

// do starts a call and waits for its result, at most for callTimeout or until ctx
// ends.
func (c *calls) do(ctx context.Context, key string, f func(context.Context) error) error {
	results := make(chan error, 1)
	if err := c.start(key, f, func(err error) { results <- err }); err != nil {
		return err
	}
	timer := time.NewTimer(callTimeout)
	defer timer.Stop()
	select {
	case err := <-results:
		return err
	case <-timer.C:
		return c.markHung(key)
	case <-ctx.Done():
		return ctx.Err()
	}
}
