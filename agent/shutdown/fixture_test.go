package shutdown

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
)

var begin = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func priority(p int32) *int32 { return &p }

// fakePod is a pod and its behaviour. exitAfter is when it exits after it was asked
// to stop; negative if only a kill ends it.
type fakePod struct {
	evict.Pod
	exitAfter time.Duration
	// appearsAt is when it appears, after the beginning.
	appearsAt time.Duration
	// ignoresRuntimeKill makes it survive the runtime's kill at the end of its
	// grace, as if the runtime hangs; a direct kill ends it.
	ignoresRuntimeKill bool

	stopTime, killed time.Time
	grace            time.Duration
	gone             bool
}

const never = -1

// killDuration is the duration of a direct kill.
const killDuration = 100 * time.Millisecond

// pod returns a pod of a priority with a grace period in seconds that exits
// exitAfter after it was asked to stop.
func pod(name string, p int32, seconds int64, exitAfter time.Duration) *fakePod {
	return &fakePod{Pod: evict.Pod{
		UID: name, Namespace: "a", Name: name, Priority: priority(p), TerminationGraceSeconds: &seconds,
	}, exitAfter: exitAfter}
}

func (p *fakePod) daemonSet() *fakePod { p.DaemonSet = true; return p }
func (p *fakePod) at(d time.Duration) *fakePod {
	p.appearsAt = d
	return p
}

// end returns when the pod is gone; zero for never.
func (p *fakePod) end() time.Time {
	var end time.Time
	consider := func(t time.Time) {
		if end.IsZero() || t.Before(end) {
			end = t
		}
	}
	if !p.stopTime.IsZero() {
		if p.exitAfter >= 0 {
			consider(p.stopTime.Add(p.exitAfter))
		}
		if !p.ignoresRuntimeKill {
			consider(p.stopTime.Add(p.grace))
		}
	}
	if !p.killed.IsZero() {
		consider(p.killed.Add(killDuration))
	}
	return end
}

// simulation is a shutdown of fake pods.
type simulation struct {
	t                *testing.T
	schedule         Schedule
	pods             []*fakePod
	events           map[time.Duration]Event // in addition to Begin at 0
	dryRun           bool
	podsUnknownUntil time.Duration // until then the running pods are unknown
	// restartAt saves the state as JSON and restores it, and drops the orders of
	// the earlier run.
	restartAt time.Duration
	// every adds steps without an event at this interval.
	every time.Duration
	until time.Duration

	state State
	log   []string
}

// run runs the simulation until nothing is due, and returns the events, one line
// for each time.
func (s *simulation) run() []string {
	s.t.Helper()
	event := Begin
	for at, steps := time.Duration(0), 0; ; steps++ {
		if steps > 100_000 {
			s.t.Fatalf("not ended after %v: %+v", at, s.state)
		}
		now := begin.Add(at)
		if s.restartAt > 0 && at == s.restartAt {
			event = s.restart()
		}
		orders := s.step(event, now)
		event = NoEvent
		next := s.nextTime(now, orders.Wake)
		if next < 0 || s.until > 0 && next > s.until {
			return s.log
		}
		at = next
		event = s.events[at]
	}
}

func (s *simulation) step(event Event, now time.Time) Orders {
	s.t.Helper()
	in := Inputs{Event: event, Schedule: s.schedule, DryRun: s.dryRun, PodsUnknown: now.Before(begin.Add(s.podsUnknownUntil))}
	for _, p := range s.pods {
		if end := p.end(); !end.IsZero() && !now.Before(end) {
			p.gone = true
		}
		if !p.gone && !in.PodsUnknown && !now.Before(begin.Add(p.appearsAt)) {
			in.Pods = append(in.Pods, p.Pod)
		}
	}
	before := s.state.Phase
	state, orders := Step(s.state, in, now)
	s.state = state
	var words []string
	for _, p := range orders.Gone {
		words = append(words, p.UID+" gone")
	}
	for _, o := range orders.Stop {
		p := s.podByUID(o.UID)
		if !s.dryRun {
			p.stopTime, p.grace = now, o.Grace
		}
		reason, _ := o.Reason()
		word := "stop"
		if reason == ReasonRefused {
			word = "refuse"
		}
		if o.Repeated {
			word += " again"
		}
		words = append(words, fmt.Sprintf("%s %s %v", word, o.UID, o.Grace))
	}
	for _, p := range orders.Kill {
		s.podByUID(p.UID).killed = now
		words = append(words, "kill "+p.UID)
	}
	if state.Phase != before {
		words = append(words, map[Phase]string{Stopping: "begun", Ended: "ended", Idle: "idle"}[state.Phase])
	}
	if len(words) > 0 {
		s.log = append(s.log, fmt.Sprintf("%v: %s", now.Sub(begin), strings.Join(words, ", ")))
	}
	return orders
}

func (s *simulation) podByUID(uid string) *fakePod {
	s.t.Helper()
	at := slices.IndexFunc(s.pods, func(p *fakePod) bool { return p.UID == uid })
	if at < 0 {
		s.t.Fatalf("order for the unknown pod %s", uid)
	}
	return s.pods[at]
}

func (s *simulation) nextTime(now, wake time.Time) time.Duration {
	next := time.Duration(-1)
	consider := func(t time.Time) {
		if d := t.Sub(begin); t.After(now) && (next < 0 || d < next) {
			next = d
		}
	}
	if !wake.IsZero() {
		if !wake.After(now) {
			s.t.Errorf("at %v: Wake = %v, which has passed", now.Sub(begin), wake.Sub(begin))
		}
		consider(wake)
	}
	for _, p := range s.pods {
		if !p.gone {
			consider(begin.Add(p.appearsAt))
			consider(p.end())
		}
	}
	for at := range s.events {
		consider(begin.Add(at))
	}
	consider(begin.Add(s.podsUnknownUntil))
	consider(begin.Add(s.restartAt))
	if s.every > 0 && s.state.Phase == Stopping {
		consider(now.Add(s.every))
	}
	return next
}

// restart simulates a new run of the agent: pods that were asked to stop are no
// longer killed at the end of their grace.
func (s *simulation) restart() Event {
	s.t.Helper()
	data, err := json.Marshal(s.state)
	if err != nil {
		s.t.Fatal(err)
	}
	s.state = State{}
	if err := json.Unmarshal(data, &s.state); err != nil {
		s.t.Fatal(err)
	}
	for _, p := range s.pods {
		if !p.stopTime.IsZero() && !p.gone && p.exitAfter < 0 {
			p.stopTime = time.Time{}
		}
	}
	return Resume
}
