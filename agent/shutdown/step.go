package shutdown

import (
	"cmp"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
)

// Event is what happened since the step before.
type Event uint8

// The events.
const (
	Nothing Event = iota
	// Begin: the node is about to go down. While it is already that changes
	// nothing.
	Begin
	// Cancel: it is not, after all.
	Cancel
	// Resume: the state is that of an earlier run, and nobody does what that
	// run had ordered.
	Resume
)

// Inputs is what one step decides on.
type Inputs struct {
	Event Event
	// Schedule counts where the event is Begin, which without groups is none.
	// Until is when the service manager goes on at the latest: the schedule is
	// cut to that, where it is not zero.
	Schedule Schedule
	Until    time.Time
	// Manual tells that an operator asks for it. Where the service manager does,
	// too, the shutdown is that one's.
	Manual bool
	// Pods are those that run, in any order. Step does not keep them.
	Pods []evict.Pod
	// Unlisted tells that it is not known yet what runs, so that Pods is empty
	// and nobody has left.
	Unlisted bool
	// DryRun makes a pod count as gone once it is asked to stop.
	DryRun bool
}

// Orders is what a step wants done, and what it found. Its lists are sorted by
// pod and UID.
type Orders struct {
	// Stop lists the pods to ask to stop. All of it is to be begun at once.
	Stop []Stop
	// Kill lists the pods, asked before, that are to be killed directly now.
	Kill []Member
	// Gone lists the pods that were seen to have gone.
	Gone []Member
	// Wake is when the next step is due if nothing happens before; zero is
	// never.
	Wake time.Time
}

// Stop asks one pod to stop.
type Stop struct {
	Member
	// Again tells that the pod was asked by an earlier run.
	Again bool
}

// The reasons and messages of what becomes of pods, which are the kubelet's
// (pkg/kubelet/nodeshutdown/nodeshutdown_manager.go).
const (
	ReasonTerminated  = "Terminated"
	MessageTerminated = "Pod was terminated in response to imminent node shutdown."
	ReasonRefused     = "NodeShutdown"
	MessageRefused    = "Pod was rejected as the node is shutting down."
)

// Reason returns why the pod was stopped, for its status.
func (m *Member) Reason() (reason, message string) {
	if m.Refused {
		return ReasonRefused, MessageRefused
	}
	return ReasonTerminated, MessageTerminated
}

// Step decides what is to be done about a shutdown now.
func Step(state State, in Inputs, now time.Time) (State, Orders) {
	s := stepper{State: state.Clone(), in: &in, now: now, running: make(map[string]*evict.Pod, len(in.Pods))}
	for i := range in.Pods {
		s.running[in.Pods[i].UID] = &in.Pods[i]
	}
	s.hear()
	if s.Phase == Idle {
		return s.State, s.orders
	}
	if !in.Unlisted {
		s.follow()
		s.resume()
	}
	if s.Phase == Stopping && (!in.Unlisted || !s.Listed || !now.Before(s.Deadline())) {
		s.advance() // but nobody's turn comes unseen
	}
	if !in.Unlisted {
		s.refuse()
		s.kill()
	}
	s.finish()
	s.wake()
	slices.SortFunc(s.Pods, byPod)
	slices.SortFunc(s.orders.Stop, func(a, b Stop) int { return byPod(a.Member, b.Member) })
	return s.State, s.orders
}

// stepper is a step under way.
type stepper struct {
	State
	in      *Inputs
	now     time.Time
	running map[string]*evict.Pod // by UID
	orders  Orders
}

// hear takes in the event.
func (s *stepper) hear() {
	switch {
	case s.in.Event == Begin && s.Phase == Idle && len(s.in.Schedule) > 0:
		s.State = State{Phase: Stopping, Began: s.now, Turn: s.now, Manual: s.in.Manual, Schedule: s.within(s.in.Schedule)}
	case s.in.Event == Begin && s.Manual && !s.in.Manual:
		s.Manual = false
		s.shorten()
	case s.in.Event == Begin: // once more
	case s.in.Event == Cancel && s.Phase != Idle:
		// Those that were asked to stop go on with that: what is half stopped is
		// no use to anybody. Nobody else is.
		over := s.Over
		if over.IsZero() {
			over = s.now
		}
		s.State = State{Began: s.Began, Over: over, CalledOff: true}
	case s.in.Event == Resume:
		s.Resuming = s.Phase != Idle
	}
}

// within returns a copy of a schedule that begins now, and ends in time.
func (s *stepper) within(schedule Schedule) Schedule {
	if s.in.Until.IsZero() {
		return slices.Clone(schedule)
	}
	return slices.Clone(schedule.Within(s.in.Until.Sub(s.now)))
}

// shorten cuts what is left of the schedule to the time that the service manager
// leaves, which was not asked when the shutdown began.
func (s *stepper) shorten() {
	if s.Phase != Stopping || s.Current >= len(s.Schedule) {
		return
	}
	left := slices.Clone(s.Schedule[s.Current:])
	left[0].Time = max(0, s.End(s.Current).Sub(s.now))
	left = s.within(left)
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

// resume asks those to stop once more whom an earlier run had asked, within
// what is left of their grace. Where nothing is left they are killed.
func (s *stepper) resume() {
	if !s.Resuming {
		return
	}
	s.Resuming = false
	for i := range s.Pods {
		m := &s.Pods[i]
		if m.Status == Killed {
			m.Status = Asked // and overdue
		}
		if m.Status == Asked && s.now.Before(m.Due) {
			again := *m
			again.Grace = whole(m.Due.Sub(s.now))
			s.orders.Stop = append(s.orders.Stop, Stop{Member: again, Again: true})
		}
	}
}

// follow enters the pods that the shutdown finds at its beginning, the first
// time that they are known, and looks who has gone since.
func (s *stepper) follow() {
	if !s.Listed {
		s.Listed = true
		for i := range s.in.Pods {
			s.Pods = append(s.Pods, s.enter(&s.in.Pods[i]))
		}
	}
	for i := range s.Pods {
		if m := &s.Pods[i]; m.there() && s.running[m.UID] == nil {
			m.Status = Gone
			s.orders.Gone = append(s.orders.Gone, *m)
		}
	}
}

// enter makes a member of a pod. One that becomes known when its group has had
// its turn goes with the group whose turn it is.
func (s *stepper) enter(p *evict.Pod) Member {
	group := max(s.Schedule.Group(p.Priority), min(s.Current, len(s.Schedule)-1))
	return Member{UID: p.UID, Pod: p.Key(), Status: Waiting, Group: group, Last: SecondWave(p)}
}

// SecondWave reports whether a pod is of its group's second wave: a DaemonSet's or a
// critical one.
func SecondWave(p *evict.Pod) bool { return p.OfDaemonSet() || p.Critical() }

// byPod orders members for whoever reads lists of them.
func byPod(a, b Member) int { return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.UID, b.UID)) }
