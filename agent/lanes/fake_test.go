package lanes

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// ear is a Waiter that keeps what it hears.
type ear struct {
	mu      sync.Mutex
	sources []Source
	heard   []Raise
}

func (e *ear) Add(s Source) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sources = append(e.sources, s)
	return nil
}

func (e *ear) Remove(s Source) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.sources {
		if e.sources[i] == s {
			e.sources = append(e.sources[:i], e.sources[i+1:]...)
			return nil
		}
	}
	return errors.New("no such source")
}

func (e *ear) Raise(r Raise) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = append(e.heard, r)
	return nil
}

func (e *ear) alarms() []Raise {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]Raise(nil), e.heard...)
}

// fakeLane raises when memory.available is below its hard mark, unless it is
// told not to.
type fakeLane struct {
	wait     Waiter
	mu       sync.Mutex
	opens    []time.Time
	closes   int
	thorough int // turns that were not calm
	ticks    uint64
	openErr  error
	tendErr  error
	isOpen   bool
	uncovers atomic.Bool
	slack    int64
	own      func() int64 // its own figure; nil for none
	text     string
}

func (l *fakeLane) open(now time.Time, _ *watched) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opens = append(l.opens, now)
	l.isOpen = l.openErr == nil
	return l.openErr
}

func (l *fakeLane) tend(_ time.Time, w *watched) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.calm {
		l.thorough++
	}
	l.ticks++
	return l.tendErr
}

func (l *fakeLane) covers(m signal.Mark) (int64, bool) {
	return max(l.slack, 1<<20), m == 1 && !l.uncovers.Load()
}

func (l *fakeLane) figure(m signal.Mark) (available, below, above int64, ok bool) {
	if l.own == nil || m != 1 {
		return 0, 0, 0, false
	}
	return l.own(), gib, gib + 1<<20, true
}

func (l *fakeLane) tended() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ticks
}

func (l *fakeLane) beat() uint64 { return l.tended() }

func (l *fakeLane) period() time.Duration { return time.Millisecond }

func (l *fakeLane) note() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text
}

func (l *fakeLane) setNote(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = text
}

func (l *fakeLane) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closes++
	l.isOpen = false
	return nil
}

func (l *fakeLane) raise() error {
	l.mu.Lock()
	open := l.isOpen
	l.mu.Unlock()
	if !open {
		return nil
	}
	return l.wait.Raise(Raise{Lane: "fake", Mark: 1, Seen: time.Now()})
}

// world is a Set with one fake lane, and the memory that it watches.
type world struct {
	*Set
	lane    *fakeLane
	ear     *ear
	poll    *Poll
	mu      sync.Mutex
	memory  int64        // available
	reads   atomic.Int32 // by the Set itself
	changes []Status
}

func newWorld(t *testing.T, fault *Fault, mode Mode) *world {
	t.Helper()
	w := &world{ear: &ear{}, memory: 10 * gib}
	read := func(now time.Time, o *signal.Observations) {
		w.mu.Lock()
		defer w.mu.Unlock()
		*o = observed(w.memory)
		o[signal.MemoryAvailable].Time = now
	}
	w.poll = NewPoll(func(now time.Time, o *signal.Observations) {
		read(now, o)
		w.Seen(now, o)
	}, 2, 0)
	w.Set = &Set{o: SetOptions{
		Read: func(now time.Time, o *signal.Observations) {
			w.reads.Add(1)
			read(now, o)
		},
		Wait: w.ear, Poll: w.poll, Modes: map[string]Mode{"fake": mode}, Faults: map[string]*Fault{"fake": fault},
		Changed: func(s Status) { w.changes = append(w.changes, s) },
	}, wake: make(chan struct{}, 1), start: time.Now()}
	w.lane = &fakeLane{wait: w.Set}
	w.add("fake", w.lane)
	w.Arm(thresholds(t, map[string]time.Duration{"1Gi": 0}))
	w.poll.Arm(thresholds(t, map[string]time.Duration{"1Gi": 0}))
	return w
}

// setMemory sets what is available; a lane that works raises for what is low.
func (w *world) setMemory(t *testing.T, available int64, raises bool) {
	t.Helper()
	w.mu.Lock()
	w.memory = available
	w.mu.Unlock()
	if raises {
		if err := w.lane.raise(); err != nil {
			t.Error(err)
		}
	}
}

func (w *world) status() Status { return w.Statuses(time.Now())[0] }
