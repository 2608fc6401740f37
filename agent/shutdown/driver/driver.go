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
	// save and returns at once.
	Save        func() error
	RequestSave func()
	// Announce reports a new phase to the service manager.
	Announce func(shutdown.Phase)
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
	resuming     bool          // the state is an earlier run's and not resumed yet
	preparing    bool          // of the last event of logind
	pendingEvent *logind.Event // event that was not handled yet
	started      time.Time     // start of Run
	listed       time.Time     // when the pods were last listed by Refresh
	skipReason   string        // why the shutdown in progress is not handled; "" if it is
	// published is a copy of the state for other goroutines.
	published atomic.Pointer[shutdown.State]
}

// command is a command of an operator.
type command struct {
	event shutdown.Event
	reply chan error
}

// firstListTimeout is how long a shutdown waits for its first list of pods, so that
// pods that started just before do not count as new. A list usually takes less.
const firstListTimeout = 500 * time.Millisecond

// listInterval is the interval of lists during a shutdown: it is how soon a stopped
// or new pod is noticed. Without changes the inventory lists less often.
const listInterval = time.Second

// resumeTimeout is how long a shutdown of an earlier run waits for logind before it
// continues: it may have been canceled.
const resumeTimeout = 3 * time.Second

// New returns a Driver that is not running yet.
func New(o Options) *Driver {
	s := &Driver{o: o, changed: make(chan struct{}, 1), commands: make(chan command), done: make(chan struct{})}
	s.published.Store(&shutdown.State{})
	return s
}

// State returns the state of the shutdown. It is immutable.
func (s *Driver) State() *shutdown.State { return s.published.Load() }

// Done is closed when Run has returned.
func (s *Driver) Done() <-chan struct{} { return s.done }

// Restore sets the state that an earlier run of this boot saved.
func (s *Driver) Restore(state shutdown.State) {
	s.state, s.resuming = state, state.Active()
	s.publish()
	if s.resuming {
		s.o.Log.Warn("resuming the node shutdown of an earlier run", "began", state.Began, "pods", len(state.Pods))
	}
}

// ViewChanged signals a new view. It never blocks.
func (s *Driver) ViewChanged() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Run handles shutdowns until ctx ends.
//
// Complexity: one select over all inputs, and one switch over their effects.
//
//gocyclo:ignore
func (s *Driver) Run(ctx context.Context) {
	defer close(s.done)
	s.started = time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		in := shutdown.Inputs{}
		var reply chan<- error
		select {
		case <-ctx.Done():
			return
		case e := <-s.o.DelayLock.Events():
			s.pendingEvent = &e
		case cmd := <-s.commands:
			if err := s.validate(cmd.event); err != nil {
				cmd.reply <- err
				continue
			}
			in.Event, in.Manual, reply = cmd.event, true, cmd.reply
		case <-s.changed:
		case <-timer.C:
		}
		v := s.o.View()
		if v == nil {
			continue // no pods are known yet
		}
		e := s.pendingEvent
		switch {
		case s.resuming && (e == nil || e.Preparing):
			if wait := time.Until(s.started.Add(resumeTimeout)); e == nil && !s.state.Manual && wait > 0 {
				timer.Reset(wait)
				continue
			}
			in.Event, s.resuming = shutdown.Resume, false
			s.ViewChanged() // then handle the event of logind
		case e != nil && in.Event == shutdown.NoEvent && (!e.Preparing || s.state.Active() || podsListed(v)):
			s.resuming = false
			in, s.pendingEvent = s.handleEvent(v, *e), nil
		}
		wake := s.step(ctx, v, in, time.Now())
		if reply != nil {
			reply <- nil // State has the effect of the command
		}
		if !wake.IsZero() {
			timer.Reset(time.Until(wake))
		}
	}
}

// handleEvent converts an event of logind, which may be repeated, into inputs of
// the next step.
func (s *Driver) handleEvent(v *loop.View, e logind.Event) (in shutdown.Inputs) {
	s.preparing = e.Preparing
	switch {
	case !e.Preparing:
		s.skipReason = ""
		if s.state.Active() && !s.state.Manual {
			in.Event = shutdown.Cancel
		}
	case s.skipReason != "":
		// The shutdown was left to a kubelet, which has started: do not take over
		// in the middle.
	case len(s.SkipReasons(v)) > 0 && !s.state.Active():
		s.skipReason = strings.Join(s.SkipReasons(v), "; ")
		s.o.DelayLock.Release() // releases the lock of a run with another configuration
		s.o.Log.Warn("node shuts down; evictd stops no pods", "why", s.skipReason)
	default:
		in.Event, in.Schedule = shutdown.Begin, v.Config.ShutdownSchedule()
		if e.Inhibited {
			// Without a lock logind does not wait; as much as possible is stopped
			// in order.
			in.Until = e.Until
		}
		if s.state.Phase == shutdown.Ended && s.state.Manual {
			s.o.DelayLock.Release() // already ended; from now on logind's
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
func (s *Driver) validate(event shutdown.Event) error {
	v := s.o.View()
	switch {
	case v == nil || s.resuming || event == shutdown.Begin && !podsListed(v):
		return ErrNotYet
	case event == shutdown.Cancel && !s.state.Active():
		return errNothing
	case event == shutdown.Cancel && !s.state.Manual:
		return errLogind
	case event == shutdown.Begin && !s.state.Active():
		if why := s.SkipReasons(v); len(why) > 0 {
			return errors.New(strings.Join(why, "; "))
		}
	}
	return nil
}

// Command executes a command on Run's goroutine and waits for its result.
func (s *Driver) Command(ctx context.Context, event shutdown.Event) error {
	cmd := command{event, make(chan error, 1)}
	select {
	case s.commands <- cmd:
	case <-s.done:
		return errors.New("evictd is stopping")
	case <-ctx.Done():
		return ctx.Err()
	}
	return <-cmd.reply
}

// podsListed reports whether the pods have been listed. Before, it is unknown
// whether they are a kubelet's.
func podsListed(v *loop.View) bool {
	return !v.Snapshot.Listed.IsZero() || v.Config.RuntimeEndpoint == config.RuntimeNone
}

// SkipReasons returns all reasons not to stop pods in a shutdown.
func (s *Driver) SkipReasons(v *loop.View) (why []string) {
	if len(v.Config.ShutdownSchedule()) == 0 {
		why = append(why, "neither shutdownGracePeriod nor shutdownGracePeriodByPodPriority is configured")
	}
	if v.Config.Shutdown.BesideKubelet == config.ShutdownOwn {
		return why
	}
	if v.Snapshot.Kubelet.HasSandboxes {
		why = append(why, "a kubelet owns pods of this node (shutdown.besideKubelet: own makes evictd stop them)")
	} else if v.Snapshot.Kubelet.Process != "" {
		why = append(why, "a kubelet runs on this node (shutdown.besideKubelet: own makes evictd stop the pods)")
	}
	if s.o.DelayLock.Status().Kubelet {
		why = append(why, "a kubelet delays shutdowns itself (shutdown.besideKubelet: own makes evictd delay them too)")
	}
	return why
}

// step executes one step. It returns when the next one is due.
func (s *Driver) step(ctx context.Context, v *loop.View, in shutdown.Inputs, now time.Time) time.Time {
	if in.Event == shutdown.NoEvent && !s.state.Active() {
		s.updateDelay(v)
		s.o.Metrics.Shutdown(&s.state, s.o.DelayLock.Status().Inhibited)
		return time.Time{}
	}
	in.DryRun = len(v.Mode.ReasonsExceptKubelet) > 0
	if in.Event == shutdown.Begin && in.Manual {
		in.Schedule = v.Config.ShutdownSchedule()
	}
	began := s.state.Began
	if in.Event == shutdown.Begin && !s.state.Active() {
		began = now
	}
	if now.Sub(s.listed) >= listInterval || began.Equal(now) {
		s.listed = now
		s.o.Inventory.Refresh()
	}
	in.PodsUnknown = v.Snapshot.Listed.IsZero() || !s.state.Listed && v.Snapshot.Listed.Before(began) && now.Before(began.Add(firstListTimeout))
	for i := range v.Snapshot.Pods {
		if p := &v.Snapshot.Pods[i]; !pods.Essential(p) {
			in.Pods = append(in.Pods, *p)
		}
	}
	before := s.state
	state, orders := shutdown.Step(before, in, now)
	s.state = state
	s.publish()
	s.executeOrders(ctx, v, &orders, in.DryRun)
	if len(orders.Stop)+len(orders.Kill)+len(orders.Gone) > 0 {
		s.o.RequestSave()
	}
	s.phaseChanged(ctx, &before, in.DryRun)
	s.updateDelay(v)
	s.o.Metrics.Shutdown(&s.state, s.o.DelayLock.Status().Inhibited)
	return s.nextStep(orders.Wake, now)
}

// nextStep returns when the next step is due: at wake, but soon while the pods are
// not known, and for the next list.
func (s *Driver) nextStep(wake, now time.Time) time.Time {
	if !s.state.Active() {
		return wake
	}
	soonest := s.listed.Add(listInterval)
	if first := s.state.Began.Add(firstListTimeout); !s.state.Listed && first.After(now) && first.Before(soonest) {
		soonest = first
	}
	if !wake.IsZero() && wake.Before(soonest) {
		return wake
	}
	return soonest
}

func (s *Driver) publish() { s.published.Store(new(s.state.Clone())) }

// updateDelay sets how long the DelayLock delays a shutdown. It changes nothing during
// a shutdown.
func (s *Driver) updateDelay(v *loop.View) {
	if s.state.Active() || s.preparing || !podsListed(v) {
		return
	}
	var needs time.Duration
	if len(s.SkipReasons(v)) == 0 && len(v.Mode.ReasonsExceptKubelet) == 0 {
		needs = v.Config.ShutdownSchedule().Delay()
	}
	s.o.DelayLock.SetDelay(needs)
}
