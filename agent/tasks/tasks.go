// Package tasks watches how many more tasks the node, and its pods together, can
// start: pid.available.
//
// A fork bomb outruns whoever looks now and then. So the kernel counts forks, and
// wakes the watch up with the one that takes what is left below the next
// threshold. Where it does not, how often the watch looks follows from how many are
// left, and from how fast they have gone lately, down to once in a millisecond.
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
	"github.com/evictd/evictd/agent/pace"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/epoll"
	"github.com/evictd/evictd/kernel/pids"
	"github.com/evictd/evictd/kernel/process"
)

const (
	// fastest and slowest bound the time between two looks, low is that below
	// every threshold.
	fastest, slowest = time.Millisecond, time.Second
	low              = 20 * time.Millisecond
	// leastRate is how many tasks may come each second at least: what some
	// processors fork as fast as they can.
	leastRate = 50_000
	// priority is the lowest of the real-time ones.
	priority = 1
	// unasked is the time between two looks where there is no threshold, and stale
	// how much older than that a reading may be.
	unasked = 10 * time.Second
	stale   = 5 * time.Second
)

// Options are what a Watch is made of.
type Options struct {
	Procfs kernel.FS
	// Pods returns the cgroup that holds all pods, in the tree of the pids
	// controller; ok is false where there is none.
	Pods func() (tree kernel.FS, path string, ok bool)
	Log  *slog.Logger
}

// Counter counts tasks in the kernel, as [bpf.Forks] does. Its methods are called
// by one goroutine at a time.
type Counter interface {
	// FD is ready to be read after an alarm, until Disarm.
	FD() int
	// Count is how many tasks there are, but for a constant, and Raised how many
	// alarms there were.
	Count() int64
	Raised() uint64
	// Arm asks for one alarm when the count is limit or more, Disarm for none.
	Arm(limit int64)
	Disarm()
}

// Watch watches. Its methods are safe for concurrent use and answer at once, but
// for Run.
type Watch struct {
	o       Options
	crossed chan struct{}
	waiting *epoll.Poller

	mu      sync.Mutex
	last    signal.Observation
	marks   []signal.Threshold
	armed   time.Time
	counter Counter
	ahead   [2]int64 // how far its count was ahead of the kernel's at the least, of late and before
	since   time.Time
	limit   int64  // the count that is to raise; noLimit for none
	raised  uint64 // alarms before it was asked to
	missed  bool
}

// level is what is left of one limit.
type level struct{ available, capacity int64 }

// reading is how many tasks the node has, and what is left of the limits: of the
// node's and, where they have one, of that of all pods together.
type reading struct {
	tasks  int64
	levels []level
}

// least is the level that has less.
func (r *reading) least() level {
	return slices.MinFunc(r.levels, func(a, b level) int { return cmp.Compare(a.available, b.available) })
}

// room is how many tasks may come until the least level, whichever that is by then,
// is at a mark; noLimit where there is no mark to fall to.
func (r *reading) room(marks []signal.Threshold) int64 {
	room := int64(noLimit)
	least := r.least()
	for _, l := range r.levels {
		for _, t := range marks {
			for _, mark := range []int64{t.Value.Amount(l.capacity), t.Target(l.capacity)} {
				switch {
				case mark <= l.available:
					room = min(room, l.available-mark)
				case l != least:
					// It is below a mark of its own, and has only to become the least.
					room = min(room, l.available-least.available)
				}
			}
		}
	}
	return room
}

// noLimit is the limit of a counter that is not armed.
const noLimit = math.MaxInt64

// New returns a watch that has seen nothing yet. It holds descriptors until Run
// has ended, or Close.
func New(o Options) (*Watch, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	waiting, err := epoll.New()
	if err != nil {
		return nil, fmt.Errorf("watch tasks: %w", err)
	}
	return &Watch{o: o, crossed: make(chan struct{}, 1), waiting: waiting, limit: noLimit}, nil
}

// Close ends Run, and gives back what New took. Further calls do nothing.
func (w *Watch) Close() error { return w.waiting.Close() }

// Arm tells which thresholds to look out for.
func (w *Watch) Arm(p *evict.Policy) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.marks = nil
	for _, t := range p.Thresholds {
		if t.Signal == signal.PIDAvailable {
			w.marks = append(w.marks, t.Threshold)
		}
	}
	w.armed = time.Now()
	w.waiting.Wake() // after Close there is nobody to wake
}

// Use has the watch woken up by a counter, in place of the one before, which is
// not touched any more once Use has returned. nil is none.
func (w *Watch) Use(c Counter) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var err error
	if w.counter != nil {
		w.counter.Disarm()
		err = w.waiting.Remove(w.counter.FD())
	}
	w.counter, w.limit, w.missed, w.ahead, w.since = nil, noLimit, false, [2]int64{noLimit, noLimit}, time.Time{}
	if c != nil && err == nil {
		if err = w.waiting.Add(c.FD(), unix.EPOLLIN, 0); err == nil {
			w.counter = c
		}
	}
	w.waiting.Wake() // the pace is another now; after Close there is nobody to wake
	if err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("watch tasks: %w", err)
	}
	return nil
}

// Missed reports whether the counter in use should have raised an alarm, and did
// not.
func (w *Watch) Missed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.missed
}

// Crossed is signalled when a threshold is crossed, in either direction.
func (w *Watch) Crossed() <-chan struct{} { return w.crossed }

// Read fills in pid.available with what was read last. What is below a threshold is
// read again: who is to die for it may have done so by now.
func (w *Watch) Read(now time.Time, into *signal.Observations) {
	w.mu.Lock()
	last, below, old := w.last, w.below(&w.last), stale
	if len(w.marks) == 0 || last.Time.Before(w.armed) {
		old += unasked
	}
	w.mu.Unlock()
	o := &into[signal.PIDAvailable]
	*o = last
	if below {
		*o, _ = w.observe(now) // nobody is kept waiting for it
		return
	}
	if o.Status == signal.Observed && now.Sub(o.Time) > old {
		*o = signal.Observation{Status: signal.Unreadable, Time: now, Err: errStale}
	}
}

// below reports whether an observation is below a mark.
func (w *Watch) below(o *signal.Observation) bool {
	return slices.ContainsFunc(w.marks, func(t signal.Threshold) bool {
		return o.Below(t.Value.Amount(o.Capacity)) || o.Below(t.Target(o.Capacity))
	})
}

var errStale = errors.New("it has not been read lately")

// Run watches until ctx ends, on a thread of its own, at real-time priority where
// that is granted: a fork bomb leaves others little of the processors.
func (w *Watch) Run(ctx context.Context) error {
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	if _, err := process.SetFIFO(priority); err != nil {
		w.o.Log.Info("tasks are counted at ordinary priority", "error", err)
	}
	defer w.waiting.Close()
	defer context.AfterFunc(ctx, func() { w.waiting.Wake() })()
	p := pace.Pace{Least: leastRate, Fastest: fastest, Slowest: slowest, Low: low}
	var events [1]epoll.Event
	var alarmed time.Time
	for ctx.Err() == nil {
		now := time.Now()
		counted := w.disarm()
		o, r := w.observe(now)
		if o.Status == signal.Observed {
			p.Saw(now, o.Available)
		}
		marks := w.note(o)
		wait := p.Next(marks)
		switch {
		case len(marks) == 0:
			wait = pace.Together(now, unasked)
		case o.Status != signal.Observed:
			wait = low
		case now.Sub(alarmed) < fastest: // whoever comes and goes at a mark is not heard at each fork
			wait = fastest
		case w.arm(now, r, counted):
			wait = pace.Together(now, slowest)
		}
		// It waits in the kernel: a timer of the runtime may be any thread's to
		// look after.
		n, err := w.waiting.Wait(events[:], wait)
		if err != nil {
			return fmt.Errorf("count tasks: %w", err)
		}
		if n > 0 {
			alarmed = time.Now()
		}
	}
	return nil
}

// disarm has the counter, if there is one, raise no more, and returns its count.
func (w *Watch) disarm() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.counter == nil {
		return 0
	}
	count := w.counter.Count()
	if w.limit != noLimit && count-w.limit > underWay && w.counter.Raised() == w.raised {
		w.missed = true
	}
	w.counter.Disarm()
	w.limit = noLimit
	return count
}

// underWay is how many forks may have been counted that have not come to raising
// an alarm yet: one on each processor.
const underWay = 512

// arm has the counter raise where as many tasks have come as take what was just read
// below a mark. counted is what the counter told just before the reading. It reports
// whether that is all there is to wait for: not where there is no counter, not below
// a mark, as nobody tells when tasks have gone, and not where the counter does not
// see how near the mark is, so many have gone of late.
func (w *Watch) arm(now time.Time, r reading, counted int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	room := r.room(w.marks)
	if w.counter == nil || room == noLimit {
		return false
	}
	if now.Sub(w.since) >= aheadFor {
		w.ahead, w.since = [2]int64{noLimit, w.ahead[0]}, now
	}
	w.ahead[0] = min(w.ahead[0], counted-r.tasks)
	w.limit, w.raised = min(w.ahead[0], w.ahead[1])+r.tasks+room+1, w.counter.Raised()
	w.counter.Arm(w.limit)
	// Tasks that have come since it was read are not heard of otherwise, if no more come.
	return w.counter.Count() < w.limit && !w.below(&w.last)
}

// aheadFor is for how long it is remembered at least how far the counter was ahead.
const aheadFor = 30 * time.Second

// note keeps a reading and returns the marks of its capacity.
func (w *Watch) note(o signal.Observation) (marks []int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.last
	w.last = o
	crossed := before.Status != o.Status
	for _, t := range w.marks {
		// What was least before may have been of another limit.
		for _, amount := range []func(int64) int64{t.Value.Amount, t.Target} {
			mark := amount(o.Capacity)
			marks = append(marks, mark)
			crossed = crossed || before.Below(amount(before.Capacity)) != o.Below(mark)
		}
	}
	if crossed {
		select {
		case w.crossed <- struct{}{}:
		default:
		}
	}
	if o.Status == signal.Unreadable && before.Status != o.Status {
		w.o.Log.Error("tasks can't be counted", "error", o.Err)
	}
	return marks
}

// Pods reads how many tasks all pods have together; ok is false where that can't be
// told.
func (w *Watch) Pods() (tasks int64, ok bool) {
	tree, path, ok := w.o.Pods()
	if !ok {
		return 0, false
	}
	group, err := pids.ReadCgroup(tree, path)
	return signed(group.Tasks), err == nil
}

// observe reads what is left, of the node or of all pods together, whichever has
// less, and both.
func (w *Watch) observe(now time.Time) (signal.Observation, reading) {
	unreadable := func(err error) (signal.Observation, reading) {
		return signal.Observation{Status: signal.Unreadable, Time: now, Err: err}, reading{}
	}
	node, err := pids.ReadNode(w.o.Procfs)
	if err != nil {
		return unreadable(err)
	}
	of := func(tasks, most uint64) level { return level{signed(most) - signed(tasks), signed(most)} }
	r := reading{signed(node.Tasks), []level{of(node.Tasks, node.Max)}}
	if tree, path, ok := w.o.Pods(); ok {
		group, err := pids.ReadCgroup(tree, path)
		switch {
		case errors.Is(err, kernel.ErrUnavailable): // it has just gone, or is not limited
		case err != nil:
			return unreadable(err)
		case group.Limited:
			r.levels = append(r.levels, of(group.Tasks, group.Max))
		}
	}
	least := r.least()
	return signal.Observation{Status: signal.Observed, Time: now, Available: least.available, Capacity: least.capacity}, r
}

func signed(n uint64) int64 { return int64(min(n, math.MaxInt64)) }
