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

// actor is a pod and how it behaves: how long after it was asked it is gone,
// negative for one that only a kill ends.
type actor struct {
	evict.Pod
	takes time.Duration
	// from is when it appears, after the beginning.
	from time.Duration
	// undying survives even the runtime's kill at the end of its grace, as where
	// the runtime hangs; a direct kill ends it.
	undying bool

	asked, killed time.Time
	grace         time.Duration
	gone          bool
}

const never = -1

// killing is how long a direct kill takes.
const killing = 100 * time.Millisecond

// pod is one of a priority that asks for so many seconds and is gone so long
// after it was asked.
func pod(name string, p int32, seconds int64, takes time.Duration) *actor {
	return &actor{Pod: evict.Pod{
		UID: name, Namespace: "a", Name: name, Priority: priority(p), TerminationGraceSeconds: &seconds,
	}, takes: takes}
}

func (a *actor) daemonSet() *actor { a.DaemonSet = true; return a }
func (a *actor) at(d time.Duration) *actor {
	a.from = d
	return a
}

// end returns when the actor is gone; zero is never.
func (a *actor) end() time.Time {
	var end time.Time
	consider := func(t time.Time) {
		if end.IsZero() || t.Before(end) {
			end = t
		}
	}
	if !a.asked.IsZero() {
		if a.takes >= 0 {
			consider(a.asked.Add(a.takes))
		}
		if !a.undying {
			consider(a.asked.Add(a.grace))
		}
	}
	if !a.killed.IsZero() {
		consider(a.killed.Add(killing))
	}
	return end
}

// play is a shutdown of actors.
type play struct {
	t        *testing.T
	schedule Schedule
	actors   []*actor
	events   map[time.Duration]Event // besides Begin at 0
	dryRun   bool
	unlisted time.Duration // until then nobody knows what runs
	// restartAt keeps the state as JSON and reads it again, with what the run
	// had ordered lost.
	restartAt time.Duration
	// every also steps at this interval, for nothing.
	every time.Duration
	until time.Duration

	state State
	lines []string
}

// run plays until nothing is to come, and returns what happened, a line for
// each instant at which something did.
func (p *play) run() []string {
	p.t.Helper()
	event := Begin
	for at, steps := time.Duration(0), 0; ; steps++ {
		if steps > 100_000 {
			p.t.Fatalf("no end after %v: %+v", at, p.state)
		}
		now := begin.Add(at)
		if p.restartAt > 0 && at == p.restartAt {
			event = p.restart()
		}
		orders := p.step(event, now)
		event = Nothing
		next := p.next(now, orders.Wake)
		if next < 0 || p.until > 0 && next > p.until {
			return p.lines
		}
		at = next
		event = p.events[at]
	}
}

func (p *play) step(event Event, now time.Time) Orders {
	p.t.Helper()
	in := Inputs{Event: event, Schedule: p.schedule, DryRun: p.dryRun, Unlisted: now.Before(begin.Add(p.unlisted))}
	for _, a := range p.actors {
		if end := a.end(); !end.IsZero() && !now.Before(end) {
			a.gone = true
		}
		if !a.gone && !in.Unlisted && !now.Before(begin.Add(a.from)) {
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
		a := p.actor(o.UID)
		if !p.dryRun {
			a.asked, a.grace = now, o.Grace
		}
		reason, _ := o.Reason()
		word := "stop"
		if reason == ReasonRefused {
			word = "refuse"
		}
		if o.Again {
			word += " again"
		}
		words = append(words, fmt.Sprintf("%s %s %v", word, o.UID, o.Grace))
	}
	for _, m := range orders.Kill {
		p.actor(m.UID).killed = now
		words = append(words, "kill "+m.UID)
	}
	if state.Phase != before {
		words = append(words, map[Phase]string{Stopping: "begun", Ended: "ended", Idle: "idle"}[state.Phase])
	}
	if len(words) > 0 {
		p.lines = append(p.lines, fmt.Sprintf("%v: %s", now.Sub(begin), strings.Join(words, ", ")))
	}
	return orders
}

func (p *play) actor(uid string) *actor {
	p.t.Helper()
	at := slices.IndexFunc(p.actors, func(a *actor) bool { return a.UID == uid })
	if at < 0 {
		p.t.Fatalf("order for %s, which is nobody", uid)
	}
	return p.actors[at]
}

func (p *play) next(now, wake time.Time) time.Duration {
	next := time.Duration(-1)
	consider := func(t time.Time) {
		if d := t.Sub(begin); t.After(now) && (next < 0 || d < next) {
			next = d
		}
	}
	if !wake.IsZero() {
		if !wake.After(now) {
			p.t.Errorf("at %v: to be woken at %v, which is past", now.Sub(begin), wake.Sub(begin))
		}
		consider(wake)
	}
	for _, a := range p.actors {
		if !a.gone {
			consider(begin.Add(a.from))
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

// restart is a new run of the agent: whoever was being stopped has been asked,
// but nobody will kill it.
func (p *play) restart() Event {
	p.t.Helper()
	data, err := json.Marshal(p.state)
	if err != nil {
		p.t.Fatal(err)
	}
	p.state = State{}
	if err := json.Unmarshal(data, &p.state); err != nil {
		p.t.Fatal(err)
	}
	for _, a := range p.actors {
		if !a.asked.IsZero() && !a.gone && a.takes < 0 {
			a.asked = time.Time{}
		}
	}
	return Resume
}
