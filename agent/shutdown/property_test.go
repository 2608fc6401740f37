package shutdown

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
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
	for _, p := range pods {
		copies = append(copies, new(*p))
	}
	return copies
}

// checkSimulation runs a shutdown and checks its properties.
//
// Complexity: one property after the other, each with conditions of its own.
//
//gocyclo:ignore
func checkSimulation(t *testing.T, name string, s simulation) []string {
	t.Helper()
	asked := map[string]PodState{}
	lines := s.run()
	for _, state := range s.state.Pods {
		asked[state.UID] = state
		p := s.podByUID(state.UID)
		if p.stopTime.IsZero() && state.Status != Gone {
			t.Errorf("%s: %s was never asked to stop: %+v", name, state.UID, state)
		}
	}
	if !s.state.Canceled {
		if s.state.Phase != Ended {
			t.Errorf("%s: the shutdown does not end: %+v\n%q", name, s.state, lines)
		}
		if s.state.Ended.After(s.state.Deadline()) {
			t.Errorf("%s: Ended = %v, after the deadline %v", name, s.state.Ended, s.state.Deadline())
		}
	}
	for _, p := range s.pods {
		state, entered := asked[p.UID]
		if p.stopTime.IsZero() || !entered || state.Refused {
			continue
		}
		end := begin.Add(s.schedule[:state.Group+1].Total())
		if state.Limit.After(end) && state.Limit.Sub(p.stopTime) > evict.MinGrace {
			t.Errorf("%s: %s is asked at %v with limit %v; its group ends at %v", name, p.UID, p.stopTime, state.Limit, end)
		}
		if gone := p.end(); !s.state.Canceled && (gone.IsZero() || gone.After(state.Limit.Add(killDuration))) {
			t.Errorf("%s: %s is gone at %v; want %v at the latest", name, p.UID, gone, state.Limit)
		}
		if p.grace > max(evict.MinGrace, ownGrace(&p.Pod)) || p.grace < evict.MinGrace || p.grace%second != 0 {
			t.Errorf("%s: %s gets a grace of %v; its own is %v", name, p.UID, p.grace, ownGrace(&p.Pod))
		}
		for _, b := range s.pods {
			other, entered := asked[b.UID]
			if !entered || b.stopTime.IsZero() || other.Refused {
				continue
			}
			if state.Group < other.Group && p.stopTime.After(b.stopTime) {
				t.Errorf("%s: %s of group %d is asked after %s of group %d", name, p.UID, state.Group, b.UID, other.Group)
			}
			if state.Group == other.Group && state.Wave < other.Wave && p.stopTime.After(b.stopTime) {
				t.Errorf("%s: %s is asked after %s of the second wave", name, p.UID, b.UID)
			}
		}
	}
	return lines
}
