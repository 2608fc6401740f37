package scenario

import (
	"encoding/json"
	"io"
	"iter"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/shutdown"
)

// ShutdownHeader describes what a scenario of a shutdown begins with.
type ShutdownHeader struct {
	Groups []ShutdownGroup `json:"groups"` // in the order in which they stop
	// Needs is how long the shutdown has to be held up for all groups; Allowed
	// what is allowed, null for as long as needed.
	Needs   string  `json:"needs"`
	Allowed *string `json:"allowed"`
}

// ShutdownGroup is a group and the pods of the beginning that are in it.
type ShutdownGroup struct {
	Priority int32    `json:"priority"` // the lowest
	Time     string   `json:"time"`     // as far as it is allowed
	Pods     []string `json:"pods"`
	Last     []string `json:"last"` // those of its second wave
}

// ShutdownStep is what came of one instant.
type ShutdownStep struct {
	At    string         `json:"at"`
	Event string         `json:"event"` // begin, cancel or nothing
	Phase string         `json:"phase"` // afterwards: idle, stopping or ended
	Group *int32         `json:"group"` // the priority of the one whose turn it is
	Added []string       `json:"added"`
	Gone  []ShutdownGone `json:"gone"`
	Stop  []ShutdownStop `json:"stop"`
	Kill  []string       `json:"kill"` // directly, where the time ends before the grace
}

// ShutdownGone is a pod that has gone.
type ShutdownGone struct {
	Pod   string `json:"pod"`
	After string `json:"after"` // since it was asked to stop
	// Killed tells that it did not stop by itself in the time that it was given.
	Killed bool `json:"killed"`
}

// ShutdownStop is a pod that is asked to stop.
type ShutdownStop struct {
	Pod                string `json:"pod"`
	GracePeriodSeconds int64  `json:"gracePeriodSeconds"`
	Reason             string `json:"reason"`
	Message            string `json:"message"`
}

// inForce returns the groups as far as they are allowed.
func (s *Shutdown) inForce() shutdown.Schedule {
	if s.allowed == nil {
		return s.schedule
	}
	return s.schedule.Within(*s.allowed)
}

// Header returns what the scenario begins with.
func (s *Shutdown) Header() ShutdownHeader {
	h := ShutdownHeader{Groups: []ShutdownGroup{}, Needs: s.schedule.Needs().String()}
	if s.allowed != nil {
		h.Allowed = new(s.allowed.String())
	}
	groups := s.inForce()
	for _, g := range groups {
		h.Groups = append(h.Groups, ShutdownGroup{Priority: g.Priority, Time: g.Time.String(), Pods: []string{}, Last: []string{}})
	}
	for i := range s.pods {
		p := &s.pods[i].Pod
		if len(groups) == 0 {
			break
		}
		g := &h.Groups[groups.Group(p.Priority)]
		if shutdown.SecondWave(p) {
			g.Last = append(g.Last, p.Key())
		} else {
			g.Pods = append(g.Pods, p.Key())
		}
	}
	return h
}

// Replay yields the instants at which something happened, in order. Every call
// replays from the start.
func (s *Shutdown) Replay() iter.Seq[ShutdownStep] {
	return func(yield func(ShutdownStep) bool) {
		r := &stopping{Shutdown: s, steps: s.steps}
		r.join(s.pods)
		for at, more := r.next(nil); more; {
			step, wake := r.step(at)
			if !step.empty() && !yield(step) {
				return
			}
			at, more = r.next(wake)
		}
	}
}

// WriteJSON replays the scenario into JSON, one object a line: the header, then
// each instant.
func (s *Shutdown) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if err := e.Encode(s.Header()); err != nil {
		return err
	}
	for step := range s.Replay() {
		if err := e.Encode(step); err != nil {
			return err
		}
	}
	return nil
}

// stopping is a shutdown under way.
type stopping struct {
	*Shutdown
	state   shutdown.State
	steps   []shutdownStep // to come
	running []*leaving
}

// leaving is a pod that runs, and what has been asked of it.
type leaving struct {
	*stoppable
	asked *time.Duration // from the start; nil for not
	grace time.Duration
	kill  *time.Duration // when it is killed directly; nil for not
}

// end returns when the pod is gone: when it stops, at the latest when its grace
// is over and the runtime kills it, or when it is killed directly.
func (l *leaving) end() time.Duration {
	end := *l.asked + l.grace
	if l.kill != nil {
		end = min(end, *l.kill)
	}
	if l.stopsAfter != nil {
		end = min(end, *l.asked+*l.stopsAfter)
	}
	return end
}

// killed reports whether it did not stop by itself.
func (l *leaving) killed() bool { return l.stopsAfter == nil || *l.asked+*l.stopsAfter > l.end() }

func (r *stopping) join(pods []stoppable) {
	for i := range pods {
		r.running = append(r.running, &leaving{stoppable: &pods[i]})
	}
}

// next returns when something is to come.
func (r *stopping) next(wake *time.Duration) (at time.Duration, more bool) {
	consider := func(t time.Duration) {
		if !more || t < at {
			at, more = t, true
		}
	}
	if wake != nil {
		consider(*wake)
	}
	if len(r.steps) > 0 {
		consider(r.steps[0].at)
	}
	for _, l := range r.running {
		if l.asked != nil {
			consider(l.end())
		}
	}
	return at, more
}

// step brings everything to an instant: pods that have stopped go, one step of
// the file is applied if it is due, and what follows is decided.
func (r *stopping) step(at time.Duration) (step ShutdownStep, wake *time.Duration) {
	now := start.Add(at)
	step = ShutdownStep{At: at.String(), Added: []string{}, Gone: []ShutdownGone{}, Stop: []ShutdownStop{}, Kill: []string{}}
	r.running = slices.DeleteFunc(r.running, func(l *leaving) bool {
		if l.asked == nil || at < l.end() {
			return false
		}
		step.Gone = append(step.Gone, ShutdownGone{Pod: l.Key(), After: (at - *l.asked).String(), Killed: l.killed()})
		return true
	})
	in := shutdown.Inputs{Schedule: r.inForce()}
	if len(r.steps) > 0 && r.steps[0].at <= at {
		due := &r.steps[0]
		r.steps = r.steps[1:]
		in.Event = due.event
		step.Event = map[shutdown.Event]string{shutdown.Begin: "begin", shutdown.Cancel: "cancel"}[due.event]
		for i := range due.add {
			step.Added = append(step.Added, due.add[i].Key())
		}
		r.join(due.add)
	}
	for _, l := range r.running {
		in.Pods = append(in.Pods, l.Pod)
	}
	before := r.state.Phase
	state, orders := shutdown.Step(r.state, in, now)
	r.state = state
	for i := range orders.Stop {
		r.stop(&orders.Stop[i], at, &step)
	}
	for i := range orders.Kill {
		step.Kill = append(step.Kill, orders.Kill[i].Pod)
		r.of(orders.Kill[i].UID).kill = &at
	}
	step.Phase = phaseName(state.Phase)
	if state.Phase == shutdown.Stopping && state.Current < len(state.Schedule) {
		step.Group = new(state.Schedule[state.Current].Priority)
	}
	if step.Event == "" && before == state.Phase && len(step.Added)+len(step.Gone)+len(step.Stop)+len(step.Kill) == 0 {
		step = ShutdownStep{}
	}
	if !orders.Wake.IsZero() {
		wake = new(orders.Wake.Sub(start))
	}
	return step, wake
}

// stop asks a pod to stop.
func (r *stopping) stop(o *shutdown.Stop, at time.Duration, into *ShutdownStep) {
	l := r.of(o.UID)
	l.asked, l.grace = &at, o.Grace
	reason, message := o.Reason()
	into.Stop = append(into.Stop, ShutdownStop{
		Pod: o.Pod, GracePeriodSeconds: int64(o.Grace / time.Second), Reason: reason, Message: message,
	})
}

// of returns the pod of a UID, which runs.
func (r *stopping) of(uid string) *leaving {
	return r.running[slices.IndexFunc(r.running, func(l *leaving) bool { return l.UID == uid })]
}

// empty reports whether nothing happened.
func (s *ShutdownStep) empty() bool { return s.At == "" }

func phaseName(p shutdown.Phase) string {
	if p == shutdown.Idle {
		return "idle"
	}
	return string(p)
}
