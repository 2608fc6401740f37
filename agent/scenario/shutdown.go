package scenario

import (
	"cmp"
	"io"
	"iter"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/shutdown"
)

// ShutdownHeader describes the start of a shutdown scenario.
type ShutdownHeader struct {
	Groups []ShutdownGroup `json:"groups"` // in the order in which they stop
	// Needs is how long all groups together take to stop. Allowed is how long the
	// shutdown may be delayed, null for as long as needed.
	Needs   string  `json:"needs"`
	Allowed *string `json:"allowed"`
}

// ShutdownGroup is a group and the pods in it at the start.
type ShutdownGroup struct {
	Priority   int32    `json:"priority"` // the lowest of the group
	Time       string   `json:"time"`     // as far as the allowed delay permits
	Pods       []string `json:"pods"`
	LaterWaves []string `json:"last"` // pods of its later waves, in their order
}

// ShutdownStep is what happened at one instant.
type ShutdownStep struct {
	At    string         `json:"at"`
	Event string         `json:"event"` // begin, cancel or empty
	Phase string         `json:"phase"` // after the instant: idle, stopping or ended
	Group *int32         `json:"group"` // priority of the group that is being stopped
	Added []string       `json:"added"`
	Gone  []ShutdownGone `json:"gone"`
	Stop  []ShutdownStop `json:"stop"`
	Kill  []string       `json:"kill"` // killed directly because the group's time ends before the grace period
}

// ShutdownGone is a pod that is gone.
type ShutdownGone struct {
	Pod   string `json:"pod"`
	After string `json:"after"` // since the stop request
	// Killed is set if the pod did not stop by itself in time.
	Killed bool `json:"killed"`
}

// ShutdownStop is a request to stop a pod.
type ShutdownStop struct {
	Pod                string `json:"pod"`
	GracePeriodSeconds int64  `json:"gracePeriodSeconds"`
	Reason             string `json:"reason"`
	Message            string `json:"message"`
}

// groups returns the groups, with their times reduced to the allowed delay.
func (s *Shutdown) groups() shutdown.Schedule {
	if s.allowed == nil {
		return s.schedule
	}
	return s.schedule.FitInto(*s.allowed)
}

// Header returns the description of the start.
func (s *Shutdown) Header() ShutdownHeader {
	h := ShutdownHeader{Groups: []ShutdownGroup{}, Needs: s.schedule.Delay().String()}
	if s.allowed != nil {
		h.Allowed = new(s.allowed.String())
	}
	groups := s.groups()
	for _, g := range groups {
		h.Groups = append(h.Groups, ShutdownGroup{Priority: g.Priority, Time: g.Time.String(), Pods: []string{}, LaterWaves: []string{}})
	}
	if len(groups) == 0 {
		return h
	}
	var pods []*evict.Pod
	for i := range s.pods {
		pods = append(pods, &s.pods[i].Pod)
	}
	slices.SortStableFunc(pods, func(a, b *evict.Pod) int { return cmp.Compare(shutdown.WaveOf(a), shutdown.WaveOf(b)) })
	for _, p := range pods {
		g := &h.Groups[groups.GroupOf(p.Priority)]
		if shutdown.WaveOf(p) > 0 {
			g.LaterWaves = append(g.LaterWaves, p.Key())
		} else {
			g.Pods = append(g.Pods, p.Key())
		}
	}
	return h
}

// Replay yields the instants at which something happened, in order. Every call replays
// from the start.
func (s *Shutdown) Replay() iter.Seq[ShutdownStep] {
	return func(yield func(ShutdownStep) bool) {
		r := &shutdownReplay{Shutdown: s, steps: s.steps}
		r.addPods(s.pods)
		for at, more := r.nextEvent(nil); more; {
			step, wake := r.step(at)
			if !step.empty() && !yield(step) {
				return
			}
			at, more = r.nextEvent(wake)
		}
	}
}

// WriteJSON replays the scenario as JSON lines: the header, then the instants.
func (s *Shutdown) WriteJSON(w io.Writer) error {
	return writeJSON(w, s.Header(), s.Replay())
}

// shutdownReplay is the state of a replay.
type shutdownReplay struct {
	*Shutdown
	state   shutdown.State
	steps   []shutdownStep // to come
	running []*stoppingPod
}

// stoppingPod is a running pod and the requests to stop it.
type stoppingPod struct {
	*shutdownPod
	stopAt *time.Duration // relative to the start; nil if not requested
	grace  time.Duration
	killAt *time.Duration // when it is killed directly; nil if it is not
}

// end returns when the pod is gone: when it stops by itself, when the runtime kills it
// at the end of its grace period, or when it is killed directly, whichever is first.
func (l *stoppingPod) end() time.Duration {
	end := *l.stopAt + l.grace
	if l.killAt != nil {
		end = min(end, *l.killAt)
	}
	if l.stopsAfter != nil {
		end = min(end, *l.stopAt+*l.stopsAfter)
	}
	return end
}

// killed reports whether the pod does not stop by itself in time.
func (l *stoppingPod) killed() bool { return l.stopsAfter == nil || *l.stopAt+*l.stopsAfter > l.end() }

func (r *shutdownReplay) addPods(pods []shutdownPod) {
	for i := range pods {
		r.running = append(r.running, &stoppingPod{shutdownPod: &pods[i]})
	}
}

// nextEvent returns when the next event is, and whether there is one. wake is the time
// that shutdown.Step asked for, or nil.
func (r *shutdownReplay) nextEvent(wake *time.Duration) (at time.Duration, more bool) {
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
		if l.stopAt != nil {
			consider(l.end())
		}
	}
	return at, more
}

// step advances to an instant: it removes the pods that have stopped, applies one step
// of the file if it is due, and decides.
func (r *shutdownReplay) step(at time.Duration) (step ShutdownStep, wake *time.Duration) {
	now := start.Add(at)
	step = ShutdownStep{At: at.String(), Added: []string{}, Gone: []ShutdownGone{}, Stop: []ShutdownStop{}, Kill: []string{}}
	r.running = slices.DeleteFunc(r.running, func(l *stoppingPod) bool {
		if l.stopAt == nil || at < l.end() {
			return false
		}
		step.Gone = append(step.Gone, ShutdownGone{Pod: l.Key(), After: (at - *l.stopAt).String(), Killed: l.killed()})
		return true
	})
	in := shutdown.Inputs{Schedule: r.groups()}
	if len(r.steps) > 0 && r.steps[0].at <= at {
		due := &r.steps[0]
		r.steps = r.steps[1:]
		in.Event = due.event
		step.Event = map[shutdown.Event]string{shutdown.Begin: "begin", shutdown.Cancel: "cancel"}[due.event]
		for i := range due.add {
			step.Added = append(step.Added, due.add[i].Key())
		}
		r.addPods(due.add)
	}
	for _, l := range r.running {
		in.Pods = append(in.Pods, l.Pod)
	}
	before := r.state.Phase
	state, orders := shutdown.Step(r.state, in, now)
	r.state = state
	for i := range orders.Stop {
		r.stopPod(&orders.Stop[i], at, &step)
	}
	for i := range orders.Kill {
		step.Kill = append(step.Kill, orders.Kill[i].Pod)
		r.runningPod(orders.Kill[i].UID).killAt = &at
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

// stopPod applies a request to stop a pod.
func (r *shutdownReplay) stopPod(o *shutdown.Stop, at time.Duration, into *ShutdownStep) {
	l := r.runningPod(o.UID)
	l.stopAt, l.grace = &at, o.Grace
	reason, message := o.Reason()
	into.Stop = append(into.Stop, ShutdownStop{
		Pod: o.Pod, GracePeriodSeconds: int64(o.Grace / time.Second), Reason: reason, Message: message,
	})
}

// runningPod returns the running pod with a UID.
func (r *shutdownReplay) runningPod(uid string) *stoppingPod {
	return r.running[slices.IndexFunc(r.running, func(l *stoppingPod) bool { return l.UID == uid })]
}

// empty reports whether nothing happened.
func (s *ShutdownStep) empty() bool { return s.At == "" }

func phaseName(p shutdown.Phase) string {
	if p == shutdown.Idle {
		return "idle"
	}
	return string(p)
}
