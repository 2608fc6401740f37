package shutdown

import (
	"time"

	"github.com/evictd/evictd/agent/evict"
)

const (
	// defaultGrace is the grace period of a pod that specifies none
	// (pkg/apis/core/v1/defaults.go).
	defaultGrace = 30 * time.Second
	// minGrace is the minimum grace, however little time is left: runtimes count in
	// whole seconds, and the kubelet gives no less.
	minGrace = time.Second
	// killDelay is the time after a pod's grace in which the runtime may still kill
	// it, before it is killed directly.
	killDelay = time.Second
)

// advance stops the current group and moves on from groups that are gone or whose
// time is up. It asks the pods of each group that it passes to stop, also if the
// step is so late that the group's time is already up.
func (s *stepper) advance() {
	for ; s.Current < len(s.Schedule); s.nextGroup() {
		s.stopWave(false)
		if !s.anyPod(s.inWave(false)) || !s.now.Before(s.secondWaveTime()) {
			s.SecondWaveAsked = true
		}
		if s.SecondWaveAsked {
			s.stopWave(true)
		}
		if !s.now.Before(s.End(s.Current)) {
			continue // the group's time is up
		}
		if s.anyPod(s.inWave(false)) || s.anyPod(s.inWave(true)) {
			return
		}
		if !s.Listed {
			return // the group's pods are not known yet
		}
	}
}

// nextGroup makes the next group the current one.
func (s *stepper) nextGroup() {
	s.Current++
	s.GroupBegan, s.SecondWaveAsked = s.now, false
}

// secondWaveTime returns the latest time at which the second wave of the current
// group is asked to stop.
func (s *stepper) secondWaveTime() time.Time {
	return s.GroupBegan.Add(s.End(s.Current).Sub(s.GroupBegan) / 2)
}

// inWave selects the pods of a wave of the current group that the group waits for:
// not those that started during the shutdown, because a client could start new ones
// forever.
func (s *stepper) inWave(secondWave bool) func(*PodState) bool {
	return func(m *PodState) bool {
		return m.Group == s.Current && m.SecondWave == secondWave && !m.Refused && m.remains()
	}
}

func (s *stepper) anyPod(want func(*PodState) bool) bool {
	for i := range s.Pods {
		if want(&s.Pods[i]) {
			return true
		}
	}
	return false
}

// stopWave asks the waiting pods of a wave of the current group to stop.
func (s *stepper) stopWave(secondWave bool) {
	wanted := s.inWave(secondWave)
	for i := range s.Pods {
		if m := &s.Pods[i]; wanted(m) && m.Status == Waiting {
			s.stopPod(m, s.End(s.Current))
		}
	}
}

// stopPod asks a pod to stop, by end at the latest.
func (s *stepper) stopPod(m *PodState, end time.Time) {
	own := defaultGrace
	if p := s.running[m.UID]; p != nil {
		own, m.LastStart = ownGrace(p), p.LastStart
	}
	m.Status = Asked
	m.Due = s.now.Add(max(minGrace, min(own, end.Sub(s.now))))
	m.Grace = wholeSeconds(m.Due.Sub(s.now))
	m.Limit = m.Due.Add(killDelay)
	if m.Limit.After(end) {
		m.Limit = latest(m.Due, end)
	}
	s.orders.Stop = append(s.orders.Stop, Stop{PodState: *m})
	if s.in.DryRun {
		m.Status = StoppedInDryRun
	}
}

// ownGrace returns the grace period that the pod specifies.
func ownGrace(p *evict.Pod) time.Duration {
	if p.TerminationGraceSeconds == nil {
		return defaultGrace
	}
	const most = int64(1<<63-1) / int64(time.Second)
	return time.Duration(max(0, min(*p.TerminationGraceSeconds, most))) * time.Second
}

// wholeSeconds rounds a grace up to whole seconds, the unit of runtimes. The pod
// then gets all of the time that is left; if that ends earlier, the pod is killed
// directly.
func wholeSeconds(grace time.Duration) time.Duration {
	return max(minGrace, (grace + time.Second - 1).Truncate(time.Second))
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// stopNewPods stops pods that started, or were restarted, during the shutdown. Each
// gets the rest of the current group's time, or of the last group's. Pods that
// became known only after the time of all groups are not new, but are stopped in
// the same way.
func (s *stepper) stopNewPods() {
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
			s.Pods = append(s.Pods, s.newPodState(p))
			s.Pods[at].Refused = true
		case s.Pods[at].Status == Gone, s.Pods[at].restarted(p):
			refusedBefore := s.Pods[at].Refused
			s.Pods[at] = s.newPodState(p)
			s.Pods[at].Refused, s.Pods[at].Restarted = true, refusedBefore
		case s.Pods[at].Status != Waiting || s.Current < len(s.Schedule):
			continue
		}
		s.stopPod(&s.Pods[at], end)
	}
}

// restarted reports whether the pod was asked to stop and has a container that
// started after that: its client has started it again.
func (m *PodState) restarted(p *evict.Pod) bool {
	return (m.Status == Asked || m.Status == Killed) && p.LastStart > m.LastStart
}

// killOverdue orders the kill of overdue pods.
func (s *stepper) killOverdue() {
	for i := range s.Pods {
		if m := &s.Pods[i]; m.Status == Asked && !s.now.Before(m.Limit) {
			m.Status = Killed
			s.orders.Kill = append(s.orders.Kill, *m)
		}
	}
}

// endIfDone ends the shutdown when no pod is left, or no time. It does not wait for
// pods that are started again and again: a client could do so forever.
func (s *stepper) endIfDone() {
	if s.Phase != Stopping || s.Current < len(s.Schedule) {
		return
	}
	waitedFor := func(m *PodState) bool { return m.remains() && !m.Restarted }
	if s.now.Before(s.Deadline()) && s.anyPod(waitedFor) {
		return
	}
	s.Phase, s.Ended = Ended, s.now
}

// setWake sets the time of the next step.
func (s *stepper) setWake() {
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
		if !s.SecondWaveAsked {
			soonest(s.secondWaveTime())
		}
	}
}
