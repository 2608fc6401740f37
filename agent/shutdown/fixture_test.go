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

func (a *fakePod) daemonSet() *fakePod { a.DaemonSet = true; return a }
func (a *fakePod) at(d time.Duration) *fakePod {
	a.appearsAt = d
	return a
}

// end returns when the pod is gone; zero for never.
func (a *fakePod) end() time.Time {
	var end time.Time
	consider := func(t time.Time) {
		if end.IsZero() || t.Before(end) {
			end = t
		}
	}
	if !a.stopTime.IsZero() {
		if a.exitAfter >= 0 {
			consider(a.stopTime.Add(a.exitAfter))
		}
		if !a.ignoresRuntimeKill {
			consider(a.stopTime.Add(a.grace))
		}
	}
	if !a.killed.IsZero() {
		consider(a.killed.Add(killDuration))
	}
	return end
}

// simulation is a shutdown of fake pods.
type simulation struct {
	t        *testing.T
	schedule Schedule
	pods     []*fakePod
	events   map[time.Duration]Event // in addition to Begin at 0
	dryRun   bool
	unlisted time.Duration // until then the running pods are unknown
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
func (p *simulation) run() []string {
	p.t.Helper()
	event := Begin
	for at, steps := time.Duration(0), 0; ; steps++ {
		if steps > 100_000 {
			p.t.Fatalf("not ended after %v: %+v", at, p.state)
		}
		now := begin.Add(at)
		if p.restartAt > 0 && at == p.restartAt {
			event = p.restart()
		}
		orders := p.step(event, now)
		event = NoEvent
		next := p.nextTime(now, orders.Wake)
		if next < 0 || p.until > 0 && next > p.until {
			return p.log
		}
		at = next
		event = p.events[at]
	}
}

func (p *simulation) step(event Event, now time.Time) Orders {
	p.t.Helper()
	in := Inputs{Event: event, Schedule: p.schedule, DryRun: p.dryRun, PodsUnknown: now.Before(begin.Add(p.unlisted))}
	for _, a := range p.pods {
		if end := a.end(); !end.IsZero() && !now.Before(end) {
			a.gone = true
		}
		if !a.gone && !in.PodsUnknown && !now.Before(begin.Add(a.appearsAt)) {
			in.Pods = append(in.Pods, a.Pod)
		}
	}
	before := p.state.Phase
	state, orders := Step(p.state, in, now)
	p.state = state
	var words []string
	for _, m := range orders.Gone {
		words = append(words, m.UID+" gone")
	}
	for _, o := range orders.Stop {
		a := p.podByUID(o.UID)
		if !p.dryRun {
			a.stopTime, a.grace = now, o.Grace
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
	for _, m := range orders.Kill {
		p.podByUID(m.UID).killed = now
		words = append(words, "kill "+m.UID)
	}
	if state.Phase != before {
		words = append(words, map[Phase]string{Stopping: "begun", Ended: "ended", Idle: "idle"}[state.Phase])
	}
	if len(words) > 0 {
		p.log = append(p.log, fmt.Sprintf("%v: %s", now.Sub(begin), strings.Join(words, ", ")))
	}
	return orders
}

func (p *simulation) podByUID(uid string) *fakePod {
	p.t.Helper()
	at := slices.IndexFunc(p.pods, func(a *fakePod) bool { return a.UID == uid })
	if at < 0 {
		p.t.Fatalf("order for the unknown pod %s", uid)
	}
	return p.pods[at]
}

func (p *simulation) nextTime(now, wake time.Time) time.Duration {
	next := time.Duration(-1)
	consider := func(t time.Time) {
		if d := t.Sub(begin); t.After(now) && (next < 0 || d < next) {
			next = d
		}
	}
	if !wake.IsZero() {
		if !wake.After(now) {
			p.t.Errorf("at %v: Wake = %v, which has passed", now.Sub(begin), wake.Sub(begin))
		}
		consider(wake)
	}
	for _, a := range p.pods {
		if !a.gone {
			consider(begin.Add(a.appearsAt))
			consider(a.end())
		}
	}
	for at := range p.events {
		consider(begin.Add(at))
	}
	consider(begin.Add(p.unlisted))
	consider(begin.Add(p.restartAt))
	if p.every > 0 && p.state.Phase == Stopping {
		consider(now.Add(p.every))
	}
	return next
}

// restart simulates a new run of the agent: pods that were asked to stop are no
// longer killed at the end of their grace.
func (p *simulation) restart() Event {
	p.t.Helper()
	data, err := json.Marshal(p.state)
	if err != nil {
		p.t.Fatal(err)
	}
	p.state = State{}
	if err := json.Unmarshal(data, &p.state); err != nil {
		p.t.Fatal(err)
	}
	for _, a := range p.pods {
		if !a.stopTime.IsZero() && !a.gone && a.exitAfter < 0 {
			a.stopTime = time.Time{}
		}
	}
	return Resume
}
