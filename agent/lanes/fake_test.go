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

func (w *fakeWaiter) Add(s Source) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sources = append(w.sources, s)
	return nil
}

func (w *fakeWaiter) Remove(s Source) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.sources {
		if w.sources[i] == s {
			w.sources = append(w.sources[:i], w.sources[i+1:]...)
			return nil
		}
	}
	return errors.New("no such source")
}

func (w *fakeWaiter) Raise(a Alarm) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.raised = append(w.raised, a)
	return nil
}

func (w *fakeWaiter) alarms() []Alarm {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Alarm(nil), w.raised...)
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

func (l *fakeLane) reconcile(_ time.Time, in *laneInput) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !in.idle {
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
	ts := &testSet{waiter: &fakeWaiter{}, memory: 10 * gib}
	read := func(now time.Time, o *signal.Observations) {
		ts.mu.Lock()
		defer ts.mu.Unlock()
		*o = observed(ts.memory)
		o[signal.MemoryAvailable].Time = now
	}
	ts.poll = NewPoll(func(now time.Time, o *signal.Observations) {
		read(now, o)
		ts.Observe(now, o)
	}, 2, 0)
	ts.Set = &Set{o: SetOptions{
		Read: func(now time.Time, o *signal.Observations) {
			ts.reads.Add(1)
			read(now, o)
		},
		Wait: ts.waiter, Poll: ts.poll, Modes: map[string]Mode{"fake": mode}, Faults: map[string]*Fault{"fake": fault},
		Changed: func(s Status) { ts.changes = append(ts.changes, s) },
	}, wake: make(chan struct{}, 1), start: time.Now()}
	ts.lane = &fakeLane{wait: ts.Set}
	ts.add("fake", ts.lane)
	ts.Arm(thresholds(t, map[string]time.Duration{"1Gi": 0}))
	ts.poll.Arm(thresholds(t, map[string]time.Duration{"1Gi": 0}))
	return ts
}

// setMemory sets how much is available, and raises an alarm of the lane if raises is set.
func (ts *testSet) setMemory(t *testing.T, available int64, raises bool) {
	t.Helper()
	ts.mu.Lock()
	ts.memory = available
	ts.mu.Unlock()
	if raises {
		if err := ts.lane.raise(); err != nil {
			t.Error(err)
		}
	}
}

func (ts *testSet) status() Status { return ts.Statuses(time.Now())[0] }
