package shutdown

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Properties of every shutdown, whatever its groups and pods: no pod is asked
// twice; pods of lower groups are never asked after those of higher groups; a grace
// ends with the group, except the minimum; the shutdown ends in time; additional
// steps change nothing.
func TestProperties(t *testing.T) {
	for seed := range uint64(2000) {
		c := rand.New(rand.NewPCG(seed, 6))
		schedule, pods := randomSchedule(c), randomPods(c)
		events := map[time.Duration]Event{}
		if c.IntN(4) == 0 {
			events[time.Duration(1+c.IntN(60))*second] = Cancel
		}
		name := fmt.Sprintf("seed %d, %v", seed, schedule)
		lines := checkSimulation(t, name, simulation{t: t, schedule: schedule, pods: clone(pods), events: events})
		again := simulation{t: t, schedule: schedule, pods: clone(pods), events: events, every: 700 * time.Millisecond}
		if got := again.run(); !slices.Equal(got, lines) {
			t.Errorf("%s: additional steps change the result:\n%q\nwithout:\n%q", name, got, lines)
		}
		shuffled := clone(pods)
		c.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		other := simulation{t: t, schedule: schedule, pods: shuffled, events: events}
		if got := other.run(); !slices.Equal(got, lines) {
			t.Errorf("%s: the order of pods changes the result:\n%q\nbefore:\n%q", name, got, lines)
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
		s = s.FitInto(time.Duration(1+c.IntN(60)) * second)
	}
	return s
}

func randomPods(c *rand.Rand) []*fakePod {
	var pods []*fakePod
	for i := range c.IntN(8) {
		p := pod(fmt.Sprintf("p%d", i), []int32{-9, 0, 5, 10, 2000, 2_000_001_000}[c.IntN(6)], int64(c.IntN(60)), time.Duration(c.IntN(30_000))*time.Millisecond)
		p.DaemonSet, p.ignoresRuntimeKill, p.Static = c.IntN(4) == 0, c.IntN(6) == 0, c.IntN(10) == 0
		if c.IntN(3) == 0 {
			p.exitAfter = never
		}
		if c.IntN(5) == 0 {
			p.appearsAt = time.Duration(c.IntN(50)) * second
		}
		pods = append(pods, p)
	}
	return pods
}

func clone(pods []*fakePod) []*fakePod {
	var copies []*fakePod
	for _, a := range pods {
		copies = append(copies, new(*a))
	}
	return copies
}

// checkSimulation runs a shutdown and checks its properties.
//
// Complexity: one property after the other, each with conditions of its own.
//
//gocyclo:ignore
func checkSimulation(t *testing.T, name string, p simulation) []string {
	t.Helper()
	asked := map[string]PodState{}
	lines := p.run()
	for _, m := range p.state.Pods {
		asked[m.UID] = m
		a := p.podByUID(m.UID)
		if a.stopTime.IsZero() && m.Status != Gone {
			t.Errorf("%s: %s was never asked to stop: %+v", name, m.UID, m)
		}
	}
	if !p.state.Canceled {
		if p.state.Phase != Ended {
			t.Errorf("%s: the shutdown does not end: %+v\n%q", name, p.state, lines)
		}
		if p.state.Ended.After(p.state.Deadline()) {
			t.Errorf("%s: Ended = %v, after the deadline %v", name, p.state.Ended, p.state.Deadline())
		}
	}
	for _, a := range p.pods {
		m, entered := asked[a.UID]
		if a.stopTime.IsZero() || !entered || m.Refused {
			continue
		}
		end := begin.Add(p.schedule[:m.Group+1].Total())
		if m.Limit.After(end) && m.Limit.Sub(a.stopTime) > minGrace {
			t.Errorf("%s: %s is asked at %v with limit %v; its group ends at %v", name, a.UID, a.stopTime, m.Limit, end)
		}
		if gone := a.end(); !p.state.Canceled && (gone.IsZero() || gone.After(m.Limit.Add(killDuration))) {
			t.Errorf("%s: %s is gone at %v; want %v at the latest", name, a.UID, gone, m.Limit)
		}
		if a.grace > max(minGrace, ownGrace(&a.Pod)) || a.grace < minGrace || a.grace%second != 0 {
			t.Errorf("%s: %s gets a grace of %v; its own is %v", name, a.UID, a.grace, ownGrace(&a.Pod))
		}
		for _, b := range p.pods {
			other, entered := asked[b.UID]
			if !entered || b.stopTime.IsZero() || other.Refused {
				continue
			}
			if m.Group < other.Group && a.stopTime.After(b.stopTime) {
				t.Errorf("%s: %s of group %d is asked after %s of group %d", name, a.UID, m.Group, b.UID, other.Group)
			}
			if m.Group == other.Group && !m.SecondWave && other.SecondWave && a.stopTime.After(b.stopTime) {
				t.Errorf("%s: %s is asked after %s of the second wave", name, a.UID, b.UID)
			}
		}
	}
	return lines
}
