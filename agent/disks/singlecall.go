package disks

import (
	"fmt"
	"sync"
	"time"
)

// HungError reports that a call has not returned in time.
type HungError struct {
	Call string
	// Since is when the call began, and Hung how long it had been running when the
	// error was made.
	Since time.Time
	Hung  time.Duration
}

func (e *HungError) Error() string {
	return fmt.Sprintf("%s has not returned for %v", e.Call, e.Hung.Round(10*time.Millisecond))
}

// singleCall runs a call that may never return. At most one goroutine exists for
// it, however often call is used. Its methods are safe for concurrent use.
type singleCall[T any] struct {
	what string

	mu      sync.Mutex
	started time.Time // when the call in flight began; zero for none
}

// call runs f on a goroutine of its own and waits for its result until timeout.
// While an earlier f has not returned, call does not start another and returns a
// [HungError] at once.
func (c *singleCall[T]) call(timeout time.Duration, f func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	now := time.Now()
	c.mu.Lock()
	if !c.started.IsZero() {
		defer c.mu.Unlock()
		return none, &HungError{c.what, c.started, now.Sub(c.started)}
	}
	c.started = now
	c.mu.Unlock()

	answers := make(chan answer, 1)
	go func() {
		value, err := f()
		c.mu.Lock()
		c.started = time.Time{}
		c.mu.Unlock()
		answers <- answer{value, err}
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-timer.C:
		return none, &HungError{c.what, now, time.Since(now)}
	}
}

// singleCalls are calls by name. Each call that hangs keeps its own goroutine.
type singleCalls[T any] struct{ calls map[string]*singleCall[T] }

// get returns the call of that name, and removes others that are not in flight.
func (s *singleCalls[T]) get(what string) *singleCall[T] {
	if s.calls == nil {
		s.calls = map[string]*singleCall[T]{}
	}
	for name, other := range s.calls {
		if name != what && !other.inFlight() {
			delete(s.calls, name)
		}
	}
	if s.calls[what] == nil {
		s.calls[what] = &singleCall[T]{what: what}
	}
	return s.calls[what]
}

func (c *singleCall[T]) inFlight() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.started.IsZero()
}
