package shutdown

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/evict"
)

const second = time.Second

// The two tables of the documentation on node shutdowns.
var (
	fourGroups = ByPriority([]Group{
		{Priority: 100000, Time: 10 * second}, {Priority: 10000, Time: 180 * second},
		{Priority: 1000, Time: 120 * second}, {Priority: 0, Time: 60 * second},
	})
	threeGroups = ByPriority([]Group{
		{Priority: 100000, Time: 300 * second}, {Priority: 1000, Time: 120 * second}, {Priority: 0, Time: 60 * second},
	})
)

func TestStep(t *testing.T) {
	long := int64(1000) // seconds, more than any group has
	for _, tt := range []struct {
		name       string
		simulation simulation
		want       []string
	}{
		{"four groups, no pod exits by itself", simulation{schedule: fourGroups, pods: []*fakePod{
			pod("regular", 0, long, never), pod("c", 1000, long, never), pod("b", 10000, long, never), pod("a", 100000, long, never),
		}}, []string{
			"0s: stop regular 1m0s, begun",
			"1m0s: regular gone, stop c 2m0s",
			"3m0s: c gone, stop b 3m0s",
			"6m0s: b gone, stop a 10s",
			"6m10s: a gone, ended",
		}},
		{"three groups: b is stopped with c", simulation{schedule: threeGroups, pods: []*fakePod{
			pod("regular", 0, long, never), pod("c", 1000, long, never), pod("b", 10000, long, never), pod("a", 100000, long, never),
		}}, []string{
			"0s: stop regular 1m0s, begun",
			"1m0s: regular gone, stop b 2m0s, stop c 2m0s",
			"3m0s: b gone, c gone, stop a 5m0s",
			"8m0s: a gone, ended",
		}},
		{"two periods: 20s for the others, 10s for critical pods", simulation{schedule: ByPeriods(30*second, 10*second), pods: []*fakePod{
			pod("web", 0, 60, never), pod("dns", 2_000_000_000, 60, never),
		}}, []string{
			"0s: stop web 20s, begun",
			"20s: web gone, stop dns 10s",
			"30s: dns gone, ended",
		}},
		{"an empty group costs no time", simulation{schedule: fourGroups, pods: []*fakePod{
			pod("regular", 0, 30, 2*second), pod("a", 100000, 5, 1*second),
		}}, []string{
			"0s: stop regular 30s, begun",
			"2s: regular gone, stop a 5s",
			"3s: a gone, ended",
		}},
		{"unused time goes to later groups", simulation{schedule: ByPriority([]Group{{0, 60 * second}, {10, 20 * second}}), pods: []*fakePod{
			pod("quick", 0, 30, 5*second), pod("slow", 10, 70, 65*second),
		}}, []string{
			"0s: stop quick 30s, begun",
			"5s: quick gone, stop slow 1m10s", // 80s - 5s is more than it asks for
			"1m10s: slow gone, ended",
		}},
		{"nothing to stop", simulation{schedule: fourGroups}, []string{"0s: ended"}},
		{"a pod's own grace is shorter", simulation{schedule: fourGroups, pods: []*fakePod{
			pod("x", 0, 7, never),
		}}, []string{"0s: stop x 7s, begun", "7s: x gone, ended"}},
		{"a grace of 0 is a second, as in the kubelet", simulation{schedule: fourGroups, pods: []*fakePod{
			pod("x", 0, 0, never),
		}}, []string{"0s: stop x 1s, begun", "1s: x gone, ended"}},
		{"DaemonSets and critical pods after the others", simulation{schedule: ByPriority([]Group{{0, 60 * second}}), pods: []*fakePod{
			pod("web", 0, 30, 4*second), pod("proxy", 0, 30, 2*second).daemonSet(), pod("dns", 2_000_000_000, 30, 3*second),
		}}, []string{
			"0s: stop web 30s, begun",
			"4s: web gone, stop dns 30s, stop proxy 30s",
			"6s: proxy gone",
			"7s: dns gone, ended",
		}},
		{"second wave at half of the group's time at the latest", simulation{schedule: ByPriority([]Group{{0, 60 * second}}), pods: []*fakePod{
			pod("web", 0, 60, never), pod("proxy", 0, 60, never).daemonSet(),
		}}, []string{
			"0s: stop web 1m0s, begun",
			"30s: stop proxy 30s",
			"1m0s: proxy gone, web gone, ended",
		}},
		{"half of the group's time includes unused time", simulation{schedule: ByPriority([]Group{{0, 60 * second}, {10, 20 * second}}), pods: []*fakePod{
			pod("quick", 0, 30, 20*second), pod("web", 10, 300, never), pod("proxy", 10, 300, never).daemonSet(),
		}}, []string{
			"0s: stop quick 30s, begun",
			"20s: quick gone, stop web 1m0s",
			"50s: stop proxy 30s",
			"1m20s: proxy gone, web gone, ended",
		}},
		{"a group without time delays no other", simulation{schedule: ByPriority([]Group{{0, 0}, {10, 20 * second}}), pods: []*fakePod{
			pod("x", 0, 30, never), pod("d", 0, 30, never).daemonSet(), pod("y", 10, 30, 3*second),
		}}, []string{
			"0s: stop d 1s, stop x 1s, stop y 20s, begun",
			"1s: d gone, x gone",
			"3s: y gone, ended",
		}},
		{"no time at all", simulation{schedule: ByPriority([]Group{{0, 0}}), pods: []*fakePod{
			pod("x", 0, 30, never),
		}}, []string{
			"0s: stop x 1s, ended",
			"1s: x gone",
		}},
		{"a runtime that hangs: direct kill at the end of the group", simulation{schedule: ByPriority([]Group{{0, 10 * second}, {10, 10 * second}}), pods: []*fakePod{
			ignoresRuntimeKill(pod("x", 0, 30, never)), ignoresRuntimeKill(pod("y", 10, 4, never)),
		}}, []string{
			"0s: stop x 10s, begun",
			"10s: stop y 4s, kill x",
			"10.1s: x gone",
			"15s: kill y", // a second after its own grace
			"15.1s: y gone, ended",
		}},
		{"a new pod is refused and no group waits for it", simulation{schedule: ByPriority([]Group{{0, 20 * second}, {10, 20 * second}}), pods: []*fakePod{
			pod("x", 0, 30, 5*second), pod("new", 0, 30, 8*second).at(2 * second), pod("y", 10, 10, 1*second),
		}}, []string{
			"0s: stop x 20s, begun",
			"2s: refuse new 18s",
			"5s: x gone, stop y 10s",
			"6s: y gone",
			"10s: new gone, ended",
		}},
		{"a new pod after the end", simulation{schedule: ByPriority([]Group{{0, 20 * second}}), pods: []*fakePod{
			pod("x", 0, 30, 5*second), pod("new", 0, 30, never).at(9 * second),
		}}, []string{
			"0s: stop x 20s, begun",
			"5s: x gone, ended",
			"9s: refuse new 1s",
			"10s: new gone",
		}},
		{"canceled: no further pod is stopped", simulation{schedule: fourGroups, events: map[time.Duration]Event{30 * second: Cancel}, pods: []*fakePod{
			pod("regular", 0, long, never), pod("c", 1000, long, never),
		}}, []string{
			"0s: stop regular 1m0s, begun",
			"30s: idle",
		}},
		{"canceled and begun again", simulation{schedule: ByPriority([]Group{{0, 20 * second}, {10, 20 * second}}),
			events: map[time.Duration]Event{5 * second: Cancel, 100 * second: Begin}, pods: []*fakePod{
				pod("x", 0, 10, 2*second), pod("y", 10, 10, 9*second), pod("z", 10, 10, 3*second).at(50 * second),
			}}, []string{
			"0s: stop x 10s, begun",
			"2s: x gone, stop y 10s",
			"5s: idle",
			"1m40s: stop z 10s, begun", // a pod that started in between is not new
			"1m43s: z gone, ended",
		}},
		{"a repeated Begin has no effect", simulation{schedule: ByPriority([]Group{{0, 20 * second}}), events: map[time.Duration]Event{5 * second: Begin, 15 * second: Begin}, pods: []*fakePod{
			pod("x", 0, 12, never),
		}}, []string{"0s: stop x 12s, begun", "12s: x gone, ended"}},
		{"pods listed late", simulation{schedule: ByPriority([]Group{{0, 20 * second}, {10, 10 * second}}), podsUnknownUntil: 24 * second, pods: []*fakePod{
			pod("x", 0, 30, 2*second), pod("y", 10, 30, 1*second),
		}}, []string{
			"0s: begun",
			"24s: stop x 6s, stop y 6s",
			"25s: y gone",
			"26s: x gone, ended",
		}},
		{"pods listed after the deadline", simulation{schedule: ByPriority([]Group{{0, 20 * second}}), podsUnknownUntil: 24 * second, pods: []*fakePod{
			pod("x", 0, 30, never),
		}}, []string{
			"0s: begun",
			"20s: ended",
			"24s: stop x 1s",
			"25s: x gone",
		}},
		{"a dry run does not wait", simulation{schedule: fourGroups, dryRun: true, pods: []*fakePod{
			pod("regular", 0, long, never), pod("proxy", 0, 20, never).daemonSet(), pod("c", 1000, 30, never), pod("a", 100000, 30, never),
		}}, []string{"0s: stop a 30s, stop c 30s, stop proxy 20s, stop regular 1m0s, ended"}},
		{"a restart continues the shutdown", simulation{schedule: ByPriority([]Group{{0, 20 * second}, {10, 10 * second}}), restartAt: 5 * second, pods: []*fakePod{
			pod("x", 0, 15, never), pod("y", 10, 30, never),
		}}, []string{
			"0s: stop x 15s, begun",
			"5s: stop again x 10s",
			"15s: x gone, stop y 15s",
			"30s: y gone, ended",
		}},
		{"a restart after the end of a group", simulation{schedule: ByPriority([]Group{{0, 20 * second}, {10, 10 * second}}), restartAt: 28 * second, pods: []*fakePod{
			ignoresRuntimeKill(pod("x", 0, 15, never)), pod("y", 10, 30, never),
		}}, []string{
			"0s: stop x 15s, begun",
			"16s: kill x",
			"16.1s: x gone, stop y 14s",
			"28s: stop again y 2s",
			"30s: y gone, ended",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.simulation.t = t
			if diff := cmp.Diff(tt.want, tt.simulation.run()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func ignoresRuntimeKill(p *fakePod) *fakePod { p.ignoresRuntimeKill = true; return p }

// A late step, because the agent got no CPU, catches up.
func TestStepLate(t *testing.T) {
	schedule := ByPriority([]Group{{0, 10 * second}, {10, 10 * second}, {20, 10 * second}})
	s := simulation{t: t, schedule: schedule, pods: []*fakePod{
		ignoresRuntimeKill(pod("x", 0, 30, never)), pod("d", 0, 30, never).daemonSet(), pod("y", 10, 30, never), pod("z", 20, 30, never),
	}}
	s.step(Begin, begin)
	s.step(NoEvent, begin.Add(25*second))
	want := []string{"0s: stop x 10s, begun", "25s: stop d 1s, stop y 1s, stop z 5s, kill x"}
	if diff := cmp.Diff(want, s.log); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A pod whose container restarts so quickly that the pod never disappears is
// stopped again. The shutdown does not wait for a second restart.
func TestStepRestartedPod(t *testing.T) {
	schedule := ByPriority([]Group{{0, 20 * second}})
	x := ignoresRuntimeKill(pod("x", 0, 5, never))
	x.LastStart = 7
	s := simulation{t: t, schedule: schedule, pods: []*fakePod{x}}
	s.step(Begin, begin)
	s.step(NoEvent, begin.Add(second))
	x.LastStart = 8
	s.step(NoEvent, begin.Add(2*second))
	s.step(NoEvent, begin.Add(3*second))
	s.step(NoEvent, begin.Add(8*second))
	x.LastStart = 9
	s.step(NoEvent, begin.Add(8*second+killDuration/2)) // not gone yet
	want := []string{"0s: stop x 5s, begun", "2s: refuse x 5s", "8s: kill x", "8.05s: refuse x 5s, ended"}
	if diff := cmp.Diff(want, s.log); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A pod that was gone and exists again is stopped again.
func TestStepReappearedPod(t *testing.T) {
	schedule := ByPriority([]Group{{0, 20 * second}})
	x := pod("x", 0, 5, 2*second)
	s := simulation{t: t, schedule: schedule, pods: []*fakePod{x, pod("y", 0, 30, never)}}
	s.step(Begin, begin)
	s.step(NoEvent, begin.Add(2*second))
	x.gone, x.stopTime = false, time.Time{}
	s.step(NoEvent, begin.Add(3*second))
	want := []string{"0s: stop x 5s, stop y 20s, begun", "2s: x gone", "3s: refuse x 5s"}
	if diff := cmp.Diff(want, s.log); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// On a node of the control plane the API server is a static pod. It is the last that stops, so
// that the ends of the others can be reported, at the latest when a quarter of the group's time is
// left. Without pods of the second wave it has more.
func TestStepWaves(t *testing.T) {
	schedule := ByPeriods(30*second, 20*second)
	static := func(uid string) *fakePod {
		p := pod(uid, 2_000_001_000, 30, second)
		p.Static = true
		return p
	}
	network := func(exitAfter time.Duration) *fakePod {
		p := pod("network", 2_000_001_000, 30, exitAfter)
		p.DaemonSet = true
		return p
	}
	daemon := pod("daemon", 0, 4, 2*second)
	daemon.DaemonSet = true
	for _, tt := range []struct {
		name string
		pods []*fakePod
		want []string
	}{
		{"prompt", []*fakePod{static("apiserver"), network(2 * second), daemon, pod("web", 0, 4, second)}, []string{
			"0s: stop web 4s, begun", "1s: web gone, stop daemon 4s", "3s: daemon gone, stop network 27s",
			"5s: network gone, stop apiserver 25s", "6s: apiserver gone, ended",
		}},
		{"stuck", []*fakePod{static("apiserver"), network(never), pod("web", 0, 30, 10*second)}, []string{
			"0s: stop web 10s, begun", "10s: web gone, stop network 20s", "20s: stop apiserver 10s", "21s: apiserver gone", "30s: network gone, ended",
		}},
	} {
		s := simulation{t: t, schedule: schedule, pods: tt.pods}
		if diff := cmp.Diff(tt.want, s.run()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// The waves of a shutdown that begins without a list of the pods begin with the first list.
func TestStepWavesPodsUnknown(t *testing.T) {
	static, web := pod("static", 0, 30, never), pod("web", 0, 30, never)
	static.Static = true
	state, _ := Step(State{}, Inputs{Event: Begin, Schedule: fourGroups, PodsUnknown: true}, begin)
	_, orders := Step(state, Inputs{Pods: []evict.Pod{static.Pod, web.Pod}}, begin.Add(100*time.Millisecond))
	if len(orders.Stop) != 1 || orders.Stop[0].UID != "web" {
		t.Errorf("orders with the first list = %+v; want web stopped alone", orders.Stop)
	}
}

// A pod that can't be killed delays the shutdown until the deadline, and no longer.
func TestStepStuck(t *testing.T) {
	schedule := ByPriority([]Group{{0, 10 * second}, {10, 20 * second}})
	seconds := int64(5)
	in := Inputs{Event: Begin, Schedule: schedule, Pods: []evict.Pod{{UID: "x", Namespace: "a", Name: "x", TerminationGraceSeconds: &seconds}}}
	state, orders := Step(State{}, in, begin)
	in.Event = NoEvent
	var wakes []time.Duration
	for state.Phase == Stopping {
		now := orders.Wake
		if now.IsZero() {
			t.Fatalf("Wake not set: %+v", state)
		}
		wakes = append(wakes, now.Sub(begin))
		state, orders = Step(state, in, now)
	}
	// The times of the two later waves, between them a second after the grace, then the group's
	// end and the deadline.
	want := []time.Duration{5 * second, 6 * second, 7500 * time.Millisecond, 10 * second, 30 * second}
	if diff := cmp.Diff(want, wakes); diff != "" || state.Phase != Ended {
		t.Errorf("wake times (-want +got), then phase %s:\n%s", state.Phase, diff)
	}
}

// Pods that were killed before a restart, or whose grace has passed since, are
// killed and not asked again.
func TestStepResumeLate(t *testing.T) {
	schedule := ByPriority([]Group{{0, 60 * second}})
	pod := func(uid string, status Status, due, limit time.Duration) PodState {
		return PodState{UID: uid, Pod: "a/" + uid, Status: status, Grace: 5 * second, Due: begin.Add(due), Limit: begin.Add(limit)}
	}
	state := State{Phase: Stopping, Began: begin, WaveBegan: begin, Schedule: schedule, Listed: true, Wave: lastWave, Pods: []PodState{
		pod("asked", Asked, 30*second, 31*second), pod("killed", Killed, 5*second, 6*second), pod("late", Asked, 9*second, 10*second),
		pod("past", Asked, 19500*time.Millisecond, 20500*time.Millisecond),
	}}
	in := Inputs{Event: Resume}
	for _, p := range state.Pods {
		in.Pods = append(in.Pods, evict.Pod{UID: p.UID, Namespace: "a", Name: p.UID})
	}
	_, orders := Step(state, in, begin.Add(20*second))
	var got []string
	for _, o := range orders.Stop {
		got = append(got, "stop "+o.UID+" "+o.Grace.String())
	}
	for _, p := range orders.Kill {
		got = append(got, "kill "+p.UID)
	}
	want := []string{"stop asked 10s", "kill killed", "kill late"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An operator's shutdown becomes the service manager's when the service manager
// begins one.
func TestStepManual(t *testing.T) {
	in := Inputs{Event: Begin, Manual: true, Schedule: fourGroups, PodsUnknown: true}
	state, _ := Step(State{}, in, begin)
	again, _ := Step(state, in, begin.Add(second))
	in.Manual = false
	taken, _ := Step(again, in, begin.Add(2*second))
	back, _ := Step(taken, Inputs{Event: Begin, Manual: true, PodsUnknown: true}, begin.Add(3*second))
	if !state.Manual || !again.Manual || taken.Manual || back.Manual {
		t.Errorf("manual = %t, %t, %t, %t; want true, true, false, false", state.Manual, again.Manual, taken.Manual, back.Manual)
	}
}

// When the service manager takes over an operator's shutdown, the time that it
// allows is divided among the remaining groups.
func TestStepTakenOver(t *testing.T) {
	s := simulation{t: t, schedule: fourGroups, pods: []*fakePod{pod("low", 10, 600, never), pod("high", 100_000, 600, never)}}
	in := Inputs{Event: Begin, Manual: true, Schedule: fourGroups, Pods: []evict.Pod{s.pods[0].Pod, s.pods[1].Pod}}
	state, _ := Step(State{}, in, begin)
	now := begin.Add(4 * second)
	in.Event, in.Manual, in.Until = Begin, false, now.Add(22*second)
	state, _ = Step(state, in, now)
	if end := state.Deadline(); end.After(now.Add(20*second)) || end.Before(now.Add(19*second)) {
		t.Errorf("deadline = %v after the takeover; want 20s", end.Sub(now))
	}
	for i := state.Current; i < len(state.Schedule); i++ {
		if state.Schedule[i].Time <= 0 {
			t.Errorf("group %d has %v; want a share of 20s: %+v", i, state.Schedule[i].Time, state.Schedule)
		}
	}
	for _, p := range state.Pods {
		if p.Status == Asked && p.Limit.After(state.End(state.Current)) {
			t.Errorf("%s has limit %v; want the end of its group, %v", p.UID, p.Limit.Sub(now), state.End(state.Current).Sub(now))
		}
	}
	again, _ := Step(state, in, now.Add(second))
	if !again.Deadline().Equal(state.Deadline()) {
		t.Errorf("deadline = %v after a repeated event; want %v", again.Deadline(), state.Deadline())
	}
}

// A resumed shutdown continues only once the pods are listed: groups would be
// passed without stopping their pods.
func TestStepResumePodsUnknown(t *testing.T) {
	low, high := pod("low", 10, 5, second), pod("high", 100_000, 5, second)
	in := Inputs{Event: Begin, Schedule: fourGroups, Pods: []evict.Pod{low.Pod, high.Pod}}
	state, _ := Step(State{}, in, begin)
	late := state.End(len(fourGroups) - 2).Add(second)
	resumed, orders := Step(state, Inputs{Event: Resume, PodsUnknown: true}, late)
	if len(orders.Stop) > 0 || orders.Wake.IsZero() {
		t.Errorf("orders without a list = %+v; want none, and Wake", orders)
	}
	in.Event = NoEvent
	_, orders = Step(resumed, in, late.Add(second))
	if !slices.ContainsFunc(orders.Stop, func(s Stop) bool { return s.UID == "high" }) {
		t.Errorf("orders with a list = %+v; want high to be stopped", orders)
	}
}

// Pods that are started again and again delay the shutdown no longer than others:
// it waits for their first restart only.
func TestStepRestartedTwice(t *testing.T) {
	x := pod("x", 10, 5, never)
	state, _ := Step(State{}, Inputs{Event: Begin, Schedule: fourGroups, Pods: []evict.Pod{x.Pod}}, begin)
	for i, want := range []Phase{Stopping, Ended} {
		now := begin.Add(time.Duration(i+1) * second)
		x.LastStart = now.UnixNano()
		var orders Orders
		state, orders = Step(state, Inputs{Pods: []evict.Pod{x.Pod}}, now)
		if state.Phase != want || len(orders.Stop) != 1 || !orders.Stop[0].Refused {
			t.Errorf("restart %d: phase %q, orders %+v; want %q, and x refused", i+1, state.Phase, orders, want)
		}
	}
}

func TestStepWithoutGroups(t *testing.T) {
	state, orders := Step(State{}, Inputs{Event: Begin}, begin)
	if state.Active() || len(orders.Stop) > 0 {
		t.Errorf("Step(Begin) without a schedule = %+v, %+v; want nothing", state, orders)
	}
}

func TestCancelKeepsTimes(t *testing.T) {
	state, _ := Step(State{}, Inputs{Event: Begin, Schedule: fourGroups, Pods: nil}, begin)
	if state.Phase != Ended || !state.Ended.Equal(begin) {
		t.Fatalf("a shutdown without pods: %+v; want it ended at %v", state, begin)
	}
	state, _ = Step(state, Inputs{Event: Cancel}, begin.Add(second))
	want := State{Began: begin, Ended: begin, Canceled: true}
	if diff := cmp.Diff(want, state); diff != "" {
		t.Errorf("after Cancel (-want +got):\n%s", diff)
	}
}

func TestEachTime(t *testing.T) {
	s := simulation{t: t, schedule: fourGroups, pods: []*fakePod{pod("x", 0, 30, never), pod("y", 10, 30, never)}}
	s.step(Begin, begin)
	moved := s.state.Clone()
	moved.EachTime(func(t *time.Time) { *t = t.Add(time.Hour) })
	_, before := Step(s.state, Inputs{Pods: nil, PodsUnknown: true}, begin.Add(second))
	_, after := Step(moved, Inputs{Pods: nil, PodsUnknown: true}, begin.Add(time.Hour+second))
	if want := before.Wake.Add(time.Hour); !after.Wake.Equal(want) || before.Wake.IsZero() {
		t.Errorf("Wake of the state moved by an hour = %v; want %v", after.Wake, want)
	}
}
