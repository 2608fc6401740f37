package shutdown

import (
	"time"

	"github.com/evictd/evictd/agent/evict"
)

// killDelay is the time after a pod's grace in which the runtime may still kill it, before
// it is killed directly.
const killDelay = time.Second

// advance stops the current group, and passes groups whose pods are gone or whose time
// is up. It asks the pods of each group to stop before it passes the group, also if the
// step is so late that the group's time is already up.
func (s *stepper) advance() {
	for ; s.Current < len(s.Schedule); s.nextGroup() {
		s.stopWaves()
		if !s.now.Before(s.End(s.Current)) {
			continue // the group's time is up
		}
		if s.anyPod(s.upToWave(lastWave)) {
			return
		}
		if !s.Listed {
			return // the first list is missing, so the group may have pods
		}
	}
}

// nextGroup makes the next group the current one.
func (s *stepper) nextGroup() {
	s.Current++
	s.WaveBegan, s.Wave = s.now, 0
}

// stopWaves asks the pods of the current wave to stop, and those of the following waves that
// are due.
func (s *stepper) stopWaves() {
	s.stopWave()
	for s.Wave < lastWave {
		due := s.nextWave()
		switch {
		case !s.now.Before(due):
			s.WaveBegan = due
		case s.Listed && !s.anyPod(s.upToWave(s.Wave)):
			s.WaveBegan = s.now
		default:
			return
		}
		s.Wave++
		s.stopWave()
	}
}

// nextWave returns the latest time at which the next wave of the current group is asked to
// stop: it has half of the time that is left of the group.
func (s *stepper) nextWave() time.Time {
	return s.WaveBegan.Add(s.End(s.Current).Sub(s.WaveBegan) / 2)
}

// upToWave returns a function that reports whether a pod is in a wave of the current
// group, up to the given one, and still has to stop. A pod that started during the shutdown
// is in no wave, because a client could start new ones forever.
func (s *stepper) upToWave(wave int) func(*PodState) bool {
	return func(p *PodState) bool {
		return p.Group == s.Current && p.Wave <= wave && !p.Refused && p.remains()
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

// stopWave asks the waiting pods of the current wave, and of those before it, to stop.
func (s *stepper) stopWave() {
	wanted := s.upToWave(s.Wave)
	for i := range s.Pods {
		if p := &s.Pods[i]; wanted(p) && p.Status == Waiting {
			s.stopPod(p, s.End(s.Current))
		}
	}
}

// stopPod asks a pod to stop. Its time ends at end at the latest, but not before
// [evict.MinGrace], however little time is left.
func (s *stepper) stopPod(p *PodState, end time.Time) {
	own := evict.DefaultGrace
	if running := s.running[p.UID]; running != nil {
		own, p.LastStart = ownGrace(running), running.LastStart
	}
	p.Status = Asked
	p.Due = s.now.Add(max(evict.MinGrace, min(own, end.Sub(s.now))))
	p.Grace = wholeSeconds(p.Due.Sub(s.now))
	p.Limit = p.Due.Add(killDelay)
	if p.Limit.After(end) {
		p.Limit = latest(p.Due, end)
	}
	s.orders.Stop = append(s.orders.Stop, Stop{PodState: *p})
	if s.in.DryRun {
		p.Status = StoppedInDryRun
	}
}

// ownGrace returns the grace period that the pod specifies.
func ownGrace(p *evict.Pod) time.Duration {
	if p.TerminationGraceSeconds == nil {
		return evict.DefaultGrace
	}
	const most = int64(1<<63-1) / int64(time.Second)
	return time.Duration(max(0, min(*p.TerminationGraceSeconds, most))) * time.Second
}

// wholeSeconds rounds a grace period up to whole seconds, the unit of runtimes. If the
// pod's time ends before the rounded period does, the pod is killed directly.
func wholeSeconds(grace time.Duration) time.Duration {
	return max(evict.MinGrace, (grace + time.Second - 1).Truncate(time.Second))
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

// restarted reports whether the pod, asked to stop before, has a container that started
// after that: the pod's client has started it again.
func (p *PodState) restarted(running *evict.Pod) bool {
	return (p.Status == Asked || p.Status == Killed) && running.LastStart > p.LastStart
}

// killOverdue orders the kill of overdue pods.
func (s *stepper) killOverdue() {
	for i := range s.Pods {
		if p := &s.Pods[i]; p.Status == Asked && !s.now.Before(p.Limit) {
			p.Status = Killed
			s.orders.Kill = append(s.orders.Kill, *p)
		}
	}
}

// endIfDone ends the shutdown when all groups are passed and no pod or no time is
// left. It does not wait for pods that are restarted more than once: a client could do
// so forever.
func (s *stepper) endIfDone() {
	if s.Phase != Stopping || s.Current < len(s.Schedule) {
		return
	}
	waitedFor := func(p *PodState) bool { return p.remains() && !p.Restarted }
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
		if p := &s.Pods[i]; p.Status == Asked {
			soonest(p.Limit)
		}
	}
	if s.Phase != Stopping {
		return
	}
	soonest(s.Deadline())
	if s.Current < len(s.Schedule) {
		soonest(s.End(s.Current))
		if s.Wave < lastWave {
			soonest(s.nextWave())
		}
	}
}
