package evict

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/signal"
)

// shortOfMemory returns a timeline whose memory.available is below the threshold by
// deficit, with pods named a, b, c and so on of the given usage.
func shortOfMemory(t *testing.T, deficit int64, usage ...int64) *timeline {
	t.Helper()
	l := newTimeline(t, hard(signal.MemoryAvailable, "10Gi"))
	for i, n := range usage {
		l.in.Pods = append(l.in.Pods, aPod(string(rune('a'+i)), using(n)))
	}
	l.observe(signal.MemoryAvailable, 10*gi-deficit)
	return l
}

func TestUnsettledVictimsCount(t *testing.T) {
	l := shortOfMemory(t, 500*mi, 300*mi, 300*mi, 300*mi, 300*mi)
	wantVictims(t, "0s", l.step(0), "a", "b")
	o := l.step(999 * time.Millisecond)
	wantVictims(t, "999ms", o)
	if len(o.Ranking)+len(o.Exempt) != 0 || o.ActedOn != nil {
		t.Errorf("999ms: ranking %v, exempt %v, acted %v; want none because victims cover the deficit", o.Ranking, o.Exempt, o.ActedOn)
	}
	wantMet(t, "999ms", o, signal.MemoryAvailable)
	l.observe(signal.MemoryAvailable, 10*gi-700*mi)
	wantVictims(t, "deficit larger than their memory", l.step(999*time.Millisecond), "c")
	l.observe(signal.MemoryAvailable, 10*gi-500*mi)
	wantVictims(t, "c is still in flight", l.step(1500*time.Millisecond), "d") // a and b have settled
}

func TestGoneVictimsDoNotCount(t *testing.T) {
	l := shortOfMemory(t, 300*mi, 300*mi, 200*mi, 200*mi)
	wantVictims(t, "0s", l.step(0), "a")
	l.remove("a")
	wantVictims(t, "1ms", l.step(time.Millisecond), "b", "c")
	if len(l.state.Victims) != 2 {
		t.Errorf("victims = %v; want b and c", l.state.Victims)
	}
}

// A pod that a runtime started again with the same UID is not being evicted.
func TestStartedAgain(t *testing.T) {
	l := shortOfMemory(t, 300*mi, 300*mi)
	l.pod("a").LastStart = 7
	wantVictims(t, "0s", l.step(0), "a")
	wantVictims(t, "the same", l.step(10*time.Second))
	l.pod("a").LastStart = 8
	wantVictims(t, "started again", l.step(11*time.Second), "a")
}

func TestMaxVictims(t *testing.T) {
	for _, tt := range []struct {
		limit int
		want  []string
	}{{1, []string{"a"}}, {3, []string{"a", "b", "c"}}, {9, []string{"a", "b", "c", "d"}}} {
		l := shortOfMemory(t, 350*mi, 100*mi, 100*mi, 100*mi, 100*mi, 100*mi)
		l.in.Policy.MaxVictims = tt.limit
		wantVictims(t, fmt.Sprint("at most ", tt.limit), l.step(0), tt.want...)
	}
}

// An unsettled victim counts for every signal, with its usage of that signal's
// quantity.
func TestVictimsCountForAllSignals(t *testing.T) {
	l := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.PIDAvailable, "1000"))
	l.in.Pods = []Pod{aPod("a", using(gi), withPIDs(400)), aPod("b", withPIDs(500)), aPod("c", withPIDs(300))}
	l.observe(signal.MemoryAvailable, 900*mi)
	l.observe(signal.PIDAvailable, 1000)
	wantVictims(t, "memory", l.step(0), "a")
	l.observe(signal.PIDAvailable, 600)
	wantVictims(t, "a's PIDs cover it", l.step(time.Millisecond))
	l.observe(signal.PIDAvailable, 599)
	o := l.step(2 * time.Millisecond)
	wantVictims(t, "one PID missing", o, "b")
	if got := o.Evict[0].Deficit; got != 1 {
		t.Errorf("deficit = %d; want 1", got)
	}
}

// A victim in flight covers PIDs with its PIDs, however much memory it still uses.
func TestVictimsCoverByUsageOfSignal(t *testing.T) {
	l := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.PIDAvailable, "1000"))
	l.in.Measured = true
	l.in.Pods = []Pod{aPod("a", using(gi), withPIDs(400)), aPod("b", withPIDs(500))}
	l.observe(signal.MemoryAvailable, 900*mi)
	l.observe(signal.PIDAvailable, 1000)
	wantVictims(t, "memory", l.step(0), "a")
	l.observe(signal.PIDAvailable, 599)
	o := l.step(time.Millisecond)
	wantVictims(t, "one PID missing", o, "b")
	if got := o.Evict[0].Deficit; got != 1 {
		t.Errorf("deficit = %d; want 1", got)
	}
}

// If usage is not measured, a victim in flight covers what it would free now.
func TestUnmeasuredVictimCovers(t *testing.T) {
	l := shortOfMemory(t, 100*mi, 200*mi, 150*mi)
	wantVictims(t, "0s", l.step(0), "a")
	l.pod("a").Usage.Freeable = 99 * mi
	o := l.step(time.Millisecond)
	wantVictims(t, "a frees less", o, "b")
	if got := o.Evict[0].Deficit; got != mi {
		t.Errorf("deficit = %d; want 1 MiB", got)
	}
}

// Stuck pods that exceeded their own limits do not make a disk signal futile.
func TestStuckOverOwnLimit(t *testing.T) {
	l := newTimeline(t, hard(signal.NodeFsAvailable, "10Gi"))
	l.in.Measured = true
	limited := func(name string) Pod {
		return aPod(name, withRootfs(2*gi), func(p *Pod) { p.Containers[0].Resources.Limits.EphemeralStorage = qty("1Gi") })
	}
	l.in.Pods = []Pod{limited("a"), limited("b"), aPod("c", withRootfs(gi))}
	l.observe(signal.NodeFsAvailable, 10*gi)
	wantVictims(t, "over their limits", l.step(0), "a", "b")
	l.step(time.Second)
	if a, b := l.status("a"), l.status("b"); a != Stuck || b != Stuck {
		t.Fatalf("the pods are %s and %s; want both %s", a, b, Stuck)
	}
	l.in.Policy.Layout = SplitFs
	l.observe(signal.NodeFsAvailable, 10*gi-mi)
	l.step(2 * time.Second)
	o := l.step(3*time.Second, Outcome{}) // containers have been reclaimed
	wantVictims(t, "the disk is low", o, "c")
	if o.Evict[0].Futile {
		t.Error("futile = true because of pods over their own limits; want false")
	}
}

// A settled victim that is still listed is chosen again after a minute without
// progress, but not until a minute after its grace period.
func TestSettledMayBeChosenAgain(t *testing.T) {
	for _, tc := range []struct {
		measured      bool
		progress, due time.Duration // ago
		want          bool
	}{
		{true, time.Minute, time.Minute, true}, {true, time.Minute - 1, time.Minute, false}, {true, time.Minute, time.Minute - 1, false},
		{false, time.Hour, time.Hour, false},
	} {
		l := shortOfMemory(t, 100*mi, 200*mi)
		l.in.Measured = tc.measured
		l.state.Victims = []Victim{{
			UID: "a", Pod: "default/a", Signal: ThresholdKey{Signal: signal.MemoryAvailable}, Status: Settled,
			Expected: 200 * mi, Lowest: 200 * mi, ProgressAt: start.Add(-tc.progress), Due: start.Add(-tc.due),
		}}
		if o := l.step(0); len(o.Evict) == 1 != tc.want {
			t.Errorf("%+v: evicted = %v; want it chosen: %t", tc, victims(o), tc.want)
		}
	}
}

// If usage is not measured, a settled victim is assumed to be gone and has no grace
// period to end.
func TestEscalateSettled(t *testing.T) {
	for _, measured := range []bool{false, true} {
		l := shortOfMemory(t, 100*mi, 200*mi)
		l.in.Measured = measured
		l.state.Victims = []Victim{{UID: "a", Pod: "default/a", Signal: ThresholdKey{Signal: signal.MemoryAvailable, Soft: true}, Soft: true, Status: Settled, ProgressAt: start, Due: start}}
		if o := l.step(0); len(o.Escalate) == 1 != measured {
			t.Errorf("measured %t: grace ended for %v; want a: %t", measured, o.Escalate, measured)
		}
	}
}

func TestSoftVictimsSettleAfterTheirGrace(t *testing.T) {
	l := newTimeline(t, soft(signal.MemoryAvailable, "1Gi", time.Second))
	l.in.Policy.MaxPodGraceSeconds = 30
	l.in.Pods = []Pod{aPod("a", using(gi)), aPod("b", using(gi))}
	l.observe(signal.MemoryAvailable, 900*mi)
	l.step(0)
	wantVictims(t, "1s", l.step(time.Second), "a")
	wantVictims(t, "31.999s", l.step(31999*time.Millisecond))
	wantVictims(t, "32s", l.step(32*time.Second), "b")
}

func TestHardThresholdEndsGrace(t *testing.T) {
	l := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.PIDAvailable, "10"), soft(signal.MemoryAvailable, "2Gi", time.Second))
	l.in.Policy.MaxPodGraceSeconds = 30
	l.in.Pods = []Pod{aPod("a", using(3*gi)), aPod("b", using(3*gi))}
	l.observe(signal.MemoryAvailable, 1500*mi)
	l.observe(signal.PIDAvailable, 100)
	l.step(0)
	wantVictims(t, "1s", l.step(time.Second), "a")
	l.observe(signal.PIDAvailable, 1)
	if o := l.step(1500 * time.Millisecond); len(o.Escalate) != 0 {
		t.Errorf("another signal's hard threshold ends the grace of %v; want none", o.Escalate)
	}
	l.state.Victims = l.state.Victims[:1] // without the victim for PIDs
	l.state.Backoffs = nil
	l.observe(signal.PIDAvailable, 100)
	l.observe(signal.MemoryAvailable, 1000*mi)
	o := l.step(2 * time.Second)
	if diff := cmp.Diff([]string{"a"}, o.Escalate); diff != "" {
		t.Errorf("2s: grace ended (-want +got):\n%s", diff)
	}
	wantVictims(t, "2s", o) // a's memory covers the deficit and is freed at once now
	if v := l.state.Victims[0]; v.Soft || !v.Due.Equal(start.Add(2*time.Second)) {
		t.Errorf("2s: victim = %+v; want it hard and due now", v)
	}
	if o := l.step(2100 * time.Millisecond); len(o.Escalate) != 0 {
		t.Errorf("2.1s: grace ended for %v again; want none", o.Escalate)
	}
	wantVictims(t, "3s", l.step(3*time.Second), "b")
}

// setFreeable sets the memory of the pod, all of which a kill frees.
func (l *timeline) setFreeable(uid string, freeable int64) {
	p := l.pod(uid)
	p.Usage.Freeable, p.Usage.Memory = freeable, freeable
}

func (l *timeline) status(uid string) VictimStatus {
	if v := l.state.victim(uid); v != nil {
		return v.Status
	}
	return ""
}

func TestSettledByFreedMemory(t *testing.T) {
	l := shortOfMemory(t, 500*mi, 1000*mi, 1000*mi)
	l.in.Measured = true
	wantVictims(t, "0s", l.step(0), "a")
	l.setFreeable("a", 201*mi)
	l.observe(signal.MemoryAvailable, 10*gi+299*mi)
	l.step(100 * time.Millisecond)
	if got := l.status("a"); got != Unsettled {
		t.Errorf("79.9%% freed: %s; want %s", got, Unsettled)
	}
	l.setFreeable("a", 200*mi)
	l.observe(signal.MemoryAvailable, 10*gi-500*mi)
	o := l.step(200 * time.Millisecond)
	if got := l.status("a"); got != Settled {
		t.Errorf("80%% freed: %s; want %s", got, Settled)
	}
	wantVictims(t, "other memory has grown", o, "b")
	if got := o.Evict[0].Deficit; got != 300*mi {
		t.Errorf("deficit = %d; want %d: the rest of a is still in flight", got, 300*mi)
	}
}

// A victim of which 80 % is freed usually continues to fall. No other pod is evicted
// for the rest.
func TestSettledStillFalls(t *testing.T) {
	l := shortOfMemory(t, 950*mi, 1000*mi, 1000*mi)
	l.in.Measured = true
	wantVictims(t, "0s", l.step(0), "a")
	l.setFreeable("a", 200*mi)
	l.observe(signal.MemoryAvailable, 10*gi-150*mi)
	wantVictims(t, "80% freed", l.step(100*time.Millisecond))
	wantVictims(t, "usage does not change", l.step(1099*time.Millisecond))
	wantVictims(t, "usage has not changed for the settle timeout", l.step(1100*time.Millisecond), "b")
}

// Memory that is no longer anonymous but not freed yet is still in flight.
func TestUnmappedHugePages(t *testing.T) {
	l := shortOfMemory(t, 500*mi, 1000*mi, 1000*mi)
	l.in.Measured = true
	a := l.pod("a")
	a.Usage.Memory += 100 * mi // that a kill does not free
	wantVictims(t, "0s", l.step(0), "a")
	a.Usage.Freeable = 0
	o := l.step(100 * time.Millisecond)
	wantVictims(t, "unmapped", o)
	if got := l.status("a"); got != Unsettled {
		t.Errorf("unmapped: %s; want %s", got, Unsettled)
	}
	a.Usage.Memory = 200 * mi
	l.observe(signal.MemoryAvailable, 10*gi-150*mi)
	o = l.step(200 * time.Millisecond)
	if got := l.status("a"); got != Settled {
		t.Errorf("freed: %s; want %s", got, Settled)
	}
	wantVictims(t, "freed, and other memory has grown", o, "b")
	if got := o.Evict[0].Deficit; got != 50*mi {
		t.Errorf("deficit = %d; want %d: the rest of a is still in flight", got, 50*mi)
	}
}

// A trickle is no progress and does not delay the next victim.
func TestTrickleIsNoProgress(t *testing.T) {
	l := shortOfMemory(t, 500*mi, 1000*mi, 1000*mi)
	l.in.Measured = true
	wantVictims(t, "0s", l.step(0), "a")
	l.setFreeable("a", 999*mi)
	wantVictims(t, "1 MiB freed", l.step(900*time.Millisecond))
	l.setFreeable("a", 998*mi)
	o := l.step(time.Second)
	if got := l.status("a"); got != Stuck {
		t.Errorf("2 MiB freed in 1s: %s; want %s", got, Stuck)
	}
	wantVictims(t, "1s", o, "b")
}

// A pod that could not be stopped within its grace period is killed when a hard
// threshold is met, and no other pod is.
func TestEscalateFailedStop(t *testing.T) {
	for _, status := range []VictimStatus{Failed, Stuck} {
		state, in := restarted(t, status)
		state.Victims[0].Soft = true
		in.Pods = []Pod{aPod("hog", using(2*gi)), aPod("next", using(gi))}
		_, orders := Step(state, in, start.Add(time.Second))
		if len(orders.Escalate) != 1 || orders.Escalate[0] != "hog" || len(orders.Evict) != 0 {
			t.Errorf("%s: grace ended for %v, evictions %v; want hog and none", status, orders.Escalate, orders.Evict)
		}
	}
}

// Missing statistics do not mean that all memory was freed.
func TestNotSettledByMissingStatistics(t *testing.T) {
	l := shortOfMemory(t, 500*mi, 1000*mi)
	l.in.Measured = true
	wantVictims(t, "0s", l.step(0), "a")
	l.pod("a").HasStats = false
	l.step(100 * time.Millisecond)
	if got := l.status("a"); got != Unsettled {
		t.Errorf("no statistics: %s; want %s", got, Unsettled)
	}
}

// Falling usage is progress, however long it takes.
func TestFallingIsProgress(t *testing.T) {
	l := shortOfMemory(t, 500*mi, 1000*mi)
	l.in.Measured = true
	l.step(0)
	for i := range 10 {
		l.setFreeable("a", int64(980-20*i)*mi)
		l.step(time.Duration(i+1) * 900 * time.Millisecond)
		if got := l.status("a"); got != Unsettled {
			t.Fatalf("%d MiB freed: %s; want %s", 20*(i+1), got, Unsettled)
		}
	}
	l.setFreeable("a", 999*mi) // growth is no progress
	l.step(9500 * time.Millisecond)
	o := l.step(10 * time.Second) // 1 s after it last fell
	if got := l.status("a"); got != Stuck {
		t.Errorf("no progress: %s; want %s", got, Stuck)
	}
	if diff := cmp.Diff([]string{"a"}, o.Stuck); diff != "" {
		t.Errorf("stuck (-want +got):\n%s", diff)
	}
	if o := l.step(11 * time.Second); len(o.Stuck) != 0 {
		t.Errorf("stuck = %v a second time; want none", o.Stuck)
	}
}
