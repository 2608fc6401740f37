package shutdown

import (
	"cmp"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
)

// Event is what happened to the node's shutdown since the previous step.
type Event uint8

// The events.
const (
	NoEvent Event = iota
	// Begin: the node is about to shut down. It has no effect during a shutdown.
	Begin
	// Cancel: the shutdown was canceled.
	Cancel
	// Resume: an earlier run of evictd saved the state. Its orders are no longer
	// executed, so Step repeats those of pods that still exist.
	Resume
)

// Inputs are the inputs of one step.
type Inputs struct {
	Event Event
	// Schedule is used if the event is Begin; a Begin without groups is ignored. The
	// schedule is shortened to end by Until, when the service manager continues in any
	// case; zero for no such limit.
	Schedule Schedule
	Until    time.Time
	// Manual reports that an operator requested the event. If the service manager
	// begins a shutdown as well, the shutdown becomes that of the service manager.
	Manual bool
	// Pods are the running pods, in any order. Step does not retain them.
	Pods []evict.Pod
	// PodsUnknown reports that the running pods are not known, because no list is
	// recent enough. No pod then counts as gone or new.
	PodsUnknown bool
	// DryRun makes a pod count as gone once it is asked to stop.
	DryRun bool
	// Fences is used if the event is Begin ([State.Fences]).
	Fences bool
}

// Orders are the orders and findings of a step. Each list is sorted by pod and UID.
type Orders struct {
	// Stop lists the pods to ask to stop now, all at the same time.
	Stop []Stop
	// Kill lists the pods to kill directly now. They were asked to stop before.
	Kill []PodState
	// Gone lists the pods that have ceased to exist since the previous step.
	Gone []PodState
	// Wake is when the next step is due without an event; zero for never.
	Wake time.Time
}

// Stop asks one pod to stop.
type Stop struct {
	PodState
	// Repeated reports that an earlier run has asked the pod to stop.
	Repeated bool
}

// The reasons and messages in a stopped pod's status are the kubelet's
// (pkg/kubelet/nodeshutdown/nodeshutdown_manager.go).
const (
	ReasonTerminated  = "Terminated"
	MessageTerminated = "Pod was terminated in response to imminent node shutdown."
	ReasonRefused     = "NodeShutdown"
	MessageRefused    = "Pod was rejected as the node is shutting down."
)

// Reason returns the reason and message for the pod's status.
func (p *PodState) Reason() (reason, message string) {
	if p.Refused {
		return ReasonRefused, MessageRefused
	}
	return ReasonTerminated, MessageTerminated
}

// Step decides what to do about a shutdown now.
func Step(state State, in Inputs, now time.Time) (State, Orders) {
	s := stepper{State: state.Clone(), in: &in, now: now, running: make(map[string]*evict.Pod, len(in.Pods))}
	for i := range in.Pods {
		s.running[in.Pods[i].UID] = &in.Pods[i]
	}
	s.applyEvent()
	if s.Phase == Idle {
		return s.State, s.orders
	}
	if !in.PodsUnknown {
		s.updatePods()
		s.repeatStops()
	}
	// Without a list, a group is passed only when its time is up if the first list is
	// still missing, and only at the deadline if an earlier run had a list.
	if s.Phase == Stopping && (!in.PodsUnknown || !s.Listed || !now.Before(s.Deadline())) {
		s.advance()
	}
	if !in.PodsUnknown {
		s.stopNewPods()
		s.killOverdue()
	}
	s.endIfDone()
	s.setWake()
	// Kill and Gone are sorted already: they follow the order of Pods, which the
	// previous step sorted, and have no pod that this step added.
	slices.SortFunc(s.Pods, byPod)
	slices.SortFunc(s.orders.Stop, func(a, b Stop) int { return byPod(a.PodState, b.PodState) })
	return s.State, s.orders
}

// stepper is one call of Step.
type stepper struct {
	State
	in      *Inputs
	now     time.Time
	running map[string]*evict.Pod // by UID
	orders  Orders
}

// applyEvent applies the event to the state.
func (s *stepper) applyEvent() {
	switch {
	case s.in.Event == Begin && s.Phase == Idle && len(s.in.Schedule) > 0:
		s.State = State{Phase: Stopping, Began: s.now, WaveBegan: s.now, Manual: s.in.Manual, Fences: s.in.Fences, Schedule: s.cutToUntil(s.in.Schedule)}
	case s.in.Event == Begin && s.Manual && !s.in.Manual:
		s.Manual = false
		s.shortenSchedule()
	case s.in.Event == Begin: // repeated
	case s.in.Event == Cancel && s.Phase != Idle:
		// Pods that were asked to stop continue to stop: a pod that is stopped in
		// part is of no use. No other pod is stopped.
		ended := s.Ended
		if ended.IsZero() {
			ended = s.now
		}
		s.State = State{Began: s.Began, Ended: ended, Canceled: true}
	case s.in.Event == Resume:
		s.Resuming = s.Phase != Idle
	}
}

// cutToUntil returns a copy of a schedule that begins now, cut to Until.
func (s *stepper) cutToUntil(schedule Schedule) Schedule {
	if s.in.Until.IsZero() {
		return slices.Clone(schedule)
	}
	return slices.Clone(schedule.FitInto(s.in.Until.Sub(s.now)))
}

// shortenSchedule cuts the rest of the schedule to Until, which was not known when
// the operator's shutdown began.
func (s *stepper) shortenSchedule() {
	if s.Phase != Stopping || s.Current >= len(s.Schedule) {
		return
	}
	left := slices.Clone(s.Schedule[s.Current:])
	left[0].Time = max(0, s.End(s.Current).Sub(s.now))
	left = s.cutToUntil(left)
	past := s.now.Sub(s.Began)
	for i := range s.Schedule {
		switch {
		case i < s.Current:
			s.Schedule[i].Time = 0
		case i == s.Current:
			s.Schedule[i].Time = past + left[0].Time
		default:
			s.Schedule[i].Time = left[i-s.Current].Time
		}
	}
	end := s.End(s.Current)
	for i := range s.Pods {
		if p := &s.Pods[i]; p.Status == Asked && p.Limit.After(end) {
			p.Limit = end
		}
	}
}

// repeatStops asks again the pods that an earlier run asked to stop, with the time
// that is left of their grace period; those without time left are killed at Limit.
func (s *stepper) repeatStops() {
	if !s.Resuming {
		return
	}
	s.Resuming = false
	for i := range s.Pods {
		p := &s.Pods[i]
		if p.Status == Killed {
			p.Status = Asked // so that killOverdue orders the kill again
		}
		if p.Status == Asked && s.now.Before(p.Due) {
			again := *p
			again.Grace = wholeSeconds(p.Due.Sub(s.now))
			s.orders.Stop = append(s.orders.Stop, Stop{PodState: again, Repeated: true})
		}
	}
}

// updatePods adds the running pods when they are listed for the first time, and marks
// pods that are gone.
func (s *stepper) updatePods() {
	if !s.Listed {
		s.Listed = true
		for i := range s.in.Pods {
			s.Pods = append(s.Pods, s.newPodState(&s.in.Pods[i]))
		}
	}
	for i := range s.Pods {
		if p := &s.Pods[i]; p.remains() && s.running[p.UID] == nil {
			p.Status = Gone
			s.orders.Gone = append(s.orders.Gone, *p)
		}
	}
}

// newPodState returns the state of a running pod that was not asked to stop yet. A pod
// that becomes known after its group has passed is added to the current one.
func (s *stepper) newPodState(p *evict.Pod) PodState {
	group := max(s.Schedule.GroupOf(p.Priority), min(s.Current, len(s.Schedule)-1))
	return PodState{UID: p.UID, Pod: p.Key(), Status: Waiting, Group: group, Wave: WaveOf(p)}
}

// The waves of a group stop one after the other.
const (
	// secondWave has the pods of DaemonSets and critical pods: the others may need them while
	// they stop.
	secondWave = 1
	// lastWave has the static pods of a kubelet: the API server can be one of them, and the
	// ends of the other pods of the group, and of the groups before it, are reported to it. It is
	// asked to stop at three quarters of the group's time, though others with a long grace period
	// may still run: they were reported when they were asked.
	lastWave = 2
)

// WaveOf returns the wave of a pod within its group, from 0.
func WaveOf(p *evict.Pod) int {
	switch {
	case p.Static || p.Mirror:
		return lastWave
	case p.OwnedByDaemonSet() || p.Critical():
		return secondWave
	}
	return 0
}

// byPod orders pods by name and UID.
func byPod(a, b PodState) int { return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.UID, b.UID)) }
