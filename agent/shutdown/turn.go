package shutdown

import (
	"time"

	"github.com/evictd/evictd/agent/evict"
)

const (
	// defaultGrace is the grace period of a pod that names none
	// (pkg/apis/core/v1/defaults.go).
	defaultGrace = 30 * time.Second
	// leastGrace is what a pod is given however little is left: a runtime counts
	// whole seconds, and the kubelet gives no less.
	leastGrace = time.Second
	// late is how long after a pod's grace the runtime may still be about to
	// kill it, before it is killed directly.
	late = time.Second
)

// advance gives each group its turn: it leaves those that are done, or whose
// time is up, and asks the pods of the next to stop. Also where a step comes so
// late that a group's time is up already, all of its pods are asked.
func (s *stepper) advance() {
	for ; s.Current < len(s.Schedule); s.next() {
		s.ask(false)
		if !s.any(s.is(false)) || !s.now.Before(s.half()) {
			s.Second = true
		}
		if s.Second {
			s.ask(true)
		}
		if !s.now.Before(s.End(s.Current)) {
			continue // its time is up
		}
		if s.any(s.is(false)) || s.any(s.is(true)) {
			return
		}
		if !s.Listed {
			return // nobody knows yet who is in it
		}
	}
}

// next begins with the group after the current one.
func (s *stepper) next() {
	s.Current++
	s.Turn, s.Second = s.now, false
}

// half returns when the second wave of the current group is asked to stop at
// the latest.
func (s *stepper) half() time.Time {
	return s.Turn.Add(s.End(s.Current).Sub(s.Turn) / 2)
}

// is selects the pods of a wave of the current group that keep it waiting: not
// those that came in the middle, or that would be made anew without end.
func (s *stepper) is(last bool) func(*Member) bool {
	return func(m *Member) bool { return m.Group == s.Current && m.Last == last && !m.Refused && m.there() }
}

func (s *stepper) any(want func(*Member) bool) bool {
	for i := range s.Pods {
		if want(&s.Pods[i]) {
			return true
		}
	}
	return false
}

// ask asks the pods of a wave of the current group to stop that wait for it.
func (s *stepper) ask(last bool) {
	wanted := s.is(last)
	for i := range s.Pods {
		if m := &s.Pods[i]; wanted(m) && m.Status == Waiting {
			s.stop(m, s.End(s.Current))
		}
	}
}

// stop asks a pod to stop by the end at the latest.
func (s *stepper) stop(m *Member, end time.Time) {
	own := defaultGrace
	if p := s.running[m.UID]; p != nil {
		own, m.LastStart = ownGrace(p), p.LastStart
	}
	m.Status = Asked
	m.Due = s.now.Add(max(leastGrace, min(own, end.Sub(s.now))))
	m.Grace = whole(m.Due.Sub(s.now))
	m.Limit = m.Due.Add(late)
	if m.Limit.After(end) {
		m.Limit = later(m.Due, end)
	}
	s.orders.Stop = append(s.orders.Stop, Stop{Member: *m})
	if s.in.DryRun {
		m.Status = Pretended
	}
}

// ownGrace returns the grace period that a pod asks for.
func ownGrace(p *evict.Pod) time.Duration {
	if p.TerminationGraceSeconds == nil {
		return defaultGrace
	}
	const most = int64(1<<63-1) / int64(time.Second)
	return time.Duration(max(0, min(*p.TerminationGraceSeconds, most))) * time.Second
}

// whole rounds a grace up to whole seconds, which is what a runtime counts in.
// So the pod has all of the time that is left: where that ends sooner, it is
// killed directly.
func whole(grace time.Duration) time.Duration {
	return max(leastGrace, (grace + time.Second - 1).Truncate(time.Second))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// refuse stops the pods that came, or came back, when the shutdown had begun.
// Each has what is left of the group whose turn it is, or of the last. Pods that became known
// only when every group's time was up are no newcomers, and go like them.
func (s *stepper) refuse() {
	end := s.now
	if s.Phase == Stopping {
		end = s.End(min(s.Current, len(s.Schedule)-1))
	}
	index := make(map[string]int, len(s.Pods))
	for i := range s.Pods {
		index[s.Pods[i].UID] = i
	}
	for i := range s.in.Pods {
		p := &s.in.Pods[i]
		at, known := index[p.UID]
		switch {
		case !known:
			at = len(s.Pods)
			s.Pods = append(s.Pods, s.enter(p))
			s.Pods[at].Refused = true
		case s.Pods[at].Status == Gone, s.Pods[at].cameBack(p):
			returning := s.Pods[at].Refused
			s.Pods[at] = s.enter(p)
			s.Pods[at].Refused, s.Pods[at].Returning = true, returning
		case s.Pods[at].Status != Waiting || s.Current < len(s.Schedule):
			continue
		}
		s.stop(&s.Pods[at], end)
	}
}

// cameBack reports whether the pod was asked to stop, and has had a container
// since that was not: whoever runs the pod starts it again.
func (m *Member) cameBack(p *evict.Pod) bool {
	return (m.Status == Asked || m.Status == Killed) && p.LastStart > m.LastStart
}

// kill orders the pods to be killed that are overdue.
func (s *stepper) kill() {
	for i := range s.Pods {
		if m := &s.Pods[i]; m.Status == Asked && !s.now.Before(m.Limit) {
			m.Status = Killed
			s.orders.Kill = append(s.orders.Kill, *m)
		}
	}
}

// finish ends the shutdown when nobody is left, or no time. Those that come back
// each time hold nothing up: whoever brings them may do so for ever.
func (s *stepper) finish() {
	if s.Phase != Stopping || s.Current < len(s.Schedule) {
		return
	}
	waitedFor := func(m *Member) bool { return m.there() && !m.Returning }
	if s.now.Before(s.Deadline()) && s.any(waitedFor) {
		return
	}
	s.Phase, s.Over = Ended, s.now
}

// wake finds when the next step is due.
func (s *stepper) wake() {
	soonest := func(t time.Time) {
		if t.After(s.now) && (s.orders.Wake.IsZero() || t.Before(s.orders.Wake)) {
			s.orders.Wake = t
		}
	}
	for i := range s.Pods {
		if m := &s.Pods[i]; m.Status == Asked {
			soonest(m.Limit)
		}
	}
	if s.Phase != Stopping {
		return
	}
	soonest(s.Deadline())
	if s.Current < len(s.Schedule) {
		soonest(s.End(s.Current))
		if !s.Second {
			soonest(s.half())
		}
	}
}
