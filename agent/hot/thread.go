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

// Options are what a Thread is made of.
type Options struct {
	Desk *Desk
	Read Reader
	// Strike kills, and Look does all but that, for dry run.
	Strike, Look Striker
	// Started is called on the thread before it waits for the first time, to
	// give it its priority.
	Started func()
}

// Thread is the hot path's thread.
type Thread struct {
	decider
	sources sources
	started func()
	poller  *epoll.Poller
	raise   atomic.Pointer[lanes.Raise]
	order   atomic.Pointer[Order]
	task    atomic.Pointer[task]
	events  [16]epoll.Event
	early   early
}

// early is an alarm that came a little before the crossing did, as that of a lane
// whose view of the file cache is some milliseconds old: the thread goes on to
// look by itself for a while, because the lane will not raise again.
type early struct {
	raise lanes.Raise
	since time.Time // the alarm was heard
	left  int       // looks
}

const (
	// Looks that follow an alarm which was not confirmed, and how far apart.
	mostLooks, betweenLooks = 20, time.Millisecond
	// near is how close, in bytes, the nearest threshold must be for that. At 6
	// GiB a second the looks cover as much.
	near = 128 << 20
)

var _ lanes.Waiter = (*Thread)(nil)

// New returns a Thread that waits for nothing yet. Nothing runs yet.
func New(o Options) (*Thread, error) {
	t := &Thread{started: o.Started}
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

// Close gives the descriptors up. Further calls do nothing.
func (t *Thread) Close() error { return t.poller.Close() }

// Publish gives the thread the table to decide with from now on.
func (t *Thread) Publish(table *Table) { t.publish(table) }

// Raise implements lanes.Waiter. An alarm that is still waiting to be heard
// stands for those after it.
func (t *Thread) Raise(r lanes.Raise) error {
	t.noteAnswer(&r) // also where another alarm stands for it
	t.raise.CompareAndSwap(nil, &r)
	return t.poller.Wake()
}

// Order are the victims of a step, to be struck by the thread.
type Order struct {
	Pods   []Pod
	Guard  *evict.Guard
	DryRun bool
	// Strikes is what came of each, once Execute has returned.
	Strikes []act.Strike

	state atomic.Int32
	done  chan struct{}
}

// The states of an Order.
const (
	waiting int32 = iota
	taken
	withdrawn
)

// ErrBusy says that the thread did not take an order up in time. Nothing of it
// was carried out.
var ErrBusy = errors.New("the hot path does not answer")

// Execute has the thread strike the pods of an order that was claimed at the
// desk, and returns when it has. Once it has begun it is not given up.
func (t *Thread) Execute(ctx context.Context, o *Order, patience time.Duration) error {
	o.done = make(chan struct{})
	o.Strikes = make([]act.Strike, len(o.Pods))
	t.order.Store(o)
	if err := t.poller.Wake(); err != nil {
		return err
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-o.done:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	if o.state.CompareAndSwap(waiting, withdrawn) {
		return ErrBusy
	}
	<-o.done
	return nil
}

// task is something to be done on the thread.
type task struct {
	f    func()
	done chan struct{}
}

// Do has the thread call f, and reports whether it has by the time that ctx ends.
// It is for one caller at a time.
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

// Run waits and acts until ctx ends, on a thread of its own that ends with it.
func (t *Thread) Run(ctx context.Context) error {
	// It is never unlocked: a thread with a priority is not for others.
	runtime.LockOSThread()
	stop := context.AfterFunc(ctx, func() { t.poller.Close() })
	defer stop()
	if t.started != nil {
		t.started()
	}
	for {
		timeout := epoll.Forever
		if t.early.left > 0 {
			timeout = betweenLooks
		}
		n, err := t.poller.Wait(t.events[:], timeout)
		if ctx.Err() != nil && (err == nil || errors.Is(err, os.ErrClosed)) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("hot path: %w", err)
		}
		t.turn(n)
	}
}

// turn deals with what there is: orders first, as they were decided before.
func (t *Thread) turn(events int) {
	t.sources.turns.Add(1)
	defer t.sources.turns.Add(1)
	if o := t.order.Swap(nil); o != nil && o.state.CompareAndSwap(waiting, taken) {
		t.carryOut(o)
	}
	alarmed := false
	if do := t.task.Swap(nil); do != nil {
		do.f()
		close(do.done)
	}
	if r := t.raise.Swap(nil); r != nil {
		t.alarm(*r)
		alarmed = true
	}
	for _, e := range t.events[:events] {
		s := t.sources.source(e.Token)
		if s == nil {
			continue // removed since the kernel told of it
		}
		if r, raised := s.Ready(time.Now()); raised {
			t.alarm(r)
			alarmed = true
		}
	}
	if !alarmed && t.early.left > 0 {
		t.lookAgain()
	}
}

// alarm deals with an alarm, and is on the watch after one that came early.
func (t *Thread) alarm(r lanes.Raise) {
	t.early = early{}
	if t.handle(r) == NotConfirmed && t.headroom < near {
		r.LastAbove = time.Now()
		t.early = early{raise: r, since: r.Seen, left: mostLooks}
	}
}

// lookAgain looks whether what an early alarm told of has come by now. The loop
// is told if so.
func (t *Thread) lookAgain() {
	t.early.left--
	r := t.early.raise
	r.Seen = time.Now()
	if result := t.decide(r, t.early.since); result != NotConfirmed {
		t.tell(result, r)
		t.early = early{}
		return
	}
	t.early.raise.LastAbove = r.Seen
	if t.headroom >= near || t.early.left == 0 {
		t.early = early{}
		t.dropAnswers()
	}
}

func (t *Thread) carryOut(o *Order) {
	striker := t.strike
	if o.DryRun {
		striker = t.look
	}
	for i, p := range o.Pods {
		o.Strikes[i] = striker.Strike(p, o.Guard)
	}
	close(o.done)
}
