package shutdown

import (
	"cmp"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
)

// Event is what has happened since the previous step.
type Event uint8

// The events.
const (
	NoEvent Event = iota
	// Begin: the node is about to shut down. It has no effect during a shutdown.
	Begin
	// Cancel: the shutdown was canceled.
	Cancel
	// Resume: the state is that of an earlier run, whose orders are no longer
	// executed.
	Resume
)

// Inputs are the inputs of one step.
type Inputs struct {
	Event Event
	// Schedule is used if the event is Begin; a Begin without groups is ignored.
	// Until is the latest time at which the service manager continues, or zero: the
	// schedule is cut to it.
	Schedule Schedule
	Until    time.Time
	// Manual reports that an operator requested the event. If the service manager
	// begins a shutdown as well, the shutdown becomes that of the service manager.
	Manual bool
	// Pods are the running pods, in any order. Step does not retain them.
	Pods []evict.Pod
	// PodsUnknown reports that the running pods are not known yet. Pods is then empty,
	// and no pod counts as gone.
	PodsUnknown bool
	// DryRun makes a pod count as gone once it is asked to stop.
	DryRun bool
}

// Orders are the orders and findings of a step. The lists are sorted by pod and
// UID.
type Orders struct {
	// Stop lists the pods to ask to stop, all at once.
	Stop []Stop
	// Kill lists the pods, asked before, to kill directly now.
	Kill []PodState
	// Gone lists the pods that no longer exist.
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
func (m *PodState) Reason() (reason, message string) {
	if m.Refused {
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
	if s.Phase == Stopping && (!in.PodsUnknown || !s.Listed || !now.Before(s.Deadline())) {
		s.advance() // a group whose pods are unknown is not passed
	}
	if !in.PodsUnknown {
		s.stopNewPods()
		s.killOverdue()
	}
	s.endIfDone()
	s.setWake()
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
		s.State = State{Phase: Stopping, Began: s.now, GroupBegan: s.now, Manual: s.in.Manual, Schedule: s.cutToUntil(s.in.Schedule)}
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
		if m := &s.Pods[i]; m.Status == Asked && m.Limit.After(end) {
			m.Limit = end
		}
	}
}

// repeatStops asks pods again to stop that an earlier run had asked, within the
// rest of their grace. Pods without a rest are killed.
func (s *stepper) repeatStops() {
	if !s.Resuming {
		return
	}
	s.Resuming = false
	for i := range s.Pods {
		m := &s.Pods[i]
		if m.Status == Killed {
			m.Status = Asked // overdue
		}
		if m.Status == Asked && s.now.Before(m.Due) {
			again := *m
			again.Grace = wholeSeconds(m.Due.Sub(s.now))
			s.orders.Stop = append(s.orders.Stop, Stop{PodState: again, Repeated: true})
		}
	}
}

// updatePods adds the pods that run at the beginning, once they are known, and
// marks pods that are gone.
func (s *stepper) updatePods() {
	if !s.Listed {
		s.Listed = true
		for i := range s.in.Pods {
			s.Pods = append(s.Pods, s.newPodState(&s.in.Pods[i]))
		}
	}
	for i := range s.Pods {
		if m := &s.Pods[i]; m.remains() && s.running[m.UID] == nil {
			m.Status = Gone
			s.orders.Gone = append(s.orders.Gone, *m)
		}
	}
}

// newPodState returns the state of a pod. A pod that becomes known after its group
// joins the current group.
func (s *stepper) newPodState(p *evict.Pod) PodState {
	group := max(s.Schedule.GroupOf(p.Priority), min(s.Current, len(s.Schedule)-1))
	return PodState{UID: p.UID, Pod: p.Key(), Status: Waiting, Group: group, SecondWave: SecondWave(p)}
}

// SecondWave reports whether a pod is in its group's second wave: a pod of a
// DaemonSet or a critical one.
func SecondWave(p *evict.Pod) bool { return p.OwnedByDaemonSet() || p.Critical() }

// byPod orders pods by name and UID.
func byPod(a, b PodState) int { return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.UID, b.UID)) }
