package evict

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/signal"
)

// crossingStep is one Step of a timeline: the available memory and the active file
// cache that counts as used, in MiB, and the expected result.
type crossingStep struct {
	at               time.Duration
	available, cache int64
	want             string // "" (not met), "waits" or "evicts"
}

// TestFileCacheCrossing tests the rule on crossings that file cache causes, with a
// threshold of 1000Mi. Each case fails if one of the rule's conditions is left out.
func TestFileCacheCrossing(t *testing.T) {
	const ms = time.Millisecond
	for _, tc := range []struct {
		name    string
		stalled bool
		steps   []crossingStep
	}{
		{name: "other memory grows, cache is large", steps: []crossingStep{
			{0, 2000, 4000, ""}, {900 * ms, 1001, 4000, ""}, {1000 * ms, 999, 4000, "evicts"},
		}},
		{name: "file cache alone", steps: []crossingStep{
			{0, 2000, 1000, ""}, {1000 * ms, 999, 2001, "waits"}, {10999 * ms, 900, 2100, "waits"}, {11000 * ms, 900, 2100, "evicts"},
		}},
		{name: "no earlier reading", steps: []crossingStep{{0, 999, 4000, "waits"}}},
		{name: "no earlier reading, then other memory grows", steps: []crossingStep{
			{0, 999, 4000, "waits"}, {1 * ms, 968, 4000, "waits"}, {2 * ms, 967, 4000, "evicts"},
		}},
		{name: "growth below the noise floor", steps: []crossingStep{{0, 1030, 4000, ""}, {1000 * ms, 999, 4000, "waits"}}},
		{name: "growth at the noise floor", steps: []crossingStep{{0, 1031, 4000, ""}, {1000 * ms, 999, 4000, "evicts"}}},
		{name: "cache grows more than other memory", steps: []crossingStep{{0, 1101, 4000, ""}, {1000 * ms, 999, 4051, "waits"}}},
		{name: "other memory grows more than cache", steps: []crossingStep{{0, 1101, 4000, ""}, {1000 * ms, 999, 4050, "evicts"}}},
		{name: "cache shrinks", steps: []crossingStep{{0, 1001, 4000, ""}, {1000 * ms, 999, 3970, "evicts"}}},
		{name: "all cache is less than the deficit", steps: []crossingStep{{0, 999, 1, "waits"}, {1 * ms, 998, 1, "evicts"}}},
		{name: "no cache", steps: []crossingStep{{0, 1000, 0, ""}, {1000 * ms, 999, 0, "evicts"}}},
		{name: "reclaim stalls", stalled: true, steps: []crossingStep{{0, 1000, 4000, ""}, {1000 * ms, 999, 4001, "evicts"}}},
		{name: "the reference is at least 1 s old", steps: []crossingStep{ // other memory shrank after that
			{0, 2000, 4000, ""}, {100 * ms, 1010, 4000, ""}, {1100 * ms, 999, 4000, "waits"},
		}},
		{name: "the oldest if none is 1 s old", steps: []crossingStep{
			{0, 1100, 4000, ""}, {100 * ms, 1010, 4000, ""}, {999 * ms, 999, 4000, "evicts"},
		}},
		{name: "no reference older than 10 s", steps: []crossingStep{
			{0, 1100, 4000, ""}, {10000 * ms, 1010, 4000, ""}, {10001 * ms, 999, 4000, "waits"},
		}},
		{name: "an older reference if it is the only one", steps: []crossingStep{
			{0, 1100, 4000, ""}, {60000 * ms, 999, 4000, "evicts"},
		}},
		{name: "a reading below the threshold is no reference", steps: []crossingStep{
			{0, 1010, 4000, ""}, {100 * ms, 2000, 4000, ""}, {200 * ms, 990, 5010, "waits"}, {1300 * ms, 1010, 4990, ""}, {2301 * ms, 999, 5000, "waits"},
		}},
		{name: "other memory grows slowly, cache fast", steps: []crossingStep{
			{0, 1500, 1000, ""}, {1000 * ms, 990, 1500, "waits"}, {2000 * ms, 880, 1600, "waits"}, {5000 * ms, 550, 1900, "waits"}, {10999 * ms, 300, 2100, "waits"},
		}},
		{name: "other memory grows while a crossing waits", steps: []crossingStep{
			{0, 1500, 1000, ""}, {1000 * ms, 990, 1510, "waits"}, {1005 * ms, 960, 1509, "waits"}, {1010 * ms, 950, 1510, "evicts"},
		}},
		{name: "compared with 1 s ago, not only with the crossing", steps: []crossingStep{ // other memory shrank first
			{0, 1500, 1000, ""}, {1000 * ms, 990, 1510, "waits"}, {2000 * ms, 990, 1810, "waits"}, {2500 * ms, 990, 1810, "waits"},
			{3000 * ms, 950, 1810, "evicts"},
		}},
		{name: "active until it is no longer met", steps: []crossingStep{
			{0, 2000, 4000, ""}, {1000 * ms, 999, 4000, "evicts"}, {1001 * ms, 999, 4001, "evicts"}, {1002 * ms, 1000, 4000, ""}, {2100 * ms, 999, 4001, "waits"},
		}},
		{name: "active however long it lasts", steps: []crossingStep{
			{0, 2000, 4000, ""}, {1000 * ms, 999, 4000, "evicts"}, {5000 * ms, 999, 4001, "evicts"},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tl := newTimeline(t, hard(signal.MemoryAvailable, "1000Mi"))
			tl.in.ReclaimStalled = tc.stalled
			table := NewTable(&tl.in, &tl.state, start)
			for _, step := range tc.steps {
				tl.observe(signal.MemoryAvailable, step.available*mi)
				tl.in.Observations[signal.MemoryAvailable].Cache = step.cache * mi
				o := tl.step(step.at)
				if got := resultOf(len(o.Met) > 0, len(o.Waiting) > 0); got != step.want {
					t.Errorf("Step at %v: %q; want %q", step.at, got, step.want)
				}
				v := table.Decide(&tl.in.Observations, start.Add(step.at))
				if got := resultOf(v.Reason != Recovered, v.Reason == Waiting); got != step.want {
					t.Errorf("Table.Decide at %v: %q; want %q", step.at, got, step.want)
				}
			}
		})
	}
}

// A stall of reclaim at the limit of all pods affects only allocatableMemory.available.
func TestPodsReclaimStalled(t *testing.T) {
	for _, tc := range []struct {
		signal     signal.Signal
		node, pods bool
		want       string
	}{
		{signal.MemoryAvailable, false, true, "waits"},
		{signal.MemoryAvailable, true, false, "evicts"},
		{signal.AllocatableMemoryAvailable, false, false, "waits"},
		{signal.AllocatableMemoryAvailable, false, true, "evicts"},
		{signal.AllocatableMemoryAvailable, true, false, "evicts"},
	} {
		tl := newTimeline(t, hard(tc.signal, "1000Mi"))
		tl.in.ReclaimStalled, tl.in.PodsReclaimStalled = tc.node, tc.pods
		table := NewTable(&tl.in, &tl.state, start)
		tl.observe(tc.signal, 999*mi)
		tl.in.Observations[tc.signal].Cache = 4000 * mi
		o := tl.step(0)
		if got := resultOf(len(o.Met) > 0, len(o.Waiting) > 0); got != tc.want {
			t.Errorf("%s, reclaim stalled: node %t, pods %t: Step %q; want %q", tc.signal, tc.node, tc.pods, got, tc.want)
		}
		v := table.Decide(&tl.in.Observations, start)
		if got := resultOf(v.Reason != Recovered, v.Reason == Waiting); got != tc.want {
			t.Errorf("%s, reclaim stalled: node %t, pods %t: Table.Decide %q; want %q", tc.signal, tc.node, tc.pods, got, tc.want)
		}
	}
}

func resultOf(met, waiting bool) string {
	switch {
	case waiting:
		return "waits"
	case met:
		return "evicts"
	}
	return ""
}

// The sampler compares its own readings. Its finding that a crossing must be acted on
// ends the wait in the decision that it is given to, if the threshold is met there.
func TestLaneMakesStepActNow(t *testing.T) {
	memory, pods := ThresholdKey{Signal: signal.MemoryAvailable}, ThresholdKey{Signal: signal.AllocatableMemoryAvailable, Derived: true}
	low := func(tl *timeline) {
		tl.observe(signal.MemoryAvailable, 999*mi)
		tl.in.Observations[signal.MemoryAvailable].Cache = 4000 * mi
	}
	for _, tc := range []struct {
		name   string
		actNow []ThresholdKey
		waits  bool
	}{
		{"none", nil, true}, {"another threshold", []ThresholdKey{pods}, true}, {"this one", []ThresholdKey{memory}, false},
	} {
		tl := newTimeline(t, hard(signal.MemoryAvailable, "1000Mi"))
		low(tl)
		tl.in.ActNow = tc.actNow
		if o := tl.step(0); len(o.Waiting) > 0 != tc.waits {
			t.Errorf("act now on %s: Step's waiting = %v; want waiting: %t", tc.name, o.Waiting, tc.waits)
		}
	}
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1000Mi"))
	tl.observe(signal.MemoryAvailable, 1001*mi)
	table := NewTable(&tl.in, &tl.state, start)
	decide := func(at time.Duration) VerdictReason {
		v := table.Decide(&tl.in.Observations, start.Add(at))
		return v.Reason
	}
	table.ActNow(signal.MemoryAvailable)
	if got := decide(0); got != Recovered {
		t.Errorf("act now, above the threshold: Decide() = %q; want %q", got, Recovered)
	}
	table.ActNow(signal.MemoryAvailable)
	tl.in.Observations[signal.MemoryAvailable] = signal.Observation{Status: signal.Unreadable}
	if got := decide(0); got != Recovered {
		t.Errorf("act now, unreadable: Decide() = %q; want %q", got, Recovered)
	}
	low(tl)
	if got := decide(1); got != Waiting {
		t.Errorf("next crossing: Decide() = %q; want %q", got, Waiting)
	}
	table.ActNow(signal.MemoryAvailable)
	if got := decide(2); got != NoneEligible {
		t.Errorf("act now while it waits: Decide() = %q; want %q", got, NoneEligible)
	}
}

// Each threshold is compared with readings of its own signal.
func TestReadingsPerThreshold(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1000Mi"), hard(signal.AllocatableMemoryAvailable, "1000Mi"))
	tl.observe(signal.MemoryAvailable, 2000*mi)
	tl.in.Observations[signal.MemoryAvailable].Cache = 1000 * mi
	tl.observe(signal.AllocatableMemoryAvailable, 2000*mi)
	tl.in.Observations[signal.AllocatableMemoryAvailable].Cache = 4000 * mi
	tl.step(0)
	tl.in.Observations[signal.MemoryAvailable].Available, tl.in.Observations[signal.MemoryAvailable].Cache = 999*mi, 2001*mi
	if o := tl.step(time.Second); len(o.Waiting) != 1 {
		t.Errorf("waiting = %v; want memory.available to wait", o.Waiting)
	}
}

// Readings of different sources are not compared, because they may be seconds apart.
func TestSourcesAreNotCompared(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1000Mi"))
	tl.observe(signal.MemoryAvailable, 2000*mi)
	tl.in.Observations[signal.MemoryAvailable].Cache = 4000 * mi
	tl.step(0)
	tl.in.Observations[signal.MemoryAvailable].Source = signal.Sampler
	tl.in.Observations[signal.MemoryAvailable].Available = 999 * mi
	if o := tl.step(time.Second); len(o.Waiting) != 1 {
		t.Errorf("crossing read from another source: waiting = %v; want memory.available", o.Waiting)
	}
	tl.in.Observations[signal.MemoryAvailable].Source = signal.Files
	tl.in.Observations[signal.MemoryAvailable].Available = 900 * mi
	if o := tl.step(2 * time.Second); len(o.Waiting) != 1 {
		t.Errorf("growth between two sources: waiting = %v; want memory.available", o.Waiting)
	}
}

// The daemon's growth floor is twice the drift of per-CPU counters, but at least 32 MiB
// and at most half of the threshold.
func TestGrowthFloor(t *testing.T) {
	for _, tc := range []struct {
		threshold   string
		drift, grew int64 // in MiB
		waits       bool
	}{
		{"1000Mi", 0, 31, true}, {"1000Mi", 0, 32, false}, {"1000Mi", 50, 99, true}, {"1000Mi", 50, 100, false},
		{"40Mi", 0, 19, true}, {"40Mi", 0, 20, false}, {"40Mi", 500, 20, false},
	} {
		tl := newTimeline(t, hard(signal.MemoryAvailable, tc.threshold))
		tl.in.Measured, tl.in.CounterDrift = true, tc.drift*mi
		at := tl.in.Policy.Thresholds[0].Value.Amount(0)
		tl.observe(signal.MemoryAvailable, at-1+tc.grew*mi)
		tl.in.Observations[signal.MemoryAvailable].Cache = 4000 * mi
		tl.step(0)
		tl.in.Observations[signal.MemoryAvailable].Available = at - 1
		if o := tl.step(time.Second); len(o.Waiting) > 0 != tc.waits {
			t.Errorf("threshold %s, drift %d MiB, grown %d MiB: waiting = %v; want waiting: %t", tc.threshold, tc.drift, tc.grew, o.Waiting, tc.waits)
		}
	}
}

// Observations of a scenario have no per-CPU counters.
func TestGrowthFloorUnmeasured(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "40Mi"))
	tl.observe(signal.MemoryAvailable, 70*mi)
	tl.in.Observations[signal.MemoryAvailable].Cache = 4000 * mi
	tl.step(0)
	tl.in.Observations[signal.MemoryAvailable].Available = 39 * mi
	if o := tl.step(time.Second); len(o.Waiting) == 0 {
		t.Error("other memory has grown by 31 MiB: waiting = []; want memory.available")
	}
}

// After a restart a crossing continues to wait.
func TestWaitSurvivesRestart(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1000Mi"))
	tl.observe(signal.MemoryAvailable, 999*mi)
	tl.in.Observations[signal.MemoryAvailable].Cache = 4000 * mi
	tl.step(0)
	tl.state.Readings = nil
	waiting := tl.state
	wantVictims(t, "still waiting", tl.step(5*time.Second))
	tl.state = waiting
	tl.in.Pods = []Pod{aPod("a", using(gi))}
	wantVictims(t, "10 s since the crossing", tl.step(10*time.Second), "a")
	tl.state = waiting.Clone()
	tl.state.Timers[0].Crossing = signal.MemoryReading{} // from a version that did not store it
	wantVictims(t, "10 s since the timer started", tl.step(10*time.Second), "a")
	tl.state = waiting
	tl.in.Observations[signal.MemoryAvailable].Available = 960 * mi
	wantVictims(t, "other memory has grown since the crossing", tl.step(time.Second), "a")
}

// Other memory that was in use for less than a second does not hide growth after it. In a
// scenario each observation counts as it is.
func TestReferenceIsLeastOfASecond(t *testing.T) {
	for _, tc := range []struct {
		name     string
		measured bool
		before   []int64 // available, in MiB, every 300 ms
		waits    bool
	}{
		{"transient process", true, []int64{1100, 1020, 1100, 1100, 1100}, false},
		{"transient process in a scenario", false, []int64{1100, 1020, 1100, 1100, 1100}, true},
		{"after a release", true, []int64{900, 1020, 1100, 1100, 1100}, false},
		{"a process of more than a second", true, []int64{1100, 1020, 1020, 1020, 1020}, true},
	} {
		tl := newTimeline(t, hard(signal.MemoryAvailable, "1000Mi"))
		tl.in.Measured = tc.measured
		observe := func(at time.Duration, available int64) Orders {
			tl.observe(signal.MemoryAvailable, available*mi)
			tl.in.Observations[signal.MemoryAvailable].Cache = 4000 * mi
			return tl.step(at)
		}
		for i, available := range tc.before {
			observe(time.Duration(i)*300*time.Millisecond, available)
		}
		// The reference is the reading at 300 ms.
		if o := observe(1350*time.Millisecond, 999); len(o.Waiting) > 0 != tc.waits {
			t.Errorf("%s: waiting = %v; want waiting: %t", tc.name, o.Waiting, tc.waits)
		}
	}
}

// A crossing that heavy reading brought waits 10 s, although a process next to it exits and
// is started again all the time.
func TestRestartsBesideReadingDoNotAnswer(t *testing.T) {
	for offset := range 15 {
		tl := newTimeline(t, hard(signal.MemoryAvailable, "1000Mi"))
		tl.in.Measured = true
		crossed := time.Duration(-1)
		for i := range 200 {
			at := time.Duration(i) * 100 * time.Millisecond
			cache, other := int64(20*i), int64(48)
			if (i+offset)%15 == 0 {
				other = 0
			}
			tl.observe(signal.MemoryAvailable, (2000-cache-other)*mi)
			tl.in.Observations[signal.MemoryAvailable].Cache = cache * mi
			o := tl.step(at)
			switch met := 2000-cache-other < 1000; {
			case !met:
				crossed = -1
			case crossed < 0:
				crossed = at
			}
			if crossed >= 0 && at < crossed+10*time.Second && len(o.Waiting) == 0 {
				t.Fatalf("offset %d: answered %v after the crossing; want it to wait 10 s", offset, at-crossed)
			}
		}
	}
}

func TestReadingsAreBounded(t *testing.T) {
	var r signal.Readings
	at := start
	for i := range 100_000 {
		at = at.Add(time.Duration(1+i%7) * time.Millisecond)
		r.Add(signal.MemoryReading{}, signal.MemoryReading{Time: at, Other: int64(i)}, false)
	}
	at = at.Add(time.Millisecond)
	now := signal.MemoryReading{Time: at}
	first := r.Add(signal.MemoryReading{}, now, true)
	later := r.Add(now, now, true)
	got := at.Sub(first.Reference.Time)
	if got < time.Second || got > time.Second+100*time.Millisecond {
		t.Errorf("age of the reference = %v; want 1s to 1.1s", got)
	}
	if diff := cmp.Diff(first.Reference, later.Previous); diff != "" {
		t.Errorf("reference and recent reading differ although the threshold was not met before (-reference +recent):\n%s", diff)
	}
}
