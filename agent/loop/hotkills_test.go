package loop

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/hot"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/signal"
)

func TestVictimAsKilled(t *testing.T) {
	pod := evict.Pod{UID: "u", Usage: evict.PodUsage{Memory: 100, Freeable: 90, PIDs: 3}, Containers: []evict.Container{{Name: "a", Usage: evict.ContainerUsage{Memory: 95}}}}
	two := pod
	two.Containers = append(two.Containers[:1:1], evict.Container{Name: "b", Usage: evict.ContainerUsage{Memory: 5}})
	for _, tc := range []struct {
		name string
		pod  evict.Pod
		want []int64 // of the containers
	}{
		{"one container", pod, []int64{395}},
		{"two, of which either may have grown", two, []int64{95, 5}},
	} {
		before := tc.pod.Containers[0].Usage
		got := victimAsKilled(&hot.Kill{Pod: &tc.pod, Memory: 400, Freeable: 390})
		var containers []int64
		for _, c := range got.Containers {
			containers = append(containers, c.Usage.Memory)
		}
		if diff := cmp.Diff(tc.want, containers); diff != "" {
			t.Errorf("%s: containers differ (-want +got):\n%s", tc.name, diff)
		}
		if want := (evict.PodUsage{Memory: 400, Freeable: 390, PIDs: 3}); got.Usage != want {
			t.Errorf("%s: usage = %+v; want %+v", tc.name, got.Usage, want)
		}
		if tc.pod.Containers[0].Usage != before {
			t.Errorf("%s: the table's pod was changed", tc.name)
		}
	}
}

func TestRefusals(t *testing.T) {
	essential := &act.WrongVictimError{Essential: true}
	var kills []hot.Kill
	for uid, result := range map[string]act.KillResult{
		"killed": {Processes: 1}, "other": {Err: &act.WrongVictimError{}}, "broken": {Err: errors.New("no")},
		"partly": {Processes: 1, Err: essential}, "protected": {Err: essential},
	} {
		kills = append(kills, hot.Kill{Pod: &evict.Pod{UID: uid}, Result: result})
	}
	got := refusals(kills)
	if len(got) != 1 || got[0].UID != "protected" || !errors.Is(got[0].Err, essential) {
		t.Errorf("refusals() = %+v; want only the protected pod", got)
	}
}

func TestUrgent(t *testing.T) {
	for _, tc := range []struct {
		order evict.Order
		want  bool
	}{
		{evict.Order{Cause: "memory.available", Hard: true}, true},
		{evict.Order{Cause: "allocatableMemory.available", Hard: true}, true},
		{evict.Order{Cause: "memory.available"}, false},
		{evict.Order{Cause: "pid.available", Hard: true}, false},
		{evict.Order{Cause: evict.CausePodLimit, Hard: true}, false},
	} {
		if got := urgent(&tc.order); got != tc.want {
			t.Errorf("urgent(%+v) = %t; want %t", tc.order, got, tc.want)
		}
	}
}

// The record of a hot path's kill has the times of its alarm, unless the loop had read the
// crossing before.
func TestNoteCrossing(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	for _, tc := range []struct {
		name   string
		before crossingTime
		alarm  lanes.Alarm
		want   crossingTime
	}{
		{"new", crossingTime{lastAbove: at(0)}, lanes.Alarm{LastAbove: at(8), Seen: at(9)}, crossingTime{at(8), at(9)}},
		{"an alarm without the time above", crossingTime{lastAbove: at(0)}, lanes.Alarm{Seen: at(9)}, crossingTime{at(0), at(9)}},
		{"above again after the alarm", crossingTime{lastAbove: at(9)}, lanes.Alarm{LastAbove: at(5), Seen: at(8)}, crossingTime{at(9), at(10)}},
		{"known", crossingTime{at(1), at(2)}, lanes.Alarm{LastAbove: at(8), Seen: at(9)}, crossingTime{at(1), at(2)}},
	} {
		l := &Loop{}
		l.crossing[signal.MemoryAvailable] = tc.before
		l.noteCrossing(signal.MemoryAvailable, &hot.Kill{Alarm: tc.alarm, Decided: at(10)})
		if got := l.crossing[signal.MemoryAvailable]; got != tc.want {
			t.Errorf("%s: noteCrossing() made it %v; want %v", tc.name, got, tc.want)
		}
	}
}

// The loop adopts a kill that the hot path decided: the record has the values of that
// decision, and the executor follows the pod in the hot path's mode.
func TestAdoptHotKills(t *testing.T) {
	for _, tt := range []struct{ hot, loop, unprepared bool }{{hot: false, loop: false}, {hot: true, loop: true}, {hot: true, loop: false}, {unprepared: true}} {
		dryRun := tt.hot
		run(t, settings, func(n *node) {
			n.pass(2 * time.Second)
			if tt.hot == tt.loop { // else memory is available again, and b is not killed
				n.grow("b", 15*gi)
			}
			n.arbiter.dryRun = dryRun
			decided := time.Now()
			alarm := n.kill("b", 15*gi, act.KillResult{Processes: 1})
			n.pass(time.Second)
			confirm := "fresh reading on the hot path"
			if tt.unprepared {
				confirm += ", pod not prepared"
			}
			want, result := []string{"follow b", "evicted s-b 0"}, evict.ResultKilled
			if dryRun {
				want, result = []string{"dry run: follow b"}, evict.ResultDryRun
			}
			n.wantCalls("after the kill", want...)
			r := n.wantResult("b", result)
			if r.Lane != lanes.BPF || r.Confirm != confirm || !r.Decided.Equal(decided) || r.RankingAge != time.Millisecond ||
				!r.CrossingSeen.Equal(alarm.Seen) || !r.LastAbove.Equal(alarm.LastAbove) || r.Expected != 15*gi || r.DryRun != dryRun {
				t.Errorf("record = %+v; want the values that the hot path decided by", r)
			}
			messages := []string{"evicting pod", "eviction ended"}
			if dryRun {
				messages = []string{"would evict pod", "dry run: pod left alone"}
			}
			if got := n.messages(); !slices.Equal(got, messages) {
				t.Errorf("messages = %q; want %q", got, messages)
			}
		}, func(n *node, _ *Options) {
			n.add("a", gi/2)
			n.add("b", gi)
			n.unprepared = tt.unprepared
			if tt.loop {
				n.facts.Configured = "--dry-run was given"
			}
		})
	}
}

// When the hot path's kill is refused, another pod is evicted.
func TestAdoptARefusedKill(t *testing.T) {
	run(t, settings, func(n *node) {
		n.pass(2 * time.Second)
		n.grow("b", 13*gi)
		n.kill("b", 13*gi, act.KillResult{Err: &act.WrongVictimError{Essential: true}})
		n.pass(time.Second)
		n.wantCalls("after the refusal", "follow b", "hot a dry run false", "follow a", "not evicted s-b", "evicted s-a 0")
		n.wantResult("b", evict.ResultFailed)
		if got := n.messages(); len(got) < 2 || got[0] != "evicting pod" || got[1] != "eviction did not succeed" {
			t.Errorf("messages = %q; want the start of b's eviction before its refusal", got)
		}
		n.wantResult("a", evict.ResultKilled)
	}, func(n *node, _ *Options) { n.add("a", 3*gi); n.add("b", gi) })
}
