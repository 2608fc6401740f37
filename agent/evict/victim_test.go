package evict

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// memoryKey identifies the hard threshold of shortOfMemory.
var memoryKey = ThresholdKey{Signal: signal.MemoryAvailable}

// unsettledVictim returns a victim of 200 MiB that was decided on at start.
func unsettledVictim(uid string) Victim {
	return Victim{UID: uid, Pod: "default/" + uid, Signal: memoryKey, Decided: start, Due: start, ProgressAt: start, Expected: 200 * mi, Lowest: 200 * mi, Status: Unsettled}
}

func TestVictimUpdate(t *testing.T) {
	const ms = time.Millisecond
	for _, tc := range []struct {
		name     string
		change   func(v *Victim)
		used     int64 // MiB
		at       time.Duration
		unknown  bool
		result   settleResult
		want     VictimStatus
		progress time.Duration
	}{
		{name: "a 20th is freed", used: 190, at: 500 * ms, want: Unsettled, progress: 500 * ms},
		{name: "less than a 20th is freed", used: 191, at: 500 * ms, want: Unsettled},
		{name: "usage is unknown", used: 0, at: 500 * ms, unknown: true, want: Unsettled},
		{name: "nothing was expected", change: func(v *Victim) { v.Expected, v.Lowest = 0, 0 }, at: 500 * ms, want: Unsettled},
		{name: "it fell during its grace period", change: func(v *Victim) { v.Due, v.ProgressAt = start.Add(time.Minute), start.Add(time.Second) }, used: 200, at: 60999 * ms, want: Unsettled, progress: time.Second},
		{name: "enough is freed after the settle timeout", used: 40, at: time.Hour, result: returnedEnough, want: Settled, progress: time.Hour},
		{name: "it was settled before", change: func(v *Victim) { v.Status = Settled }, used: 200, at: time.Hour, want: Settled},
		{name: "it was settled before and still falls", change: func(v *Victim) { v.Status, v.Lowest = Settled, 40*mi }, used: 20, at: time.Hour, want: Settled, progress: time.Hour},
		{name: "it is stuck", change: func(v *Victim) { v.Status = Stuck }, used: 0, at: time.Hour, want: Stuck},
	} {
		v := unsettledVictim("a")
		if tc.change != nil {
			tc.change(&v)
		}
		result := v.update(victimMemory{measured: true, known: !tc.unknown, outstanding: tc.used * mi}, time.Second, start.Add(tc.at))
		if result != tc.result || v.Status != tc.want || !v.ProgressAt.Equal(start.Add(tc.progress)) {
			t.Errorf("%s: update() = %d, %s, progress after %v; want %d, %s, after %v", tc.name, result, v.Status, v.ProgressAt.Sub(start), tc.result, tc.want, tc.progress)
		}
	}
}

// If usage is not measured, it says nothing about a victim's progress.
func TestUnmeasuredVictim(t *testing.T) {
	tl := shortOfMemory(t, 100*mi, 0)
	tl.state.Victims = []Victim{unsettledVictim("a")}
	tl.step(500 * time.Millisecond)
	if got := tl.status("a"); got != Unsettled {
		t.Errorf("status = %s; want %s until the settle timeout", got, Unsettled)
	}
}

// A victim that is gone while unsettled has freed what was expected. It resets the
// count of poor returns.
func TestGoneVictimResetsPoorReturns(t *testing.T) {
	for _, status := range []VictimStatus{Unsettled, Stuck} {
		tl := shortOfMemory(t, 100*mi, 0)
		v := unsettledVictim("gone")
		v.Status = status
		tl.state.Victims = []Victim{v}
		tl.state.Backoffs = []Backoff{{Signal: signal.MemoryAvailable, PoorReturns: 2}}
		tl.step(time.Millisecond)
		want := 0
		if status == Stuck {
			want = 2
		}
		if got := tl.state.Backoffs[0].PoorReturns; got != want {
			t.Errorf("%s victim gone: poor returns = %d; want %d", status, got, want)
		}
	}
}

// A pod that was evicted for its own limit or for contention does not change the count of poor
// returns: neither one that is gone, nor one that has freed enough, nor a stuck one.
func TestPoorReturnsIgnoreOtherCauses(t *testing.T) {
	for uid, want := range map[string]VictimStatus{"a": Settled, "b": Stuck, "gone": ""} {
		tl := shortOfMemory(t, 100*mi, 10*mi, 200*mi)
		tl.in.Measured = true
		v := unsettledVictim(uid)
		v.OverLimit = true
		tl.state.Victims = []Victim{v}
		tl.state.Backoffs = []Backoff{{Signal: signal.MemoryAvailable, PoorReturns: 2}}
		tl.step(tl.in.Policy.SettleTimeout)
		if v := tl.state.victim(uid); v != nil && v.Status != want || v == nil && want != "" {
			t.Errorf("victim %s: %+v; want status %q", uid, v, want)
		}
		if got := tl.state.Backoffs[0].PoorReturns; got != 2 {
			t.Errorf("victim %s: poor returns = %d; want 2", uid, got)
		}
	}
}

// A victim that has freed enough resets the count of poor returns of its own signal.
func TestSettledVictimResetsPoorReturns(t *testing.T) {
	tl := shortOfMemory(t, 100*mi, 40*mi)
	tl.in.Measured = true
	tl.state.Victims = []Victim{unsettledVictim("a")}
	tl.in.Policy.Thresholds = append(tl.in.Policy.Thresholds, hard(signal.PIDAvailable, "10"))
	tl.observe(signal.PIDAvailable, 1)
	tl.state.Backoffs = []Backoff{{Signal: signal.PIDAvailable, PoorReturns: 2}, {Signal: signal.MemoryAvailable, PoorReturns: 2}}
	tl.step(time.Millisecond)
	if got := tl.state.Backoffs; len(got) != 2 || got[0].PoorReturns != 2 || got[1].PoorReturns != 0 {
		t.Errorf("back-offs = %+v; want 2 poor returns for PIDs and 0 for memory", got)
	}
}

// Poor returns of another signal's victims do not make memory futile.
func TestPoorReturnsPerSignal(t *testing.T) {
	pids := ThresholdKey{Signal: signal.PIDAvailable}
	for _, tc := range []struct {
		name   string
		stuck  ThresholdKey
		futile []Backoff
		want   bool
	}{
		{"stuck for memory", memoryKey, nil, true},
		{"stuck for PIDs", pids, nil, false},
		{"poor for memory", pids, []Backoff{{Signal: signal.MemoryAvailable, PoorReturns: 3}, {Signal: signal.PIDAvailable}}, true},
		{"poor for PIDs", pids, []Backoff{{Signal: signal.PIDAvailable, PoorReturns: 3}}, false},
	} {
		tl := shortOfMemory(t, 100*mi, 200*mi, 200*mi, 200*mi)
		tl.in.Measured = true
		tl.in.Policy.Thresholds = append(tl.in.Policy.Thresholds, hard(signal.PIDAvailable, "10"))
		tl.observe(signal.PIDAvailable, 1)
		for _, uid := range []string{"b", "c"} {
			v := unsettledVictim(uid)
			v.Signal, v.Status = tc.stuck, Stuck
			tl.state.Victims = append(tl.state.Victims, v)
		}
		tl.state.Backoffs = tc.futile
		o := tl.step(time.Millisecond)
		if len(o.Evict) != 1 || o.Evict[0].Futile != tc.want {
			t.Errorf("%s: %+v; want one eviction, futile %t", tc.name, o.Evict, tc.want)
		}
	}
}

// The back-off of a soft threshold doubles like that of a hard one.
func TestSoftBackoffDoubles(t *testing.T) {
	tl := newTimeline(t, soft(signal.MemoryAvailable, "10Gi", time.Second))
	for _, name := range []string{"a", "b", "c"} {
		tl.in.Pods = append(tl.in.Pods, aPod(name, using(mi)))
	}
	tl.observe(signal.MemoryAvailable, gi)
	tl.step(0)
	for _, tc := range []struct {
		at   time.Duration
		want []string
	}{
		{time.Second, []string{"a"}}, {2*time.Second - 1, nil}, {2 * time.Second, []string{"b"}}, {4*time.Second - 1, nil}, {4 * time.Second, []string{"c"}},
	} {
		wantVictims(t, tc.at.String(), tl.step(tc.at), tc.want...)
	}
}

func TestLateOutcomes(t *testing.T) {
	tl := shortOfMemory(t, 100*mi, 200*mi)
	tl.in.Measured = true
	v := unsettledVictim("a")
	v.Status = Stuck
	tl.state.Victims = []Victim{v}
	// The first outcome is of a reclaim that was not ordered.
	tl.step(time.Millisecond, Outcome{}, Outcome{UID: "a", Err: errors.New("too late")})
	if got := tl.status("a"); got != Stuck {
		t.Errorf("status after a late error = %s; want %s", got, Stuck)
	}
}

// An evicted pod that is missing while the pods are not listed can still be revived.
func TestRevivedAfterUnlistedStep(t *testing.T) {
	for _, unlisted := range []bool{true, false} {
		tl := shortOfMemory(t, 100*mi, 0)
		tl.state.Revivals = []Revival{{UID: "b", Gone: true, Until: start}, {UID: "a", Gone: true, Until: start}}
		pods := tl.in.Pods
		tl.in.Pods, tl.in.PodsUnknown = nil, unlisted
		tl.step(revivalBackoffMax + 1)
		tl.in.Pods, tl.in.PodsUnknown = pods, false
		o := tl.step(revivalBackoffMax + 2)
		if got := len(o.Revived) == 1; got != unlisted {
			t.Errorf("pods listed in the Step before: %t: revived %v; want a: %t", !unlisted, o.Revived, unlisted)
		}
	}
}

// Each evicted pod of a kubelet has its own Revival.
func TestRevivalPerPod(t *testing.T) {
	tl := shortOfMemory(t, 100*mi, 0)
	a, b := unsettledVictim("x"), unsettledVictim("y")
	a.Kubelet, b.Kubelet = true, true
	tl.state.Victims = []Victim{a, b}
	tl.step(time.Millisecond)
	if got := tl.state.Revivals; len(got) != 2 || got[0].UID != "x" || got[1].UID != "y" {
		t.Errorf("revivals = %+v; want one for x and one for y", got)
	}
}

// A dry-run victim for memory stops counting as gone when memory recovers, whatever a
// disk does.
func TestEpisodePerSignal(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.NodeFsAvailable, "1Gi"))
	tl.in.DryRun = true
	tl.in.Pods = []Pod{aPod("a", using(gi))}
	tl.state.DryRunVictims = []DryRunVictim{{UID: "a", Signal: signal.MemoryAvailable}}
	tl.observe(signal.MemoryAvailable, 2*gi)
	tl.observe(signal.NodeFsAvailable, mi)
	tl.step(0)
	if len(tl.state.DryRunVictims) != 0 {
		t.Errorf("dry-run victims = %+v; want none", tl.state.DryRunVictims)
	}
}

// A hot path's kill makes its threshold active and replaces an earlier victim with the
// same UID.
func TestAdoptedHotKillActivatesThreshold(t *testing.T) {
	tl := shortOfMemory(t, 100*mi, 200*mi)
	tl.in.Measured = true
	tl.in.Observations[signal.MemoryAvailable].Cache = 4 * gi // enough that the crossing would wait
	stuck := unsettledVictim("a")
	stuck.Status = Stuck
	tl.state.Victims = []Victim{stuck, unsettledVictim("b")}
	tl.in.Pods = append(tl.in.Pods[:1:1], aPod("b", using(200*mi)))
	// Another threshold continues to wait.
	pods := hard(signal.AllocatableMemoryAvailable, "10Gi")
	tl.in.Policy.Thresholds = append(tl.in.Policy.Thresholds, pods)
	tl.in.Observations[signal.AllocatableMemoryAvailable] = tl.in.Observations[signal.MemoryAvailable]
	pod := tl.in.Pods[0]
	tl.in.HotKills = []HotKill{{Pod: &pod, Threshold: tl.in.Policy.Thresholds[0], Observation: tl.in.Observations[0], Deficit: 100 * mi, Expected: 200 * mi, Time: start}}
	o := tl.step(time.Millisecond)
	if !slices.Equal(o.Waiting, []ThresholdKey{pods.Key()}) {
		t.Errorf("waiting = %v; want %v", o.Waiting, pods.Key())
	}
	if got := tl.state.timer(memoryKey); !got.Since.Equal(start) {
		t.Errorf("timer = %+v; want it started at the kill", got)
	}
	if got := tl.state.Victims; len(got) != 2 || got[0].UID != "b" || got[1].UID != "a" || got[1].Status != Unsettled {
		t.Errorf("victims = %+v; want b, and a as a new victim", got)
	}
	tl.in.HotKills[0].Time = start.Add(time.Second)
	tl.step(time.Second)
	if got := tl.state.timer(memoryKey); !got.Since.Equal(start) {
		t.Errorf("timer after the next kill = %+v; want the same start", got)
	}
}

// EachTime converts a crossing's time like the others and leaves an unset one unset.
func TestEachTimeMovesCrossings(t *testing.T) {
	s := State{Timers: []Timer{{Crossing: signal.MemoryReading{Time: start}}, {}}}
	s.EachTime(func(at *time.Time) { *at = at.Add(time.Hour) })
	if got := s.Timers[0].Crossing.Time; !got.Equal(start.Add(time.Hour)) || !s.Timers[1].Crossing.Time.IsZero() {
		t.Errorf("crossings = %v and %v; want 1h later, and zero", got, s.Timers[1].Crossing.Time)
	}
}

func TestFutileWithoutVictim(t *testing.T) {
	for _, bytes := range []int64{mi, gi} {
		tl := newTimeline(t, hard(signal.NodeFsAvailable, "100Gi"))
		tl.in.Policy.Layout = ImageFs
		tl.in.Pods = []Pod{aPod("a", func(p *Pod) { p.Containers[0].Usage.Logs = bytes })}
		tl.observe(signal.NodeFsAvailable, gi)
		tl.step(0)
		tl.step(time.Second, Outcome{})
		if got := tl.state.Backoffs; len(got) != 1 || got[0].NoVictim != (bytes == mi) {
			t.Errorf("a pod of %d bytes: back-offs = %+v; want one, without a victim: %t", bytes, got, bytes == mi)
		}
	}
}
