package disks

import (
	"fmt"
	"sync"
	"time"
)

// HungError says that a question was asked and has not been answered.
type HungError struct {
	What string
	// Since is when it was asked, Hung for how long that was at the time of the
	// error.
	Since time.Time
	Hung  time.Duration
}

func (e *HungError) Error() string {
	return fmt.Sprintf("%s has not returned for %v", e.What, e.Hung.Round(10*time.Millisecond))
}

// errand asks one question that may never be answered. There is at most one
// goroutine for it, however often it is asked. Its methods may be called
// concurrently.
type errand[T any] struct {
	what string

	mu    sync.Mutex
	asked time.Time // of the question that is open; zero for none
}

// ask has f answer on a goroutine of its own and waits for that, at most for a
// time. While an earlier answer is open it does not ask and is a [HungError] at
// once.
func (e *errand[T]) ask(patience time.Duration, f func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	now := time.Now()
	e.mu.Lock()
	if !e.asked.IsZero() {
		defer e.mu.Unlock()
		return none, &HungError{e.what, e.asked, now.Sub(e.asked)}
	}
	e.asked = now
	e.mu.Unlock()

	answers := make(chan answer, 1)
	go func() {
		value, err := f()
		e.mu.Lock()
		e.asked = time.Time{}
		e.mu.Unlock()
		answers <- answer{value, err}
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-timer.C:
		return none, &HungError{e.what, now, time.Since(now)}
	}
}

// errands are questions by what they ask. Each that hangs keeps its own
// goroutine.
type errands[T any] struct{ open map[string]*errand[T] }

// to returns the errand of that name, and forgets others that are not open.
func (e *errands[T]) to(what string) *errand[T] {
	if e.open == nil {
		e.open = map[string]*errand[T]{}
	}
	for name, other := range e.open {
		if name != what && !other.isOpen() {
			delete(e.open, name)
		}
	}
	if e.open[what] == nil {
		e.open[what] = &errand[T]{what: what}
	}
	return e.open[what]
}

func (e *errand[T]) isOpen() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.asked.IsZero()
}
