package evict

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// memoryKey names the hard threshold of shortOf.
var memoryKey = Key{Signal: signal.MemoryAvailable}

// victimOf is an unsettled victim of 200 MiB, decided on at the beginning.
func victimOf(uid string) Victim {
	return Victim{UID: uid, Pod: "default/" + uid, Signal: memoryKey, Decided: begin, Due: begin, Fell: begin, Expected: 200 * mi, Lowest: 200 * mi, Status: Unsettled}
}

func TestVictimProgress(t *testing.T) {
	const ms = time.Millisecond
	for _, tc := range []struct {
		name    string
		change  func(v *Victim)
		held    int64 // MiB
		at      time.Duration
		unknown bool
		end     settleResult
		want    VictimStatus
		fell    time.Duration
	}{
		{name: "a twentieth is back", held: 190, at: 500 * ms, want: Unsettled, fell: 500 * ms},
		{name: "less than a twentieth", held: 191, at: 500 * ms, want: Unsettled},
		{name: "what it holds is not known", held: 0, at: 500 * ms, unknown: true, want: Unsettled},
		{name: "nothing was expected", change: func(v *Victim) { v.Expected, v.Lowest = 0, 0 }, at: 500 * ms, want: Unsettled},
		{name: "it fell before its grace was over", change: func(v *Victim) { v.Due, v.Fell = begin.Add(time.Minute), begin.Add(time.Second) }, held: 200, at: 60999 * ms, want: Unsettled, fell: time.Second},
		{name: "enough is back after the time", held: 40, at: time.Hour, end: returnedEnough, want: Settled, fell: time.Hour},
		{name: "it was settled before", change: func(v *Victim) { v.Status = Settled }, held: 200, at: time.Hour, want: Settled},
		{name: "it was settled before and still falls", change: func(v *Victim) { v.Status, v.Lowest = Settled, 40*mi }, held: 20, at: time.Hour, want: Settled, fell: time.Hour},
		{name: "it is stuck", change: func(v *Victim) { v.Status = Stuck }, held: 0, at: time.Hour, want: Stuck},
	} {
		v := victimOf("a")
		if tc.change != nil {
			tc.change(&v)
		}
		end := v.update(tc.held*mi, !tc.unknown, true, time.Second, begin.Add(tc.at))
		if end != tc.end || v.Status != tc.want || !v.Fell.Equal(begin.Add(tc.fell)) {
			t.Errorf("%s: progress() = %d, %s, fell after %v; want %d, %s, after %v", tc.name, end, v.Status, v.Fell.Sub(begin), tc.end, tc.want, tc.fell)
		}
	}
}

// Usage of pods that are not measured tells nothing of a victim's progress.
func TestUnmeasuredProgress(t *testing.T) {
	l := shortOf(t, 100*mi, 0)
	l.state.Victims = []Victim{victimOf("a")}
	l.step(500 * time.Millisecond)
	if got := l.status("a"); got != Unsettled {
		t.Errorf("status = %s; want %s until the time is over", got, Unsettled)
	}
}

// A victim that is gone at once brought what was expected: the run of those that
// did not is over.
func TestGoneEndsPoorRun(t *testing.T) {
	for _, status := range []VictimStatus{Unsettled, Stuck} {
		l := shortOf(t, 100*mi, 0)
		v := victimOf("gone")
		v.Status = status
		l.state.Victims = []Victim{v}
		l.state.Futile = []Backoff{{Signal: signal.MemoryAvailable, Poor: 2}}
		l.step(time.Millisecond)
		want := 0
		if status == Stuck {
			want = 2
		}
		if got := l.state.Futile[0].Poor; got != want {
			t.Errorf("%s victim gone: poor run of %d; want %d", status, got, want)
		}
	}
}

// One that has brought enough ends it, too.
func TestSettledEndsPoorRun(t *testing.T) {
	l := shortOf(t, 100*mi, 40*mi)
	l.in.Measured = true
	l.state.Victims = []Victim{victimOf("a")}
	l.in.Policy.Thresholds = append(l.in.Policy.Thresholds, hard(signal.PIDAvailable, "10"))
	l.observe(signal.PIDAvailable, 1)
	l.state.Futile = []Backoff{{Signal: signal.PIDAvailable, Poor: 2}, {Signal: signal.MemoryAvailable, Poor: 2}}
	l.step(time.Millisecond)
	if got := l.state.Futile; len(got) != 2 || got[0].Poor != 2 || got[1].Poor != 0 {
		t.Errorf("poor runs %+v; want 2 for PIDs and 0 for memory", got)
	}
}

// What victims of another signal did not return does not make memory futile.
func TestFutilityIsOfASignal(t *testing.T) {
	pids := Key{Signal: signal.PIDAvailable}
	for _, tc := range []struct {
		name   string
		stuck  Key
		futile []Backoff
		want   bool
	}{
		{"stuck for memory", memoryKey, nil, true},
		{"stuck for PIDs", pids, nil, false},
		{"poor for memory", pids, []Backoff{{Signal: signal.MemoryAvailable, Poor: 3}, {Signal: signal.PIDAvailable}}, true},
		{"poor for PIDs", pids, []Backoff{{Signal: signal.PIDAvailable, Poor: 3}}, false},
	} {
		l := shortOf(t, 100*mi, 200*mi, 200*mi, 200*mi)
		l.in.Measured = true
		l.in.Policy.Thresholds = append(l.in.Policy.Thresholds, hard(signal.PIDAvailable, "10"))
		l.observe(signal.PIDAvailable, 1)
		for _, uid := range []string{"b", "c"} {
			v := victimOf(uid)
			v.Signal, v.Status = tc.stuck, Stuck
			l.state.Victims = append(l.state.Victims, v)
		}
		l.state.Futile = tc.futile
		o := l.step(time.Millisecond)
		if len(o.Evict) != 1 || o.Evict[0].Futile != tc.want {
			t.Errorf("%s: %+v; want one eviction, futile %t", tc.name, o.Evict, tc.want)
		}
	}
}

// The back-off of a soft threshold doubles as that of a hard one does.
func TestSoftBackoffDoubles(t *testing.T) {
	l := newTimeline(t, soft(signal.MemoryAvailable, "10Gi", time.Second))
	for _, name := range []string{"a", "b", "c"} {
		l.in.Pods = append(l.in.Pods, aPod(name, using(mi)))
	}
	l.observe(signal.MemoryAvailable, gi)
	l.step(0)
	for _, tc := range []struct {
		at   time.Duration
		want []string
	}{
		{time.Second, []string{"a"}}, {2*time.Second - 1, nil}, {2 * time.Second, []string{"b"}}, {4*time.Second - 1, nil}, {4 * time.Second, []string{"c"}},
	} {
		wantVictims(t, tc.at.String(), l.step(tc.at), tc.want...)
	}
}

func TestLateOutcomes(t *testing.T) {
	l := shortOf(t, 100*mi, 200*mi)
	l.in.Measured = true
	v := victimOf("a")
	v.Status = Stuck
	l.state.Victims = []Victim{v}
	// The first is of a reclaim that is not waited for.
	l.step(time.Millisecond, Outcome{}, Outcome{UID: "a", Err: errors.New("too late")})
	if got := l.status("a"); got != Stuck {
		t.Errorf("status after an error that comes late = %s; want %s", got, Stuck)
	}
}

// An evicted pod that is not seen while it is not known what runs may still come back.
func TestRevivedAfterRestart(t *testing.T) {
	for _, unlisted := range []bool{true, false} {
		l := shortOf(t, 100*mi, 0)
		l.state.Revivals = []Revival{{UID: "b", Gone: true, Until: begin}, {UID: "a", Gone: true, Until: begin}}
		pods := l.in.Pods
		l.in.Pods, l.in.Unlisted = nil, unlisted
		l.step(revivalBackoffMax + 1)
		l.in.Pods, l.in.Unlisted = pods, false
		o := l.step(revivalBackoffMax + 2)
		if got := len(o.Revived) == 1; got != unlisted {
			t.Errorf("back after a step that knew what runs: %t: revived %v; want it: %t", !unlisted, o.Revived, unlisted)
		}
	}
}

// Each evicted pod of a kubelet has a hold-off of its own.
func TestRevivalsAreApart(t *testing.T) {
	l := shortOf(t, 100*mi, 0)
	a, b := victimOf("x"), victimOf("y")
	a.Kubelet, b.Kubelet = true, true
	l.state.Victims = []Victim{a, b}
	l.step(time.Millisecond)
	if got := l.state.Revivals; len(got) != 2 || got[0].UID != "x" || got[1].UID != "y" {
		t.Errorf("revivals = %+v; want one for x and one for y", got)
	}
}

// A would-be victim for memory comes back when memory does, whatever a disk does.
func TestEpisodesAreApart(t *testing.T) {
	l := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.NodeFsAvailable, "1Gi"))
	l.in.DryRun = true
	l.in.Pods = []Pod{aPod("a", using(gi))}
	l.state.Pretended = []Pretended{{UID: "a", Signal: signal.MemoryAvailable}}
	l.observe(signal.MemoryAvailable, 2*gi)
	l.observe(signal.NodeFsAvailable, mi)
	l.step(0)
	if len(l.state.Pretended) != 0 {
		t.Errorf("counts as gone: %+v; want none", l.state.Pretended)
	}
}

// What was fired answers its threshold, and replaces what the books had of the pod.
func TestAdoptedAnswers(t *testing.T) {
	l := shortOf(t, 100*mi, 200*mi)
	l.in.Measured = true
	l.in.Observations[signal.MemoryAvailable].Cache = 4 * gi // which would let it wait
	stuck := victimOf("a")
	stuck.Status = Stuck
	l.state.Victims = []Victim{stuck, victimOf("b")}
	l.in.Pods = append(l.in.Pods[:1:1], aPod("b", using(200*mi)))
	// Another threshold that waits is not answered by it.
	pods := hard(signal.AllocatableMemoryAvailable, "10Gi")
	l.in.Policy.Thresholds = append(l.in.Policy.Thresholds, pods)
	l.in.Observations[signal.AllocatableMemoryAvailable] = l.in.Observations[signal.MemoryAvailable]
	pod := l.in.Pods[0]
	l.in.Fired = []Fired{{Pod: &pod, Threshold: l.in.Policy.Thresholds[0], Observation: l.in.Observations[0], Deficit: 100 * mi, Expected: 200 * mi, Time: begin}}
	o := l.step(time.Millisecond)
	if !slices.Equal(o.Waiting, []Key{pods.Key()}) {
		t.Errorf("waiting = %v; want %v", o.Waiting, pods.Key())
	}
	if got := l.state.timer(memoryKey); !got.Since.Equal(begin) {
		t.Errorf("timer = %+v; want it to run since the kill", got)
	}
	if got := l.state.Victims; len(got) != 2 || got[0].UID != "b" || got[1].UID != "a" || got[1].Status != Unsettled {
		t.Errorf("victims = %+v; want b, and a anew", got)
	}
	l.in.Fired[0].Time = begin.Add(time.Second)
	l.step(time.Second)
	if got := l.state.timer(memoryKey); !got.Since.Equal(begin) {
		t.Errorf("timer after the next kill = %+v; want it to run on", got)
	}
}

// A crossing's time is moved with the others; one that was not noted stays so.
func TestEachTimeMovesCrossings(t *testing.T) {
	s := State{Timers: []Timer{{Crossing: signal.MemoryReading{Time: begin}}, {}}}
	s.EachTime(func(at *time.Time) { *at = at.Add(time.Hour) })
	if got := s.Timers[0].Crossing.Time; !got.Equal(begin.Add(time.Hour)) || !s.Timers[1].Crossing.Time.IsZero() {
		t.Errorf("crossings = %v and %v; want an hour later, and none", got, s.Timers[1].Crossing.Time)
	}
}

func TestNoVictimMeansNoDelay(t *testing.T) {
	for _, bytes := range []int64{mi, gi} {
		l := newTimeline(t, hard(signal.NodeFsAvailable, "100Gi"))
		l.in.Policy.Layout = ImageFs
		l.in.Pods = []Pod{aPod("a", func(p *Pod) { p.Containers[0].Usage.Logs = bytes })}
		l.observe(signal.NodeFsAvailable, gi)
		l.step(0)
		l.step(time.Second, Outcome{})
		if got := l.state.Futile; len(got) != 1 || got[0].None != (bytes == mi) {
			t.Errorf("a pod of %d bytes: back-offs = %+v; want one, without a victim: %t", bytes, got, bytes == mi)
		}
	}
}
