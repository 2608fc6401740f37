package evict

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/evictd/evictd/agent/signal"
)

func wantVictims(t *testing.T, at string, o Orders, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, victims(o)); diff != "" {
		t.Errorf("%s: victims (-want +got):\n%s", at, diff)
	}
}

func wantMet(t *testing.T, at string, o Orders, want ...signal.Signal) {
	t.Helper()
	if diff := cmp.Diff(want, o.Met); diff != "" {
		t.Errorf("%s: met (-want +got):\n%s", at, diff)
	}
}

func wantConditions(t *testing.T, at string, o Orders, want ...signal.Condition) {
	t.Helper()
	if diff := cmp.Diff(want, o.Conditions); diff != "" {
		t.Errorf("%s: conditions (-want +got):\n%s", at, diff)
	}
}

func wantReclaim(t *testing.T, at string, o Orders, want ReclaimKind) {
	t.Helper()
	var got ReclaimKind
	if o.Reclaim != nil {
		got = o.Reclaim.Kind
	}
	if got != want {
		t.Errorf("%s: reclaim = %q; want %q", at, got, want)
	}
}

func TestStepWithoutPressure(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.PIDAvailable, "100"))
	tl.in.Pods = []Pod{aPod("a", using(5*gi))}
	for _, tt := range []struct {
		name string
		set  func()
	}{
		{"nothing observed", func() {}},
		{"at the threshold", func() { tl.observe(signal.MemoryAvailable, gi) }},
		{"a signal without a threshold", func() { tl.observe(signal.NodeFsAvailable, 0) }},
	} {
		tt.set()
		o := tl.step(0)
		if diff := cmp.Diff(Orders{}, o, quantities, unexported); diff != "" {
			t.Errorf("%s: orders (-want +got):\n%s", tt.name, diff)
		}
		if diff := cmp.Diff(State{}, tl.state, cmpopts.IgnoreFields(State{}, "Readings")); diff != "" {
			t.Errorf("%s: state (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestHardOrder(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"))
	tl.in.Pods = []Pod{aPod("a", using(10*mi)), aPod("b", using(700*mi)), aPod("m", using(5*gi), func(p *Pod) { p.Mirror = true })}
	tl.observe(signal.MemoryAvailable, 700*mi)
	o := tl.step(0)
	want := []Order{{
		UID: "b", Pod: "default/b", Cause: "memory.available", Hard: true, Grace: time.Second,
		Threshold: gi, Available: 700 * mi, Deficit: 324 * mi, Expected: 700 * mi, Reason: "Evicted",
		Message: "The node was low on resource: memory. Threshold quantity: 1Gi, available: 700Mi. " +
			"Container c was using 700Mi, request is 0, has larger consumption of memory. ",
		Annotations: map[string]string{"offending_containers": "c", "offending_containers_usage": "700Mi", "starved_resource": "memory"},
	}}
	if diff := cmp.Diff(want, o.Evict); diff != "" {
		t.Errorf("orders (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"b", "a"}, ranking(o.Ranking)); diff != "" {
		t.Errorf("ranking (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Exempt{{Pod: "default/m", UID: "m", Reason: ReasonMirror}}, o.Exempt); diff != "" {
		t.Errorf("exempt (-want +got):\n%s", diff)
	}
	wantMet(t, "0s", o, signal.MemoryAvailable)
	wantConditions(t, "0s", o, signal.MemoryPressure)
	if o.ActedOn == nil || o.ActedOn.Key() != (ThresholdKey{Signal: signal.MemoryAvailable}) {
		t.Errorf("acted = %v; want the hard memory.available", o.ActedOn)
	}
}

// If hard thresholds of both memory signals are met, one decision covers the larger
// deficit.
func TestMemorySignalsAreOne(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.AllocatableMemoryAvailable, "1Gi"))
	tl.in.Pods = []Pod{aPod("a", using(300*mi)), aPod("b", using(200*mi)), aPod("c", using(100*mi))}
	tl.observe(signal.MemoryAvailable, 924*mi)            // 100 MiB short
	tl.observe(signal.AllocatableMemoryAvailable, 624*mi) // 400 MiB short
	o := tl.step(0)
	wantVictims(t, "0s", o, "a", "b")
	for _, e := range o.Evict {
		if e.Cause != "memory.available" || e.Deficit != 400*mi {
			t.Errorf("%s: cause %s, deficit %d; want memory.available and %d", e.Pod, e.Cause, e.Deficit, 400*mi)
		}
	}
	wantMet(t, "0s", o, signal.MemoryAvailable, signal.AllocatableMemoryAvailable)
	o = tl.step(500 * time.Millisecond)
	wantVictims(t, "500ms", o)

	tl.observe(signal.MemoryAvailable, 2*gi)
	o = tl.step(5 * time.Second) // both have settled, and kubepods' memory has not fallen
	wantVictims(t, "5s", o, "c")
	if got := o.Evict[0].Cause; got != "allocatableMemory.available" {
		t.Errorf("5s: cause = %s; want allocatableMemory.available", got)
	}
	if !o.Evict[0].Futile {
		t.Error("5s: futile = false although 100Mi do not cover 400Mi; want true")
	}
}

// If several memory thresholds are met, the first signal's is acted on, and of one
// signal's thresholds the first in the list.
func TestFirstThresholdDecides(t *testing.T) {
	pods := hard(signal.AllocatableMemoryAvailable, "1Gi")
	derived := hard(signal.AllocatableMemoryAvailable, "2Gi")
	derived.Derived = true
	for _, tc := range []struct {
		thresholds []Threshold
		want       ThresholdKey
	}{
		{[]Threshold{pods, hard(signal.MemoryAvailable, "1Gi")}, ThresholdKey{Signal: signal.MemoryAvailable}},
		{[]Threshold{pods, derived}, pods.Key()}, {[]Threshold{derived, pods}, derived.Key()},
	} {
		tl := newTimeline(t, tc.thresholds...)
		tl.in.Pods = []Pod{aPod("a", using(3*gi))}
		tl.observe(signal.MemoryAvailable, 900*mi)
		tl.observe(signal.AllocatableMemoryAvailable, 900*mi)
		if o := tl.step(0); o.ActedOn == nil || o.ActedOn.Key() != tc.want {
			t.Errorf("thresholds %v: acted on %v; want %v", tc.thresholds, o.ActedOn, tc.want)
		}
	}
}

func TestPercentageOfMemory(t *testing.T) {
	for _, tc := range []struct {
		available int64
		want      int64 // deficit
	}{{gi, 0}, {gi - 1, gi/2 + 1}} {
		tl := newTimeline(t, hard(signal.MemoryAvailable, "25%").reclaiming("12.5%"))
		tl.in.Pods = []Pod{aPod("a", using(3*gi))}
		tl.observe(signal.MemoryAvailable, tc.available)
		tl.in.Observations[signal.MemoryAvailable].Capacity = 4 * gi
		var got int64
		for _, e := range tl.step(0).Evict {
			got = e.Deficit
		}
		v := NewTable(&tl.in, &State{}, start).Decide(&tl.in.Observations, start)
		if got != tc.want || v.Deficit != tc.want {
			t.Errorf("%d of 4 GiB available: deficit = %d, of a Table %d; want %d", tc.available, got, v.Deficit, tc.want)
		}
	}
}

func TestMinReclaim(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "500Mi").reclaiming("100Mi"))
	tl.observe(signal.MemoryAvailable, 550*mi)
	wantMet(t, "above the threshold, never met", tl.step(0))
	tl.observe(signal.MemoryAvailable, 499*mi)
	wantMet(t, "below it", tl.step(time.Second), signal.MemoryAvailable)
	tl.observe(signal.MemoryAvailable, 599*mi)
	tl.in.Pods = []Pod{aPod("a", using(10*mi)), aPod("b", using(5*mi))}
	o := tl.step(2 * time.Second)
	wantMet(t, "below the target", o, signal.MemoryAvailable)
	wantVictims(t, "below the target", o, "a")
	if got := o.Evict[0].Deficit; got != mi {
		t.Errorf("deficit = %d; want %d", got, mi)
	}
	tl.observe(signal.MemoryAvailable, 600*mi)
	wantMet(t, "at the target", tl.step(3*time.Second))
	tl.observe(signal.MemoryAvailable, 599*mi)
	wantMet(t, "below the target, but no longer met", tl.step(4*time.Second))
}

func TestSoftGrace(t *testing.T) {
	tl := newTimeline(t, soft(signal.MemoryAvailable, "1Gi", 90*time.Second).reclaiming("1Gi"))
	tl.in.Policy.MaxPodGraceSeconds = 20
	tl.in.Pods = []Pod{aPod("a", using(10*gi), withGrace(30)), aPod("b", using(gi))}
	tl.observe(signal.MemoryAvailable, 900*mi)
	o := tl.step(0)
	wantVictims(t, "0s", o)
	wantMet(t, "0s", o, signal.MemoryAvailable)
	wantConditions(t, "0s", o, signal.MemoryPressure)
	if len(o.Waiting) > 0 {
		t.Errorf("0s: waiting = %v; want none for a soft threshold", o.Waiting)
	}

	tl.observe(signal.MemoryAvailable, gi) // the minimum reclaim has no effect before the grace period has passed
	wantMet(t, "10s", tl.step(10*time.Second))
	tl.observe(signal.MemoryAvailable, 900*mi)
	tl.step(11 * time.Second)
	wantVictims(t, "100.999s", tl.step(100999*time.Millisecond))
	o = tl.step(101 * time.Second)
	wantVictims(t, "101s", o, "a")
	if e := o.Evict[0]; e.Hard || e.Grace != 20*time.Second {
		t.Errorf("101s: hard %t, grace %v; want soft and 20s", e.Hard, e.Grace)
	}
	tl.observe(signal.MemoryAvailable, 1900*mi)
	wantMet(t, "until the minimum reclaim is back", tl.step(102*time.Second), signal.MemoryAvailable)
}

func TestGraceOfSoftVictims(t *testing.T) {
	for _, tt := range []struct {
		limit int64
		own   *int64
		want  time.Duration
	}{
		{0, new(int64(30)), time.Second},
		{60, new(int64(30)), 30 * time.Second},
		{10, new(int64(30)), 10 * time.Second},
		{10, new(int64(0)), time.Second},
		{10, nil, 10 * time.Second},
		{-1, new(int64(3600)), time.Hour},
		{-5, new(int64(0)), time.Second},
	} {
		tl := newTimeline(t, soft(signal.MemoryAvailable, "1Gi", time.Second))
		tl.in.Policy.MaxPodGraceSeconds = tt.limit
		tl.in.Pods = []Pod{aPod("a", using(gi), func(p *Pod) { p.TerminationGraceSeconds = tt.own })}
		tl.observe(signal.MemoryAvailable, 0)
		tl.step(0)
		o := tl.step(time.Second)
		if len(o.Evict) != 1 || o.Evict[0].Grace != tt.want {
			t.Errorf("at most %d, own %v: orders = %v; want one with grace %v", tt.limit, tt.own, o.Evict, tt.want)
		}
	}
}

func TestTransitionPeriod(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.PIDAvailable, "100"))
	tl.observe(signal.MemoryAvailable, 0)
	tl.observe(signal.PIDAvailable, 1000)
	wantConditions(t, "0s", tl.step(0), signal.MemoryPressure)
	tl.observe(signal.MemoryAvailable, 2*gi)
	wantConditions(t, "4m59s", tl.step(4*time.Minute+59*time.Second), signal.MemoryPressure)
	tl.observe(signal.PIDAvailable, 99)
	o := tl.step(5*time.Minute - time.Nanosecond)
	wantConditions(t, "just before 5m", o, signal.MemoryPressure, signal.PIDPressure)
	wantMet(t, "just before 5m", o, signal.PIDAvailable)
	wantConditions(t, "5m", tl.step(5*time.Minute), signal.PIDPressure)
}

func TestOrderOfSignals(t *testing.T) {
	tl := newTimeline(t,
		hard(signal.NodeFsInodesFree, "1000"), hard(signal.PIDAvailable, "1000"),
		soft(signal.MemoryAvailable, "1Gi", time.Second))
	tl.in.Pods = []Pod{aPod("a", withPIDs(900), withInodes(1), using(gi)), aPod("b", withPIDs(1), withInodes(900), using(2*gi)), aPod("c", using(3*gi))}
	for _, s := range []signal.Signal{signal.NodeFsInodesFree, signal.PIDAvailable, signal.MemoryAvailable} {
		tl.observe(s, 500)
	}
	tl.step(-time.Minute) // from here on the soft threshold's grace period has passed
	tl.state.Victims, tl.state.Backoffs, tl.state.Reclaim = nil, nil, nil

	o := tl.step(0)
	wantReclaim(t, "hard disk first", o, ReclaimContainers)
	wantVictims(t, "hard disk first", o)
	// PIDs do not wait for the reclaim; disk does.
	o = tl.step(0)
	wantReclaim(t, "while the reclaim is running", o, "")
	wantVictims(t, "while the reclaim is running", o, "a")
	tl.state.Victims = nil
	tl.observe(signal.PIDAvailable, 5000)
	wantVictims(t, "soft memory when no hard threshold is met", tl.step(0), "c")
}

func TestLimitsComeFirst(t *testing.T) {
	over := func(p *Pod) {
		p.Volumes = []Volume{{Name: "v", Type: EmptyDir, SizeLimit: qty("1"), Used: 2}}
	}
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.NodeFsAvailable, "10Gi"), hard(signal.PIDAvailable, "100"))
	tl.in.Pods = []Pod{
		aPod("b", over, using(100*mi)), aPod("static", over, func(p *Pod) { p.Static = true }), aPod("a", over), aPod("c", using(900*mi)), aPod("d", using(mi)),
	}
	tl.observe(signal.MemoryAvailable, 800*mi)
	tl.observe(signal.NodeFsAvailable, 0)
	tl.observe(signal.PIDAvailable, 0)
	o := tl.step(0)
	// The memory deficit is 124 MiB after b.
	wantVictims(t, "0s", o, "a", "b", "c")
	wantReclaim(t, "0s", o, "")
	e := o.Evict[0]
	want := Order{
		UID: "a", Pod: "default/a", Cause: CauseEmptyDirLimit, Hard: true, Grace: time.Second, Expected: 2, Reason: "Evicted",
		Message: `Usage of EmptyDir volume "v" exceeds the limit "1". `,
	}
	if diff := cmp.Diff(want, e); diff != "" {
		t.Errorf("0s: order (-want +got):\n%s", diff)
	}
	if got := o.Evict[2].Deficit; got != 124*mi {
		t.Errorf("0s: deficit = %d; want %d", got, 124*mi)
	}
	terminating := []Exempt{
		{Pod: "default/a", UID: "a", Reason: ReasonTerminating}, {Pod: "default/b", UID: "b", Reason: ReasonTerminating},
		{Pod: "default/static", UID: "static", Reason: ReasonStatic},
	}
	if diff := cmp.Diff(terminating, o.Exempt); diff != "" {
		t.Errorf("0s: exempt (-want +got):\n%s", diff)
	}
	o = tl.step(500 * time.Millisecond)
	wantVictims(t, "500ms", o)
	wantReclaim(t, "500ms", o, ReclaimContainers)
}

func TestLimitsPostponeDiskAndPIDs(t *testing.T) {
	tl := newTimeline(t, hard(signal.NodeFsAvailable, "10Gi"), hard(signal.PIDAvailable, "100"))
	over := func(p *Pod) { p.Containers[0].Resources.Limits.EphemeralStorage = qty("1") }
	tl.in.Pods = []Pod{aPod("a", over, withRootfs(2)), aPod("b", withPIDs(500), withRootfs(gi))}
	tl.observe(signal.PIDAvailable, 1)
	o := tl.step(0)
	wantVictims(t, "PIDs", o, "a")
	wantMet(t, "PIDs", o, signal.PIDAvailable)
	wantVictims(t, "PIDs, the next step", tl.step(0), "b")

	tl.observe(signal.PIDAvailable, 1000)
	tl.observe(signal.NodeFsAvailable, 0)
	tl.in.Pods = append(tl.in.Pods, aPod("c", over, withRootfs(2)))
	o = tl.step(time.Second)
	wantVictims(t, "disk", o, "c")
	wantReclaim(t, "disk", o, "")
	wantReclaim(t, "disk, the next step", tl.step(time.Second), ReclaimContainers)
}

func TestLimitsAlone(t *testing.T) {
	tl := newTimeline(t)
	tl.in.Pods = []Pod{aPod("a", withRootfs(2), func(p *Pod) { p.Containers[0].Resources.Limits.EphemeralStorage = qty("1") })}
	o := tl.step(0)
	wantVictims(t, "no thresholds at all", o, "a")
	wantVictims(t, "again", tl.step(time.Hour))
	if len(o.Ranking)+len(o.Exempt)+len(o.Met)+len(o.Conditions) != 0 {
		t.Errorf("orders = %+v; want only the eviction", o)
	}
}

func TestUnreadable(t *testing.T) {
	tl := newTimeline(t, soft(signal.MemoryAvailable, "1Gi", time.Minute), hard(signal.PIDAvailable, "100"))
	tl.in.Pods = []Pod{aPod("a", using(gi), withPIDs(200))}
	tl.observe(signal.MemoryAvailable, 0)
	tl.step(0)
	tl.in.Observations[signal.MemoryAvailable] = signal.Observation{Status: signal.Unreadable, Err: errors.New("no such file")}
	tl.observe(signal.PIDAvailable, 0)
	o := tl.step(time.Minute)
	wantVictims(t, "other signals", o, "a")
	wantMet(t, "other signals", o, signal.PIDAvailable)
	if diff := cmp.Diff([]signal.Signal{signal.MemoryAvailable}, o.Unreadable); diff != "" {
		t.Errorf("unreadable (-want +got):\n%s", diff)
	}
	wantConditions(t, "memory pressure within the transition period", o, signal.MemoryPressure, signal.PIDPressure)
	tl.observe(signal.MemoryAvailable, 0)
	tl.observe(signal.PIDAvailable, 1000)
	tl.in.Pods = append(tl.in.Pods, aPod("b", using(gi)))
	wantVictims(t, "the grace period starts again", tl.step(2*time.Minute))
	wantVictims(t, "and has passed", tl.step(3*time.Minute), "b")
}

func TestDeficitDoesNotOverflow(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "8Ei"))
	tl.in.Pods = []Pod{aPod("a", using(gi))}
	tl.observe(signal.MemoryAvailable, math.MinInt64)
	o := tl.step(0)
	wantVictims(t, "0s", o, "a")
	if e := o.Evict[0]; e.Deficit != math.MaxInt64 {
		t.Errorf("deficit = %d; want %d", e.Deficit, int64(math.MaxInt64))
	}
}

// If no pod is eligible for the first signal, the next one is acted on.
func TestNoPodEligible(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.PIDAvailable, "100"))
	tl.in.Pods = []Pod{aPod("m", using(5*gi), func(p *Pod) { p.Mirror = true })}
	tl.observe(signal.MemoryAvailable, 0)
	o := tl.step(0)
	wantVictims(t, "0s", o)
	if len(o.Ranking) != 0 || len(o.Exempt) != 1 || o.ActedOn != nil {
		t.Errorf("0s: ranking %v, exempt %v, acted %v; want only one exempt pod", o.Ranking, o.Exempt, o.ActedOn)
	}
	if len(o.Futile) != 1 || o.Futile[0].Deficit != gi || o.Futile[0].Coverage != 0 {
		t.Errorf("0s: futile = %+v; want a deficit of 1Gi and coverage 0", o.Futile)
	}
	// There is no back-off: a new pod can be evicted at once.
	tl.in.Pods = append(tl.in.Pods, aPod("a", using(2*gi)))
	wantVictims(t, "1ms", tl.step(time.Millisecond), "a")
}
