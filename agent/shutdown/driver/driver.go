// Package driver carries out the node's shutdown: it takes what logind or an operator
// says, steps agent/shutdown's state machine on a goroutine of its own, and hands the
// orders to agent/execute.
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
	Log   *slog.Logger
	Guard Guard
	// View returns what the decision loop knew last; nil before its first iteration.
	View      func() *loop.View
	Inventory Inventory
	Execute   *execute.Executor
	Metrics   Metrics
	// Save saves the state, RequestSave asks for that to be done soon.
	Save        func() error
	RequestSave func()
	// Announce reports the new phase of a shutdown to the service manager.
	Announce func(shutdown.Phase)
	// Bus is the address of the system bus.
	Bus string
}

// Guard delays the node's shutdown, and reports what logind says about it.
type Guard interface {
	Events() <-chan logind.Event
	Status() logind.Status
	Want(needs time.Duration)
	Done()
}

// Inventory lists the pods.
type Inventory interface {
	Refresh()
	Guard() *evict.Guard
}

// Metrics shows the state of a shutdown.
type Metrics interface {
	Shutdown(state *shutdown.State, locked bool)
}

// Driver stops the pods when the node goes down, and delays the shutdown until then.
// It decides on one goroutine of its own, from what the loop saw last; it never asks
// the loop, and a runtime that hangs delays nothing.
type Driver struct {
	o       Options
	changed chan struct{} // there is a new view
	asked   chan asking
	ended   chan struct{} // closed when Run has

	// What run alone uses.
	state     shutdown.State
	resuming  bool          // the state is an earlier run's, and nobody carries it out
	preparing bool          // as logind said last
	late      *logind.Event // what it said before anything was observed
	started   time.Time     // when run was
	listed    time.Time     // when the pods were last asked for
	left      string        // why the shutdown that goes on is left alone, as it was told
	// shown is a copy of the state for others.
	shown atomic.Pointer[shutdown.State]
}

// asking is what an operator wants.
type asking struct {
	event  shutdown.Event
	answer chan error
}

// lookFirst is how long the list of pods is waited for at the beginning of a
// shutdown: what has begun just before is no newcomer.
const lookFirst = 500 * time.Millisecond

// listEvery is how often the pods are listed while the node goes down: else they
// are seldom, where nothing changes.
const listEvery = time.Second

// askFirst is how long logind is waited for before a shutdown of an earlier run is
// gone on with: it may have been called off.
const askFirst = 3 * time.Second

// New returns a Driver. Nothing runs yet.
func New(o Options) *Driver {
	s := &Driver{o: o, changed: make(chan struct{}, 1), asked: make(chan asking), ended: make(chan struct{})}
	s.shown.Store(&shutdown.State{})
	return s
}

// State returns the state of the shutdown. It is not changed any more.
func (s *Driver) State() *shutdown.State { return s.shown.Load() }

// Ended is closed when Run has returned.
func (s *Driver) Ended() <-chan struct{} { return s.ended }

// Restore takes over what an earlier run of this boot left.
func (s *Driver) Restore(state shutdown.State) {
	s.state, s.resuming = state, state.Active()
	s.show()
	if s.resuming {
		s.o.Log.Warn("going on with a shutdown of the node that an earlier run began", "began", state.Began, "pods", len(state.Pods))
	}
}

// Changed reports a new view. It never waits.
func (s *Driver) Changed() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Run follows shutdowns until ctx ends.
//
// Complexity: one select over everything that wakes it, and one switch over what that leads to.
//
//gocyclo:ignore
func (s *Driver) Run(ctx context.Context) {
	defer close(s.ended)
	s.started = time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		in := shutdown.Inputs{}
		var answer chan<- error
		select {
		case <-ctx.Done():
			return
		case e := <-s.o.Guard.Events():
			s.late = &e
		case q := <-s.asked:
			if err := s.check(q.event); err != nil {
				q.answer <- err
				continue
			}
			in.Event, in.Manual, answer = q.event, true, q.answer
		case <-s.changed:
		case <-timer.C:
		}
		v := s.o.View()
		if v == nil {
			continue // nothing is known of anybody yet
		}
		e := s.late
		switch {
		case s.resuming && (e == nil || e.Preparing):
			if wait := time.Until(s.started.Add(askFirst)); e == nil && !s.state.Manual && wait > 0 {
				timer.Reset(wait)
				continue
			}
			in.Event, s.resuming = shutdown.Resume, false
			s.Changed() // and then for what logind says
		case e != nil && in.Event == shutdown.Nothing && (!e.Preparing || s.state.Active() || known(v)):
			s.resuming = false
			in, s.late = s.heard(v, *e), nil
		}
		wake := s.step(ctx, v, in, time.Now())
		if answer != nil {
			answer <- nil // whoever asks now sees what came of it
		}
		if !wake.IsZero() {
			timer.Reset(time.Until(wake))
		}
	}
}

// heard turns what logind says into what has happened. It may say it again.
func (s *Driver) heard(v *loop.View, e logind.Event) (in shutdown.Inputs) {
	s.preparing = e.Preparing
	switch {
	case !e.Preparing:
		s.left = ""
		if s.state.Active() && !s.state.Manual {
			in.Event = shutdown.Cancel
		}
	case s.left != "":
		// Whoever it was left to has begun: there is no taking over in the middle.
	case len(s.Refrain(v)) > 0 && !s.state.Active():
		s.left = strings.Join(s.Refrain(v), "; ")
		s.o.Guard.Done() // of an earlier run, under another configuration
		s.o.Log.Warn("the node goes down, its pods are left alone", "why", s.left)
	default:
		in.Event, in.Schedule = shutdown.Begin, v.Config.Schedule()
		if e.Locked {
			// Without a lock nobody waits; what can be done in order is done in order
			// all the same.
			in.Until = e.Until
		}
		if s.state.Phase == shutdown.Ended && s.state.Manual {
			s.o.Guard.Done() // over already, and logind's from now on
		}
	}
	return in
}

// Why a command of an operator is not taken.
var (
	ErrNotYet  = errors.New("the first observation is not complete yet; try again in a second")
	errNothing = errors.New("no shutdown goes on")
	errLogind  = errors.New("the shutdown is logind's, which alone can call it off")
)

// check returns why an operator's command can't be followed.
func (s *Driver) check(event shutdown.Event) error {
	v := s.o.View()
	switch {
	case v == nil || s.resuming || event == shutdown.Begin && !known(v):
		return ErrNotYet
	case event == shutdown.Cancel && !s.state.Active():
		return errNothing
	case event == shutdown.Cancel && !s.state.Manual:
		return errLogind
	case event == shutdown.Begin && !s.state.Active():
		if why := s.Refrain(v); len(why) > 0 {
			return errors.New(strings.Join(why, "; "))
		}
	}
	return nil
}

// Command has Run take a command.
func (s *Driver) Command(ctx context.Context, event shutdown.Event) error {
	q := asking{event, make(chan error, 1)}
	select {
	case s.asked <- q:
	case <-s.ended:
		return errors.New("evictd is stopping")
	case <-ctx.Done():
		return ctx.Err()
	}
	return <-q.answer
}

// known reports whether the pods have been listed: until then nobody can tell
// whether they are a kubelet's.
func known(v *loop.View) bool {
	return !v.Snapshot.Listed.IsZero() || v.Config.RuntimeEndpoint == config.RuntimeNone
}

// Refrain returns every reason to leave a shutdown to others.
func (s *Driver) Refrain(v *loop.View) (why []string) {
	if len(v.Config.Schedule()) == 0 {
		why = append(why, "neither shutdownGracePeriod nor shutdownGracePeriodByPodPriority is configured")
	}
	if v.Config.Shutdown.BesideKubelet == config.ShutdownOwn {
		return why
	}
	if v.Snapshot.Kubelet.Pods {
		why = append(why, "a kubelet owns pods of this node (shutdown.besideKubelet: own stops them all the same)")
	} else if v.Snapshot.Kubelet.Process != "" {
		why = append(why, "a kubelet runs on this node (shutdown.besideKubelet: own does its work all the same)")
	}
	if s.o.Guard.Status().Kubelet {
		why = append(why, "a kubelet holds shutdowns up itself (shutdown.besideKubelet: own does it beside that)")
	}
	return why
}

// step decides and acts. It returns when to step again at the latest.
func (s *Driver) step(ctx context.Context, v *loop.View, in shutdown.Inputs, now time.Time) time.Time {
	if in.Event == shutdown.Nothing && !s.state.Active() {
		s.want(v)
		s.o.Metrics.Shutdown(&s.state, s.o.Guard.Status().Locked)
		return time.Time{}
	}
	in.DryRun = len(v.Mode.Apart) > 0
	if in.Event == shutdown.Begin && in.Manual {
		in.Schedule = v.Config.Schedule()
	}
	began := s.state.Began
	if in.Event == shutdown.Begin && !s.state.Active() {
		began = now
	}
	if now.Sub(s.listed) >= listEvery || began.Equal(now) {
		s.listed = now
		s.o.Inventory.Refresh()
	}
	in.Unlisted = v.Snapshot.Listed.IsZero() || !s.state.Listed && v.Snapshot.Listed.Before(began) && now.Before(began.Add(lookFirst))
	for i := range v.Snapshot.Pods {
		if p := &v.Snapshot.Pods[i]; !pods.Vital(p) {
			in.Pods = append(in.Pods, *p)
		}
	}
	before := s.state
	state, orders := shutdown.Step(before, in, now)
	s.state = state
	s.show()
	s.carryOut(ctx, v, &orders, in.DryRun)
	if len(orders.Stop)+len(orders.Kill)+len(orders.Gone) > 0 {
		s.o.RequestSave()
	}
	s.announce(ctx, &before, in.DryRun)
	s.want(v)
	s.o.Metrics.Shutdown(&s.state, s.o.Guard.Status().Locked)
	return s.wake(orders.Wake, now)
}

// wake returns when to step again: when it was asked for, but soon while the pods
// are not known yet, and for the next list.
func (s *Driver) wake(asked, now time.Time) time.Time {
	if !s.state.Active() {
		return asked
	}
	soonest := s.listed.Add(listEvery)
	if first := s.state.Began.Add(lookFirst); !s.state.Listed && first.After(now) && first.Before(soonest) {
		soonest = first
	}
	if !asked.IsZero() && asked.Before(soonest) {
		return asked
	}
	return soonest
}

func (s *Driver) show() { s.shown.Store(new(s.state.Clone())) }

// want tells the guard for how long a shutdown is to be held up. In the middle of
// one nothing is changed.
func (s *Driver) want(v *loop.View) {
	if s.state.Active() || s.preparing || !known(v) {
		return
	}
	var needs time.Duration
	if len(s.Refrain(v)) == 0 && len(v.Mode.Apart) == 0 {
		needs = v.Config.Schedule().Needs()
	}
	s.o.Guard.Want(needs)
}
