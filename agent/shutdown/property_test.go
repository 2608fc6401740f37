package shutdown

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// What holds for every shutdown, whatever its groups and pods: nobody is asked
// twice, those of lower groups never after those of higher ones have begun, a
// grace ends with the group (but for the least one), the whole ends in time,
// and steps that nothing called for change nothing.
func TestProperties(t *testing.T) {
	for seed := range uint64(2000) {
		c := rand.New(rand.NewPCG(seed, 6))
		schedule, pods := randomSchedule(c), randomPods(c)
		events := map[time.Duration]Event{}
		if c.IntN(4) == 0 {
			events[time.Duration(1+c.IntN(60))*second] = Cancel
		}
		name := fmt.Sprintf("seed %d, %v", seed, schedule)
		lines := checkPlay(t, name, play{t: t, schedule: schedule, actors: clone(pods), events: events})
		again := play{t: t, schedule: schedule, actors: clone(pods), events: events, every: 700 * time.Millisecond}
		if got := again.run(); !slices.Equal(got, lines) {
			t.Errorf("%s: steps for nothing change it:\n%q\nwithout:\n%q", name, got, lines)
		}
		shuffled := clone(pods)
		c.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		other := play{t: t, schedule: schedule, actors: shuffled, events: events}
		if got := other.run(); !slices.Equal(got, lines) {
			t.Errorf("%s: the order of pods changes it:\n%q\nbefore:\n%q", name, got, lines)
		}
		if t.Failed() {
			return
		}
	}
}

func randomSchedule(c *rand.Rand) Schedule {
	var groups []Group
	priorities := []int32{-5, 0, 10, 1000, 2_000_000_000}
	for _, at := range c.Perm(len(priorities))[:1+c.IntN(4)] {
		groups = append(groups, Group{priorities[at], time.Duration(c.IntN(40)) * second})
	}
	s := ByPriority(groups)
	if c.IntN(3) == 0 {
		s = s.Within(time.Duration(1+c.IntN(60)) * second)
	}
	return s
}

func randomPods(c *rand.Rand) []*actor {
	var pods []*actor
	for i := range c.IntN(8) {
		p := pod(fmt.Sprintf("p%d", i), []int32{-9, 0, 5, 10, 2000, 2_000_001_000}[c.IntN(6)], int64(c.IntN(60)), time.Duration(c.IntN(30_000))*time.Millisecond)
		p.DaemonSet, p.undying, p.Static = c.IntN(4) == 0, c.IntN(6) == 0, c.IntN(10) == 0
		if c.IntN(3) == 0 {
			p.takes = never
		}
		if c.IntN(5) == 0 {
			p.from = time.Duration(c.IntN(50)) * second
		}
		pods = append(pods, p)
	}
	return pods
}

func clone(actors []*actor) []*actor {
	var copies []*actor
	for _, a := range actors {
		copies = append(copies, new(*a))
	}
	return copies
}

// checkPlay runs a shutdown and checks its properties.
//
// Complexity: one property after the other, each with conditions of its own.
//
//gocyclo:ignore
func checkPlay(t *testing.T, name string, p play) []string {
	t.Helper()
	asked := map[string]Member{}
	lines := p.run()
	for _, m := range p.state.Pods {
		asked[m.UID] = m
		a := p.actor(m.UID)
		if a.asked.IsZero() && m.Status != Gone {
			t.Errorf("%s: %s was never asked to stop: %+v", name, m.UID, m)
		}
	}
	if !p.state.CalledOff {
		if p.state.Phase != Ended {
			t.Errorf("%s: it never ends: %+v\n%q", name, p.state, lines)
		}
		if p.state.Over.After(p.state.Deadline()) {
			t.Errorf("%s: over at %v, after the deadline %v", name, p.state.Over, p.state.Deadline())
		}
	}
	for _, a := range p.actors {
		m, entered := asked[a.UID]
		if a.asked.IsZero() || !entered || m.Refused {
			continue
		}
		end := begin.Add(p.schedule[:m.Group+1].Total())
		if m.Limit.After(end) && m.Limit.Sub(a.asked) > leastGrace {
			t.Errorf("%s: %s is asked at %v and has until %v, but its group ends at %v", name, a.UID, a.asked, m.Limit, end)
		}
		if gone := a.end(); !p.state.CalledOff && (gone.IsZero() || gone.After(m.Limit.Add(killing))) {
			t.Errorf("%s: %s goes at %v; want %v at the latest", name, a.UID, gone, m.Limit)
		}
		if a.grace > max(leastGrace, ownGrace(&a.Pod)) || a.grace < leastGrace || a.grace%second != 0 {
			t.Errorf("%s: %s has %v, of its own %v", name, a.UID, a.grace, ownGrace(&a.Pod))
		}
		for _, b := range p.actors {
			other, entered := asked[b.UID]
			if !entered || b.asked.IsZero() || other.Refused {
				continue
			}
			if m.Group < other.Group && a.asked.After(b.asked) {
				t.Errorf("%s: %s of group %d is asked after %s of group %d", name, a.UID, m.Group, b.UID, other.Group)
			}
			if m.Group == other.Group && !m.Last && other.Last && a.asked.After(b.asked) {
				t.Errorf("%s: %s is asked after %s, which is of the second wave", name, a.UID, b.UID)
			}
		}
	}
	return lines
}
