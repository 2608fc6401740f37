// Package tasks observes pid.available: how many more tasks the node, and all pods
// together, can start.
//
// A fork bomb is faster than any polling interval. So the kernel counts forks, and
// wakes the watch with the fork that brings pid.available below the next threshold.
// Without that counter, the watch polls at an interval that follows from the headroom
// and from the recent fork rate, down to one millisecond.
package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pollinterval"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/epoll"
	"github.com/evictd/evictd/kernel/pids"
	"github.com/evictd/evictd/kernel/process"
)

const (
	// pollMin and pollMax bound the polling interval. pollBelow is the interval below
	// all thresholds, where no alarm reports that tasks have exited.
	pollMin, pollMax = time.Millisecond, time.Second
	pollBelow        = 20 * time.Millisecond
	// idleInterval is the polling interval without a threshold. A reading older than
	// that by staleAfter is not used.
	idleInterval = 10 * time.Second
	staleAfter   = 5 * time.Second
	// minForkRate is the fork rate that is always assumed, in tasks per second: what a
	// few CPUs can fork.
	minForkRate = 50_000
	// fifoPriority is the lowest real-time priority.
	fifoPriority = 1
)

// Options configure a Watch.
type Options struct {
	Procfs kernel.FS
	// Pods returns the cgroup of all pods in the hierarchy of the pids controller; ok is
	// false if there is none.
	Pods func() (tree kernel.FS, path string, ok bool)
	Log  *slog.Logger
}

// Counter counts tasks in the kernel, as [bpf.Forks] does. Its methods are called
// by one goroutine at a time.
type Counter interface {
	// FD is readable after an alarm, until Disarm.
	FD() int
	// Count returns the number of tasks plus a constant, and Alarms the number of
	// alarms.
	Count() int64
	Alarms() uint64
	// Arm requests one alarm when the count reaches limit. Disarm cancels it.
	Arm(limit int64)
	Disarm()
}

// Watch observes pid.available. Its methods are safe for concurrent use. Except for Run,
// they do not block.
type Watch struct {
	o       Options
	crossed chan struct{}
	poller  *epoll.Poller

	mu           sync.Mutex
	last         signal.Observation
	thresholds   []signal.Threshold
	policySetAt  time.Time
	counter      Counter
	ahead        [2]int64 // lowest lead of the counter over the kernel's count: in this window, in the last one
	aheadSince   time.Time
	alarmAt      int64  // the count that raises an alarm; noAlarm for none
	alarmsBefore uint64 // number of alarms before the counter was armed
	missedAlarm  bool
}

// limit is the number of tasks available below one limit, and the limit.
type limit struct{ available, capacity int64 }

// reading is the number of tasks on the node, and the limits: the node's, and that of all
// pods together if they have one.
type reading struct {
	tasks  int64
	limits []limit
}

// least returns the limit with the fewest tasks available.
func (r *reading) least() limit {
	return slices.MinFunc(r.limits, func(a, b limit) int { return cmp.Compare(a.available, b.available) })
}

// headroom returns how many tasks can start until the least limit, which may be another one
// by then, reaches a threshold; noAlarm if there is no threshold below.
func (r *reading) headroom(thresholds []signal.Threshold) int64 {
	headroom := int64(noAlarm)
	least := r.least()
	for _, l := range r.limits {
		for _, t := range thresholds {
			for _, level := range []int64{t.Value.Amount(l.capacity), t.Target(l.capacity)} {
				switch {
				case level <= l.available:
					headroom = min(headroom, l.available-level)
				case l != least:
					// It is below a threshold already, and is only not the least limit yet.
					headroom = min(headroom, l.available-least.available)
				}
			}
		}
	}
	return headroom
}

// noAlarm is the count of a counter that is not armed.
const noAlarm = math.MaxInt64

// New returns a Watch that has read nothing yet. Its descriptors are closed when Run ends,
// or by Close.
func New(o Options) (*Watch, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	poller, err := epoll.New()
	if err != nil {
		return nil, fmt.Errorf("watch tasks: %w", err)
	}
	return &Watch{o: o, crossed: make(chan struct{}, 1), poller: poller, alarmAt: noAlarm}, nil
}

// Close ends Run and closes the descriptors. Further calls do nothing.
func (w *Watch) Close() error { return w.poller.Close() }

// SetPolicy sets the thresholds of pid.available.
func (w *Watch) SetPolicy(p *evict.Policy) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.thresholds = nil
	for _, t := range p.Thresholds {
		if t.Signal == signal.PIDAvailable {
			w.thresholds = append(w.thresholds, t.Threshold)
		}
	}
	w.policySetAt = time.Now()
	w.poller.Wake() // fails only after Close
}

// SetCounter replaces the counter; nil is none. The old counter is
// not used after SetCounter returns.
func (w *Watch) SetCounter(c Counter) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var err error
	if w.counter != nil {
		w.counter.Disarm()
		err = w.poller.Remove(w.counter.FD())
	}
	w.counter, w.alarmAt, w.missedAlarm, w.ahead, w.aheadSince = nil, noAlarm, false, [2]int64{noAlarm, noAlarm}, time.Time{}
	if c != nil && err == nil {
		if err = w.poller.Add(c.FD(), unix.EPOLLIN, 0); err == nil {
			w.counter = c
		}
	}
	w.poller.Wake() // the polling interval changes; fails only after Close
	if err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("watch tasks: %w", err)
	}
	return nil
}

// Missed reports whether the counter in use failed to raise an alarm.
func (w *Watch) Missed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.missedAlarm
}

// Crossed receives when a threshold is crossed, in either direction.
func (w *Watch) Crossed() <-chan struct{} { return w.crossed }

// Read stores the last reading of pid.available. Below a threshold it takes a new reading:
// tasks may have exited since, and the reading may decide about a victim.
func (w *Watch) Read(now time.Time, into *signal.Observations) {
	w.mu.Lock()
	last, below, maxAge := w.last, w.below(&w.last), staleAfter
	if len(w.thresholds) == 0 || last.Time.Before(w.policySetAt) {
		maxAge += idleInterval
	}
	w.mu.Unlock()
	o := &into[signal.PIDAvailable]
	*o = last
	if below {
		*o, _ = w.observe(now) // not under mu
		return
	}
	if o.Status == signal.Observed && now.Sub(o.Time) > maxAge {
		*o = signal.Observation{Status: signal.Unreadable, Time: now, Err: errStale}
	}
}

// below reports whether an observation is below a threshold or its reclaim target.
func (w *Watch) below(o *signal.Observation) bool {
	return slices.ContainsFunc(w.thresholds, func(t signal.Threshold) bool {
		return o.Below(t.Value.Amount(o.Capacity)) || o.Below(t.Target(o.Capacity))
	})
}

var errStale = errors.New("the last task count is too old")

// Run observes until ctx ends, on a locked thread with SCHED_FIFO if that is allowed: a fork
// bomb leaves little CPU time to threads of normal priority.
func (w *Watch) Run(ctx context.Context) error {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	if _, err := process.SetFIFO(fifoPriority); err != nil {
		w.o.Log.Info("could not set SCHED_FIFO; tasks are counted at normal priority", "error", err)
	}
	defer w.poller.Close()
	defer context.AfterFunc(ctx, func() { w.poller.Wake() })()
	p := pollinterval.Interval{MinRate: minForkRate, Min: pollMin, Max: pollMax, BelowAll: pollBelow}
	var events [1]epoll.Event
	var alarmed time.Time
	for ctx.Err() == nil {
		now := time.Now()
		counted := w.disarm()
		o, r := w.observe(now)
		if o.Status == signal.Observed {
			p.Observe(now, o.Available)
		}
		levels := w.record(o)
		wait := p.Next(levels)
		switch {
		case len(levels) == 0:
			wait = pollinterval.AlignedWait(now, idleInterval)
		case o.Status != signal.Observed:
			wait = pollBelow
		case now.Sub(alarmed) < pollMin: // forks and exits around a threshold must not raise an alarm each
			wait = pollMin
		case w.arm(now, r, counted):
			wait = pollinterval.AlignedWait(now, pollMax)
		}
		// Wait in the kernel: a Go timer may be run by a thread of normal priority.
		n, err := w.poller.Wait(events[:], wait)
		if err != nil {
			return fmt.Errorf("count tasks: %w", err)
		}
		if n > 0 {
			alarmed = time.Now()
		}
	}
	return nil
}

// disarm cancels the counter's alarm and returns its count; 0 without a counter.
func (w *Watch) disarm() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.counter == nil {
		return 0
	}
	count := w.counter.Count()
	if w.alarmAt != noAlarm && count-w.alarmAt > maxForksInFlight && w.counter.Alarms() == w.alarmsBefore {
		w.missedAlarm = true
	}
	w.counter.Disarm()
	w.alarmAt = noAlarm
	return count
}

// maxForksInFlight is how many forks may be counted that have not raised the alarm yet: one
// per CPU.
const maxForksInFlight = 512

// arm arms the counter for the fork that brings the reading r below a threshold. counted is
// the counter's value just before the reading. It reports whether waiting for the alarm is
// enough. It is not enough without a counter, below a threshold, because no alarm reports
// that tasks have exited, and if the counter is past the alarm already.
func (w *Watch) arm(now time.Time, r reading, counted int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	headroom := r.headroom(w.thresholds)
	if w.counter == nil || headroom == noAlarm {
		return false
	}
	if now.Sub(w.aheadSince) >= aheadWindow {
		w.ahead, w.aheadSince = [2]int64{noAlarm, w.ahead[0]}, now
	}
	w.ahead[0] = min(w.ahead[0], counted-r.tasks)
	w.alarmAt, w.alarmsBefore = min(w.ahead[0], w.ahead[1])+r.tasks+headroom+1, w.counter.Alarms()
	w.counter.Arm(w.alarmAt)
	// If the count has been reached since the reading, no further fork may raise the alarm.
	return w.counter.Count() < w.alarmAt && !w.below(&w.last)
}

// aheadWindow is how long the lowest lead of the counter is remembered.
const aheadWindow = 30 * time.Second

// record stores a reading and returns the thresholds and targets for its capacity.
func (w *Watch) record(o signal.Observation) (levels []int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.last
	w.last = o
	crossed := before.Status != o.Status
	for _, t := range w.thresholds {
		// The reading before may have been that of another limit.
		for _, amount := range []func(int64) int64{t.Value.Amount, t.Target} {
			level := amount(o.Capacity)
			levels = append(levels, level)
			crossed = crossed || before.Below(amount(before.Capacity)) != o.Below(level)
		}
	}
	if crossed {
		select {
		case w.crossed <- struct{}{}:
		default:
		}
	}
	if o.Status == signal.Unreadable && before.Status != o.Status {
		w.o.Log.Error("could not count tasks; pid.available is not observed", "error", o.Err)
	}
	return levels
}

// PodTasks returns how many tasks all pods have together; ok is false if that can't be read.
func (w *Watch) PodTasks() (tasks int64, ok bool) {
	tree, path, ok := w.o.Pods()
	if !ok {
		return 0, false
	}
	group, err := pids.ReadCgroup(tree, path)
	return signed(group.Tasks), err == nil
}

// observe reads the limits of the node and of all pods together. The observation is the one
// with fewer tasks available.
func (w *Watch) observe(now time.Time) (signal.Observation, reading) {
	unreadable := func(err error) (signal.Observation, reading) {
		return signal.Observation{Status: signal.Unreadable, Time: now, Err: err}, reading{}
	}
	node, err := pids.ReadNode(w.o.Procfs)
	if err != nil {
		return unreadable(err)
	}
	limitOf := func(tasks, maximum uint64) limit { return limit{signed(maximum) - signed(tasks), signed(maximum)} }
	r := reading{signed(node.Tasks), []limit{limitOf(node.Tasks, node.Max)}}
	if tree, path, ok := w.o.Pods(); ok {
		group, err := pids.ReadCgroup(tree, path)
		switch {
		case errors.Is(err, kernel.ErrUnavailable): // it has just gone, or is not limited
		case err != nil:
			return unreadable(err)
		case group.Limited:
			r.limits = append(r.limits, limitOf(group.Tasks, group.Max))
		}
	}
	least := r.least()
	return signal.Observation{Status: signal.Observed, Time: now, Available: least.available, Capacity: least.capacity}, r
}

func signed(n uint64) int64 { return int64(min(n, math.MaxInt64)) }
