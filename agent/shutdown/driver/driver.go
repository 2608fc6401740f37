// Package driver executes the node's shutdown: it receives the events of logind and
// the commands of an operator, runs the state machine of agent/shutdown on a
// goroutine of its own, and passes the orders to agent/execute.
package driver

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/shutdown/logind"
)

// Options are what a Driver needs.
type Options struct {
	Log       *slog.Logger
	DelayLock DelayLock
	// View returns the last View of the decision loop; nil before its first
	// iteration.
	View      func() *loop.View
	Inventory Inventory
	Execute   *execute.Executor
	Metrics   Metrics
	// Save saves the state and returns when that is done. RequestSave requests a
	// save and does not wait for it.
	Save        func() error
	RequestSave func()
	// Announce reports a new phase to the service manager and the node's conditions. The
	// beginning is announced before the first pod is asked to stop.
	Announce func(shutdown.Phase)
	// KubeletShutsDown reports whether the kubelet itself stops the pods when the node shuts
	// down, by its configuration, if that is known. Unanswered returns how many orders to
	// evictd-kube have no final answer. Both are nil if no evictd-kube is configured.
	KubeletShutsDown func() (yes, known bool)
	Unanswered       func() int
	// Bus is the address of the system bus.
	Bus string
}

// DelayLock delays the node's shutdown and reports the events of logind.
type DelayLock interface {
	Events() <-chan logind.Event
	Status() logind.Status
	SetDelay(needs time.Duration)
	Release()
}

// Inventory lists the pods.
type Inventory interface {
	Refresh()
	Guard() *evict.Guard
}

// Metrics publishes the state of a shutdown.
type Metrics interface {
	Shutdown(state *shutdown.State, locked bool)
}

// Driver stops the pods when the node shuts down, and delays the shutdown until
// they have stopped. It runs on a goroutine of its own and reads the loop's last
// View; it never calls the loop, so a runtime that hangs does not delay it.
type Driver struct {
	o        Options
	changed  chan struct{} // signalled for a new view
	commands chan command
	done     chan struct{} // closed when Run has returned

	// Used by Run only.
	state        shutdown.State
	resuming     atomic.Bool   // the state is an earlier run's and not resumed yet; others read it
	preparing    bool          // the node is about to shut down, by logind's last event
	pendingEvent *logind.Event // not handled yet; nil if none
	started      time.Time     // start of Run
	listed       time.Time     // when a list was last requested by Refresh
	skipReason   string        // why the shutdown in progress stops no pod; "" if it does
	// published is a copy of the state for other goroutines.
	published atomic.Pointer[shutdown.State]
}

// command is a command of an operator.
type command struct {
	event shutdown.Event
	reply chan error
}

// firstListTimeout bounds how long a shutdown waits for its first list of pods, so
// that pods that started just before do not count as new. A list usually takes less.
const firstListTimeout = 500 * time.Millisecond

// resumeTimeout bounds how long a shutdown of an earlier run waits for an event of
// logind before it continues: it may have been canceled.
const resumeTimeout = 3 * time.Second

// New returns a Driver that is not running yet.
func New(o Options) *Driver {
	d := &Driver{o: o, changed: make(chan struct{}, 1), commands: make(chan command), done: make(chan struct{})}
	d.published.Store(&shutdown.State{})
	return d
}

// State returns the state of the shutdown. It is immutable.
func (d *Driver) State() *shutdown.State { return d.published.Load() }

// Done is closed when Run has returned.
func (d *Driver) Done() <-chan struct{} { return d.done }

// Restore sets the state that an earlier run of this boot saved.
func (d *Driver) Restore(state shutdown.State) {
	d.state = state
	d.resuming.Store(state.Active())
	d.publish()
	if state.Active() {
		d.o.Log.Warn("resuming the node shutdown of an earlier run", "began", state.Began, "pods", len(state.Pods))
	}
}

// Resuming reports whether a shutdown of an earlier run has not been resumed yet: its pods have not
// been asked again to stop.
func (d *Driver) Resuming() bool { return d.resuming.Load() || d.State().Resuming }

// ViewChanged signals a new view. It never blocks.
func (d *Driver) ViewChanged() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// Run handles shutdowns until ctx ends.
//
// Complexity: one select over all inputs, and one switch over their effects.
//
//gocyclo:ignore
func (d *Driver) Run(ctx context.Context) {
	defer close(d.done)
	d.started = time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		in := shutdown.Inputs{}
		var reply chan<- error
		select {
		case <-ctx.Done():
			return
		case e := <-d.o.DelayLock.Events():
			d.pendingEvent = &e
		case cmd := <-d.commands:
			if err := d.validate(cmd.event); err != nil {
				cmd.reply <- err
				continue
			}
			in.Event, in.Manual, reply = cmd.event, true, cmd.reply
		case <-d.changed:
		case <-timer.C:
		}
		v := d.o.View()
		if v == nil {
			continue // no pods are known yet
		}
		e := d.pendingEvent
		switch {
		case d.resuming.Load() && (e == nil || e.Preparing):
			if wait := time.Until(d.started.Add(resumeTimeout)); e == nil && !d.state.Manual && wait > 0 {
				timer.Reset(wait)
				continue
			}
			in.Event = shutdown.Resume
			d.ViewChanged() // then handle the event of logind
		case e != nil && in.Event == shutdown.NoEvent && (!e.Preparing || d.state.Active() || podsListed(v)):
			in, d.pendingEvent = d.handleEvent(v, *e), nil
		}
		wake := d.step(ctx, v, in, time.Now())
		if in.Event != shutdown.NoEvent {
			d.resuming.Store(false)
		}
		if reply != nil {
			reply <- nil // State has the effect of the command
		}
		if !wake.IsZero() {
			timer.Reset(time.Until(wake))
		}
	}
}

// handleEvent converts an event of logind into the inputs of the next step. The event
// may be a repetition.
func (d *Driver) handleEvent(v *loop.View, e logind.Event) (in shutdown.Inputs) {
	d.preparing = e.Preparing
	switch {
	case !e.Preparing:
		d.skipReason = ""
		if d.state.Active() && !d.state.Manual {
			in.Event = shutdown.Cancel
		}
	case d.skipReason != "":
		// The shutdown was left to a kubelet, which stops the pods: do not take over in
		// the middle.
	case len(d.SkipReasons(v)) > 0 && !d.state.Active():
		d.skipReason = strings.Join(d.SkipReasons(v), "; ")
		d.o.DelayLock.Release() // releases the lock of a run with another configuration
		d.o.Log.Warn("node shuts down; evictd stops no pods", "why", d.skipReason)
	default:
		in.Event, in.Schedule = shutdown.Begin, d.Schedule(v)
		if e.Inhibited {
			// Without a lock logind does not wait; as much as possible is stopped
			// in order.
			in.Until = e.Until
			if d.fences(v) {
				in.Until = e.Until.Add(-answerTime(time.Until(e.Until)))
			}
		}
		if d.state.Phase == shutdown.Ended && d.state.Manual {
			d.o.DelayLock.Release() // the operator's shutdown has stopped the pods
		}
	}
	return in
}

// Reasons to reject a command.
var (
	ErrNotYet  = errors.New("the first observation is not complete yet; try again in a second")
	errNothing = errors.New("no shutdown in progress")
	errLogind  = errors.New("the shutdown was started by logind and only logind can cancel it")
)

// validate returns why a command is rejected; nil if it is accepted.
func (d *Driver) validate(event shutdown.Event) error {
	v := d.o.View()
	switch {
	case v == nil || d.resuming.Load() || event == shutdown.Begin && !podsListed(v):
		return ErrNotYet
	case event == shutdown.Cancel && !d.state.Active():
		return errNothing
	case event == shutdown.Cancel && !d.state.Manual:
		return errLogind
	case event == shutdown.Begin && !d.state.Active():
		if why := d.SkipReasons(v); len(why) > 0 {
			return errors.New(strings.Join(why, "; "))
		}
	}
	return nil
}

// Command executes a command on Run's goroutine and waits for its result.
func (d *Driver) Command(ctx context.Context, event shutdown.Event) error {
	cmd := command{event, make(chan error, 1)}
	select {
	case d.commands <- cmd:
	case <-d.done:
		return errors.New("evictd is stopping")
	case <-ctx.Done():
		return ctx.Err()
	}
	return <-cmd.reply
}

// podsListed reports whether the pods have been listed, or the configuration states
// that there is no runtime. Before, it is unknown whether they are a kubelet's.
func podsListed(v *loop.View) bool {
	return !v.Snapshot.Listed.IsZero() || v.Config.RuntimeEndpoint == config.RuntimeNone
}

// step executes one step of the state machine and its orders. It returns when the next
// step is due; zero if not before the next event.
func (d *Driver) step(ctx context.Context, v *loop.View, in shutdown.Inputs, now time.Time) time.Time {
	if in.Event == shutdown.NoEvent && !d.state.Active() {
		d.updateDelay(v)
		d.o.Metrics.Shutdown(&d.state, d.o.DelayLock.Status().Inhibited)
		return time.Time{}
	}
	in.DryRun, in.Fences = len(v.Mode.ReasonsExceptKubelet) > 0, d.fences(v)
	if in.Event == shutdown.Begin && in.Manual {
		in.Schedule = d.Schedule(v)
	}
	began := d.state.Began
	if in.Event == shutdown.Begin && !d.state.Active() {
		began = now
	}
	// A stopped or new pod is noticed this soon: without changes the inventory lists less often.
	if now.Sub(d.listed) >= pods.ListInterval || began.Equal(now) {
		d.listed = now
		d.o.Inventory.Refresh()
	}
	awaitsFirstList := !d.state.Listed && v.Snapshot.Listed.Before(began) && now.Before(began.Add(firstListTimeout))
	in.PodsUnknown = v.Snapshot.Listed.IsZero() || awaitsFirstList
	for i := range v.Snapshot.Pods {
		if p := &v.Snapshot.Pods[i]; !p.Essential {
			in.Pods = append(in.Pods, *p)
		}
	}
	before := d.state
	state, orders := shutdown.Step(before, in, now)
	d.state = state
	d.publish()
	if state.Phase == shutdown.Stopping && before.Phase != shutdown.Stopping {
		d.logBegin(in.DryRun)
		d.o.Announce(state.Phase)
	}
	d.executeOrders(ctx, v, &orders, in.DryRun)
	if len(orders.Stop)+len(orders.Kill)+len(orders.Gone) > 0 {
		d.o.RequestSave()
	}
	d.phaseChanged(ctx, &before, in.DryRun)
	d.updateDelay(v)
	d.o.Metrics.Shutdown(&d.state, d.o.DelayLock.Status().Inhibited)
	return d.nextStep(orders.Wake, now)
}

// nextStep returns when the next step is due: at wake, or before that for the next
// list and when firstListTimeout ends; zero if not before the next event.
func (d *Driver) nextStep(wake, now time.Time) time.Time {
	if !d.state.Active() {
		return wake
	}
	soonest := d.listed.Add(pods.ListInterval)
	if first := d.state.Began.Add(firstListTimeout); !d.state.Listed && first.After(now) && first.Before(soonest) {
		soonest = first
	}
	if !wake.IsZero() && wake.Before(soonest) {
		return wake
	}
	return soonest
}

func (d *Driver) publish() { d.published.Store(new(d.state.Clone())) }

// updateDelay sets how long the DelayLock delays a shutdown. It changes nothing during
// a shutdown or before the pods are listed.
func (d *Driver) updateDelay(v *loop.View) {
	if d.state.Active() || d.preparing || !podsListed(v) {
		return
	}
	var needs time.Duration
	if len(d.SkipReasons(v)) == 0 && len(v.Mode.ReasonsExceptKubelet) == 0 {
		needs = v.Config.ShutdownSchedule().Delay()
	}
	d.o.DelayLock.SetDelay(needs)
}
