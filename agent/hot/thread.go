package hot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/kernel/epoll"
)

// Options configure a Thread or a Watchdog.
type Options struct {
	Arbiter *Arbiter
	Reader  Reader
	// Killer kills. DryRunKiller makes the same checks without killing.
	Killer, DryRunKiller Killer
	// OnStart is called on the thread before its first wait, to set its priority.
	OnStart func()
}

// Thread is the thread of the hot path.
type Thread struct {
	decider
	sources sources
	started func()
	poller  *epoll.Poller
	pending atomic.Pointer[lanes.Alarm]
	request atomic.Pointer[KillRequest]
	task    atomic.Pointer[task]
	events  [16]epoll.Event
	early   earlyAlarm
}

// earlyAlarm is an alarm that came shortly before the crossing, for example from a lane
// whose number for file cache is some milliseconds old, or one of a crossing that pods cover that
// end without evictd. The thread then rechecks by itself for a while, because the lane raises no
// second alarm.
type earlyAlarm struct {
	alarm        lanes.Alarm
	since        time.Time // when the alarm was received
	rechecksLeft int
	covered      bool // the last reading was below the threshold, and was reported
}

const (
	// An alarm that is not confirmed is followed by maxRechecks readings, one per
	// recheckInterval. A covered crossing is followed by one per recheckInterval until it is not
	// covered any more, after the settle timeout at the latest.
	maxRechecks, recheckInterval = 20, time.Millisecond
	// recheckMargin is the greatest headroom of a recheck, in bytes: the rechecks cover
	// it even if memory is filled at 6 GiB per second.
	recheckMargin = 128 << 20
)

var _ lanes.Waiter = (*Thread)(nil)

// New returns a Thread that does not run yet.
func New(o Options) (*Thread, error) {
	t := &Thread{started: o.OnStart}
	t.setUp(&o)
	t.sources.byToken.Store(&map[uint64]lanes.Source{})
	var err error
	if t.poller, err = epoll.New(); err != nil {
		return nil, fmt.Errorf("hot path: %w", err)
	}
	return t, nil
}

// Add implements lanes.Waiter.
func (t *Thread) Add(s lanes.Source) error { return t.sources.add(t.poller, s) }

// Remove implements lanes.Waiter.
func (t *Thread) Remove(s lanes.Source) error { return t.sources.remove(t.poller, s) }

// Close closes the poller. Further calls do nothing.
func (t *Thread) Close() error { return t.poller.Close() }

// Publish sets the table that the thread decides by from now on.
func (t *Thread) Publish(table *Table) { t.publish(table) }

// Raise implements lanes.Waiter. While one alarm waits for the thread, later ones are
// dropped.
func (t *Thread) Raise(alarm lanes.Alarm) error {
	t.recordAnswer(&alarm) // also if the alarm is dropped
	t.pending.CompareAndSwap(nil, &alarm)
	return t.poller.Wake()
}

// KillRequest is a set of victims that the loop has the thread kill.
type KillRequest struct {
	Handles []Handle
	Guard   *evict.Guard
	DryRun  bool
	// Results has one result per handle. They are set when Execute has returned nil.
	Results []act.KillResult

	state atomic.Int32
	done  chan struct{}
}

// The states of a KillRequest.
const (
	waiting int32 = iota
	taken
	withdrawn
)

// ErrBusy means that the thread did not take a request in time. Nothing was killed for it.
var ErrBusy = errors.New("the hot path does not answer")

// Execute has the thread kill the pods of a request. The caller has acquired the generation
// that it decided on. Execute returns ErrBusy if the thread does not begin within timeout
// or before ctx ends. Once the thread has begun, Execute waits until it is done.
func (t *Thread) Execute(ctx context.Context, r *KillRequest, timeout time.Duration) error {
	r.done = make(chan struct{})
	r.Results = make([]act.KillResult, len(r.Handles))
	t.request.Store(r)
	if err := t.poller.Wake(); err != nil {
		return err
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-r.done:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	if r.state.CompareAndSwap(waiting, withdrawn) {
		return ErrBusy
	}
	<-r.done
	return nil
}

// task is a function to be called on the thread.
type task struct {
	f    func()
	done chan struct{}
}

// Do has the thread call f, and reports whether it has before ctx ends. It must not be
// called concurrently.
func (t *Thread) Do(ctx context.Context, f func()) bool {
	do := &task{f, make(chan struct{})}
	t.task.Store(do)
	if t.poller.Wake() != nil {
		return false
	}
	select {
	case <-do.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// Run serves alarms, requests and tasks until ctx ends, on a locked thread that ends with
// it.
func (t *Thread) Run(ctx context.Context) error {
	// Never unlocked: the thread has a priority and must not run other goroutines.
	runtime.LockOSThread()
	stop := context.AfterFunc(ctx, func() { t.poller.Close() })
	defer stop()
	if t.started != nil {
		t.started()
	}
	for {
		timeout := epoll.Forever
		if t.early.rechecksLeft > 0 {
			timeout = recheckInterval
		}
		n, err := t.poller.Wait(t.events[:], timeout)
		if ctx.Err() != nil && (err == nil || errors.Is(err, os.ErrClosed)) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("hot path: %w", err)
		}
		t.iterate(n)
	}
}

// iterate serves the request, the task, the raised alarm, and the first events of t.events.
// The request is first, because it was decided earlier. If there is no alarm, iterate
// rechecks an early one.
func (t *Thread) iterate(events int) {
	t.sources.iterations.Add(1)
	defer t.sources.iterations.Add(1)
	if r := t.request.Swap(nil); r != nil && r.state.CompareAndSwap(waiting, taken) {
		t.killRequested(r)
	}
	alarmed := false
	if do := t.task.Swap(nil); do != nil {
		do.f()
		close(do.done)
	}
	if alarm := t.pending.Swap(nil); alarm != nil {
		t.onAlarm(*alarm)
		alarmed = true
	}
	for _, e := range t.events[:events] {
		s := t.sources.source(e.Token)
		if s == nil {
			continue // removed since the kernel reported the event
		}
		if alarm, raised := s.Ready(time.Now()); raised {
			t.onAlarm(alarm)
			alarmed = true
		}
	}
	if !alarmed && t.early.rechecksLeft > 0 {
		t.recheck()
	}
}

// onAlarm decides on an alarm, and starts rechecks if it came early or its crossing is covered.
func (t *Thread) onAlarm(alarm lanes.Alarm) {
	t.early = earlyAlarm{}
	result := t.process(alarm)
	covered := t.covered(result)
	if !covered && (result != NotConfirmed || t.headroom >= recheckMargin) {
		return
	}
	if !covered {
		alarm.LastAbove = time.Now()
	}
	t.early = earlyAlarm{alarm: alarm, since: alarm.Seen, rechecksLeft: maxRechecks, covered: covered}
}

// covered reports whether no pod was killed because pods that end without evictd are expected to
// free enough. That does not hold any more once too little memory is left.
func (t *Thread) covered(result Result) bool {
	return result == Declined && t.table.Decision.AwaitsEnding()
}

// recheck takes one more reading after an early alarm or a covered crossing, and passes the alarm
// to the loop if the result is a new one.
func (t *Thread) recheck() {
	t.early.rechecksLeft--
	alarm := t.early.alarm
	alarm.Seen = time.Now()
	result := t.decide(alarm, t.early.since)
	switch {
	case t.covered(result):
		if !t.early.covered {
			t.report(result, alarm)
		}
		t.early.rechecksLeft, t.early.covered = maxRechecks, true
		return
	case result != NotConfirmed:
		t.report(result, alarm)
		t.early = earlyAlarm{}
		return
	}
	t.early.alarm.LastAbove, t.early.covered = alarm.Seen, false
	if t.headroom >= recheckMargin || t.early.rechecksLeft == 0 {
		t.early = earlyAlarm{}
		t.dropAnswers()
	}
}

// killRequested kills the pods of a request.
func (t *Thread) killRequested(r *KillRequest) {
	killer := t.killer
	if r.DryRun {
		killer = t.dryRunKiller
	}
	for i, p := range r.Handles {
		r.Results[i] = killer.Kill(p, r.Guard)
	}
	close(r.done)
}
