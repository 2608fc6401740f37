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
	tl := newTimeline(t, hard(signal.MemoryAvailable, "10Gi"))
	for i, n := range usage {
		tl.in.Pods = append(tl.in.Pods, aPod(string(rune('a'+i)), using(n)))
	}
	tl.observe(signal.MemoryAvailable, 10*gi-deficit)
	return tl
}

func TestUnsettledVictimsCount(t *testing.T) {
	tl := shortOfMemory(t, 500*mi, 300*mi, 300*mi, 300*mi, 300*mi)
	wantVictims(t, "0s", tl.step(0), "a", "b")
	o := tl.step(999 * time.Millisecond)
	wantVictims(t, "999ms", o)
	if len(o.Ranking)+len(o.Exempt) != 0 || o.ActedOn != nil {
		t.Errorf("999ms: ranking %v, exempt %v, acted %v; want none because victims cover the deficit", o.Ranking, o.Exempt, o.ActedOn)
	}
	wantMet(t, "999ms", o, signal.MemoryAvailable)
	tl.observe(signal.MemoryAvailable, 10*gi-700*mi)
	wantVictims(t, "deficit larger than their memory", tl.step(999*time.Millisecond), "c")
	tl.observe(signal.MemoryAvailable, 10*gi-500*mi)
	wantVictims(t, "c is still in flight", tl.step(1500*time.Millisecond), "d") // a and b have settled
}

func TestGoneVictimsDoNotCount(t *testing.T) {
	tl := shortOfMemory(t, 300*mi, 300*mi, 200*mi, 200*mi)
	wantVictims(t, "0s", tl.step(0), "a")
	tl.remove("a")
	wantVictims(t, "1ms", tl.step(time.Millisecond), "b", "c")
	if len(tl.state.Victims) != 2 {
		t.Errorf("victims = %v; want b and c", tl.state.Victims)
	}
}

// A pod that a runtime started again with the same UID is not being evicted.
func TestStartedAgain(t *testing.T) {
	tl := shortOfMemory(t, 300*mi, 300*mi)
	tl.pod("a").LastStart = 7
	wantVictims(t, "0s", tl.step(0), "a")
	wantVictims(t, "the same", tl.step(10*time.Second))
	tl.pod("a").LastStart = 8
	wantVictims(t, "started again", tl.step(11*time.Second), "a")
}

func TestMaxVictims(t *testing.T) {
	for _, tt := range []struct {
		limit int
		want  []string
	}{{1, []string{"a"}}, {3, []string{"a", "b", "c"}}, {9, []string{"a", "b", "c", "d"}}} {
		tl := shortOfMemory(t, 350*mi, 100*mi, 100*mi, 100*mi, 100*mi, 100*mi)
		tl.in.Policy.MaxVictims = tt.limit
		wantVictims(t, fmt.Sprint("at most ", tt.limit), tl.step(0), tt.want...)
	}
}

// An unsettled victim counts for every signal, with its usage of that signal's
// quantity.
func TestVictimsCountForAllSignals(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.PIDAvailable, "1000"))
	tl.in.Pods = []Pod{aPod("a", using(gi), withPIDs(400)), aPod("b", withPIDs(500)), aPod("c", withPIDs(300))}
	tl.observe(signal.MemoryAvailable, 900*mi)
	tl.observe(signal.PIDAvailable, 1000)
	wantVictims(t, "memory", tl.step(0), "a")
	tl.observe(signal.PIDAvailable, 600)
	wantVictims(t, "a's PIDs cover it", tl.step(time.Millisecond))
	tl.observe(signal.PIDAvailable, 599)
	o := tl.step(2 * time.Millisecond)
	wantVictims(t, "one PID missing", o, "b")
	if got := o.Evict[0].Deficit; got != 1 {
		t.Errorf("deficit = %d; want 1", got)
	}
}

// A victim in flight covers PIDs with its PIDs, however much memory it still uses.
func TestVictimsCoverByUsageOfSignal(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.PIDAvailable, "1000"))
	tl.in.Measured = true
	tl.in.Pods = []Pod{aPod("a", using(gi), withPIDs(400)), aPod("b", withPIDs(500))}
	tl.observe(signal.MemoryAvailable, 900*mi)
	tl.observe(signal.PIDAvailable, 1000)
	wantVictims(t, "memory", tl.step(0), "a")
	tl.observe(signal.PIDAvailable, 599)
	o := tl.step(time.Millisecond)
	wantVictims(t, "one PID missing", o, "b")
	if got := o.Evict[0].Deficit; got != 1 {
		t.Errorf("deficit = %d; want 1", got)
	}
}

// If usage is not measured, a victim in flight covers what it would free now.
func TestUnmeasuredVictimCovers(t *testing.T) {
	tl := shortOfMemory(t, 100*mi, 200*mi, 150*mi)
	wantVictims(t, "0s", tl.step(0), "a")
	tl.pod("a").Usage.Freeable = 99 * mi
	o := tl.step(time.Millisecond)
	wantVictims(t, "a frees less", o, "b")
	if got := o.Evict[0].Deficit; got != mi {
		t.Errorf("deficit = %d; want 1 MiB", got)
	}
}

// Stuck pods that exceeded their own limits do not make a disk signal futile.
func TestStuckOverOwnLimit(t *testing.T) {
	tl := newTimeline(t, hard(signal.NodeFsAvailable, "10Gi"))
	tl.in.Measured = true
	limited := func(name string) Pod {
		return aPod(name, withRootfs(2*gi), func(p *Pod) { p.Containers[0].Resources.Limits.EphemeralStorage = qty("1Gi") })
	}
	tl.in.Pods = []Pod{limited("a"), limited("b"), aPod("c", withRootfs(gi))}
	tl.observe(signal.NodeFsAvailable, 10*gi)
	wantVictims(t, "over their limits", tl.step(0), "a", "b")
	tl.step(time.Second)
	if a, b := tl.status("a"), tl.status("b"); a != Stuck || b != Stuck {
		t.Fatalf("the pods are %s and %s; want both %s", a, b, Stuck)
	}
	tl.in.Policy.Layout = SplitFs
	tl.observe(signal.NodeFsAvailable, 10*gi-mi)
	tl.step(2 * time.Second)
	o := tl.step(3*time.Second, Outcome{}) // containers have been reclaimed
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
		tl := shortOfMemory(t, 100*mi, 200*mi)
		tl.in.Measured = tc.measured
		tl.state.Victims = []Victim{{
			UID: "a", Pod: "default/a", Signal: ThresholdKey{Signal: signal.MemoryAvailable}, Status: Settled,
			Expected: 200 * mi, Lowest: 200 * mi, ProgressAt: start.Add(-tc.progress), Due: start.Add(-tc.due),
		}}
		if o := tl.step(0); len(o.Evict) == 1 != tc.want {
			t.Errorf("%+v: evicted = %v; want it chosen: %t", tc, victims(o), tc.want)
		}
	}
}

// If usage is not measured, a settled victim is assumed to be gone and has no grace
// period to end.
func TestEscalateSettled(t *testing.T) {
	for _, measured := range []bool{false, true} {
		tl := shortOfMemory(t, 100*mi, 200*mi)
		tl.in.Measured = measured
		tl.state.Victims = []Victim{{UID: "a", Pod: "default/a", Signal: ThresholdKey{Signal: signal.MemoryAvailable, Soft: true}, Soft: true, Status: Settled, ProgressAt: start, Due: start}}
		if o := tl.step(0); len(o.Escalate) == 1 != measured {
			t.Errorf("measured %t: grace ended for %v; want a: %t", measured, o.Escalate, measured)
		}
	}
}

func TestSoftVictimsSettleAfterTheirGrace(t *testing.T) {
	tl := newTimeline(t, soft(signal.MemoryAvailable, "1Gi", time.Second))
	tl.in.Policy.MaxPodGraceSeconds = 30
	tl.in.Pods = []Pod{aPod("a", using(gi)), aPod("b", using(gi))}
	tl.observe(signal.MemoryAvailable, 900*mi)
	tl.step(0)
	wantVictims(t, "1s", tl.step(time.Second), "a")
	wantVictims(t, "31.999s", tl.step(31999*time.Millisecond))
	wantVictims(t, "32s", tl.step(32*time.Second), "b")
}

func TestHardThresholdEndsGrace(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.PIDAvailable, "10"), soft(signal.MemoryAvailable, "2Gi", time.Second))
	tl.in.Policy.MaxPodGraceSeconds = 30
	tl.in.Pods = []Pod{aPod("a", using(3*gi)), aPod("b", using(3*gi))}
	tl.observe(signal.MemoryAvailable, 1500*mi)
	tl.observe(signal.PIDAvailable, 100)
	tl.step(0)
	wantVictims(t, "1s", tl.step(time.Second), "a")
	tl.observe(signal.PIDAvailable, 1)
	if o := tl.step(1500 * time.Millisecond); len(o.Escalate) != 0 {
		t.Errorf("another signal's hard threshold ends the grace of %v; want none", o.Escalate)
	}
	tl.state.Victims = tl.state.Victims[:1] // without the victim for PIDs
	tl.state.Backoffs = nil
	tl.observe(signal.PIDAvailable, 100)
	tl.observe(signal.MemoryAvailable, 1000*mi)
	o := tl.step(2 * time.Second)
	if diff := cmp.Diff([]string{"a"}, o.Escalate); diff != "" {
		t.Errorf("2s: grace ended (-want +got):\n%s", diff)
	}
	wantVictims(t, "2s", o) // a's memory covers the deficit and is freed at once now
	if v := tl.state.Victims[0]; v.Soft || !v.Due.Equal(start.Add(2*time.Second)) {
		t.Errorf("2s: victim = %+v; want it hard and due now", v)
	}
	if o := tl.step(2100 * time.Millisecond); len(o.Escalate) != 0 {
		t.Errorf("2.1s: grace ended for %v again; want none", o.Escalate)
	}
	wantVictims(t, "3s", tl.step(3*time.Second), "b")
}

// setFreeable sets the memory of the pod, all of which a kill frees.
func (tl *timeline) setFreeable(uid string, freeable int64) {
	p := tl.pod(uid)
	p.Usage.Freeable, p.Usage.Memory = freeable, freeable
}

func (tl *timeline) status(uid string) VictimStatus {
	if v := tl.state.victim(uid); v != nil {
		return v.Status
	}
	return ""
}

func TestSettledByFreedMemory(t *testing.T) {
	tl := shortOfMemory(t, 500*mi, 1000*mi, 1000*mi)
	tl.in.Measured = true
	wantVictims(t, "0s", tl.step(0), "a")
	tl.setFreeable("a", 201*mi)
	tl.observe(signal.MemoryAvailable, 10*gi+299*mi)
	tl.step(100 * time.Millisecond)
	if got := tl.status("a"); got != Unsettled {
		t.Errorf("79.9%% freed: %s; want %s", got, Unsettled)
	}
	tl.setFreeable("a", 200*mi)
	tl.observe(signal.MemoryAvailable, 10*gi-500*mi)
	o := tl.step(200 * time.Millisecond)
	if got := tl.status("a"); got != Settled {
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
	tl := shortOfMemory(t, 950*mi, 1000*mi, 1000*mi)
	tl.in.Measured = true
	wantVictims(t, "0s", tl.step(0), "a")
	tl.setFreeable("a", 200*mi)
	tl.observe(signal.MemoryAvailable, 10*gi-150*mi)
	wantVictims(t, "80% freed", tl.step(100*time.Millisecond))
	wantVictims(t, "usage does not change", tl.step(1099*time.Millisecond))
	wantVictims(t, "usage has not changed for the settle timeout", tl.step(1100*time.Millisecond), "b")
}

// Memory that is no longer anonymous but not freed yet is still in flight.
func TestUnmappedHugePages(t *testing.T) {
	tl := shortOfMemory(t, 500*mi, 1000*mi, 1000*mi)
	tl.in.Measured = true
	a := tl.pod("a")
	a.Usage.Memory += 100 * mi // that a kill does not free
	wantVictims(t, "0s", tl.step(0), "a")
	a.Usage.Freeable = 0
	o := tl.step(100 * time.Millisecond)
	wantVictims(t, "unmapped", o)
	if got := tl.status("a"); got != Unsettled {
		t.Errorf("unmapped: %s; want %s", got, Unsettled)
	}
	a.Usage.Memory = 200 * mi
	tl.observe(signal.MemoryAvailable, 10*gi-150*mi)
	o = tl.step(200 * time.Millisecond)
	if got := tl.status("a"); got != Settled {
		t.Errorf("freed: %s; want %s", got, Settled)
	}
	wantVictims(t, "freed, and other memory has grown", o, "b")
	if got := o.Evict[0].Deficit; got != 50*mi {
		t.Errorf("deficit = %d; want %d: the rest of a is still in flight", got, 50*mi)
	}
}

// A trickle is no progress and does not delay the next victim.
func TestTrickleIsNoProgress(t *testing.T) {
	tl := shortOfMemory(t, 500*mi, 1000*mi, 1000*mi)
	tl.in.Measured = true
	wantVictims(t, "0s", tl.step(0), "a")
	tl.setFreeable("a", 999*mi)
	wantVictims(t, "1 MiB freed", tl.step(900*time.Millisecond))
	tl.setFreeable("a", 998*mi)
	o := tl.step(time.Second)
	if got := tl.status("a"); got != Stuck {
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
	tl := shortOfMemory(t, 500*mi, 1000*mi)
	tl.in.Measured = true
	wantVictims(t, "0s", tl.step(0), "a")
	tl.pod("a").HasStats = false
	tl.step(100 * time.Millisecond)
	if got := tl.status("a"); got != Unsettled {
		t.Errorf("no statistics: %s; want %s", got, Unsettled)
	}
}

// Falling usage is progress, however long it takes.
func TestFallingIsProgress(t *testing.T) {
	tl := shortOfMemory(t, 500*mi, 1000*mi)
	tl.in.Measured = true
	tl.step(0)
	for i := range 10 {
		tl.setFreeable("a", int64(980-20*i)*mi)
		tl.step(time.Duration(i+1) * 900 * time.Millisecond)
		if got := tl.status("a"); got != Unsettled {
			t.Fatalf("%d MiB freed: %s; want %s", 20*(i+1), got, Unsettled)
		}
	}
	tl.setFreeable("a", 999*mi) // growth is no progress
	tl.step(9500 * time.Millisecond)
	o := tl.step(10 * time.Second) // 1 s after it last fell
	if got := tl.status("a"); got != Stuck {
		t.Errorf("no progress: %s; want %s", got, Stuck)
	}
	if diff := cmp.Diff([]string{"a"}, o.Stuck); diff != "" {
		t.Errorf("stuck (-want +got):\n%s", diff)
	}
	if o := tl.step(11 * time.Second); len(o.Stuck) != 0 {
		t.Errorf("stuck = %v a second time; want none", o.Stuck)
	}
}
