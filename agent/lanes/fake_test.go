package lanes

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// fakeWaiter is a Waiter that records sources and alarms.
type fakeWaiter struct {
	mu      sync.Mutex
	sources []Source
	raised  []Alarm
}

func (e *fakeWaiter) Add(s Source) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sources = append(e.sources, s)
	return nil
}

func (e *fakeWaiter) Remove(s Source) error {
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

func (e *fakeWaiter) Raise(a Alarm) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.raised = append(e.raised, a)
	return nil
}

func (e *fakeWaiter) alarms() []Alarm {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]Alarm(nil), e.raised...)
}

// fakeLane covers the hard threshold on memory.available. Its alarms come from raise.
type fakeLane struct {
	wait         Waiter
	mu           sync.Mutex
	opens        []time.Time
	closes       int
	fullChecks   int // reconciles that were not idle
	ticks        uint64
	openErr      error
	reconcileErr error
	isOpen       bool
	uncovers     atomic.Bool
	tolerance    int64
	sample       func() int64 // what lastSample returns; nil for none
	failure      string
}

func (l *fakeLane) open(now time.Time, _ *laneInput) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opens = append(l.opens, now)
	l.isOpen = l.openErr == nil
	return l.openErr
}

func (l *fakeLane) reconcile(_ time.Time, w *laneInput) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.idle {
		l.fullChecks++
	}
	l.ticks++
	return l.reconcileErr
}

func (l *fakeLane) covers(id signal.ThresholdID) (int64, bool) {
	return max(l.tolerance, 1<<20), id == 1 && !l.uncovers.Load()
}

func (l *fakeLane) lastSample(id signal.ThresholdID) (available, below, above int64, ok bool) {
	if l.sample == nil || id != 1 {
		return 0, 0, 0, false
	}
	return l.sample(), gib, gib + 1<<20, true
}

func (l *fakeLane) reconciled() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ticks
}

func (l *fakeLane) heartbeat() uint64 { return l.reconciled() }

func (l *fakeLane) period() time.Duration { return time.Millisecond }

func (l *fakeLane) partialFailure() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

func (l *fakeLane) setFailure(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failure = text
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
	return l.wait.Raise(Alarm{Lane: "fake", Threshold: 1, Seen: time.Now()})
}

// testSet is a Set with one fake lane, and the memory that it watches.
type testSet struct {
	*Set
	lane    *fakeLane
	waiter  *fakeWaiter
	poll    *Poll
	mu      sync.Mutex
	memory  int64        // available
	reads   atomic.Int32 // by the Set
	changes []Status
}

func newTestSet(t *testing.T, fault *Fault, mode Mode) *testSet {
	t.Helper()
	w := &testSet{waiter: &fakeWaiter{}, memory: 10 * gib}
	read := func(now time.Time, o *signal.Observations) {
		w.mu.Lock()
		defer w.mu.Unlock()
		*o = observed(w.memory)
		o[signal.MemoryAvailable].Time = now
	}
	w.poll = NewPoll(func(now time.Time, o *signal.Observations) {
		read(now, o)
		w.Observe(now, o)
	}, 2, 0)
	w.Set = &Set{o: SetOptions{
		Read: func(now time.Time, o *signal.Observations) {
			w.reads.Add(1)
			read(now, o)
		},
		Wait: w.waiter, Poll: w.poll, Modes: map[string]Mode{"fake": mode}, Faults: map[string]*Fault{"fake": fault},
		Changed: func(s Status) { w.changes = append(w.changes, s) },
	}, wake: make(chan struct{}, 1), start: time.Now()}
	w.lane = &fakeLane{wait: w.Set}
	w.add("fake", w.lane)
	w.Arm(thresholds(t, map[string]time.Duration{"1Gi": 0}))
	w.poll.Arm(thresholds(t, map[string]time.Duration{"1Gi": 0}))
	return w
}

// setMemory sets how much is available, and raises an alarm of the lane if raises is set.
func (w *testSet) setMemory(t *testing.T, available int64, raises bool) {
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

func (w *testSet) status() Status { return w.Statuses(time.Now())[0] }
