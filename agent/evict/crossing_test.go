package evict

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/signal"
)

// reading is a step of a timeline: what is available and what of the rest is active
// file cache, in MiB, and what is to come of it.
type reading struct {
	at               time.Duration
	available, cache int64
	want             string // "": above; "waits" or "evicts"
}

// TestWhatGrew follows the rule on crossings that file cache brings, on a threshold
// of 1000Mi. Each case fails if one of the rule's conditions is left out.
func TestWhatGrew(t *testing.T) {
	const ms = time.Millisecond
	for _, tc := range []struct {
		name    string
		stalled bool
		steps   []reading
	}{
		{name: "a hog beside an old cache", steps: []reading{
			{0, 2000, 4000, ""}, {900 * ms, 1001, 4000, ""}, {1000 * ms, 999, 4000, "evicts"},
		}},
		{name: "file cache alone", steps: []reading{
			{0, 2000, 1000, ""}, {1000 * ms, 999, 2001, "waits"}, {10999 * ms, 900, 2100, "waits"}, {11000 * ms, 900, 2100, "evicts"},
		}},
		{name: "no reading before", steps: []reading{{0, 999, 4000, "waits"}}},
		{name: "no reading before, then a hog", steps: []reading{
			{0, 999, 4000, "waits"}, {1 * ms, 968, 4000, "waits"}, {2 * ms, 967, 4000, "evicts"},
		}},
		{name: "less than what is noise", steps: []reading{{0, 1030, 4000, ""}, {1000 * ms, 999, 4000, "waits"}}},
		{name: "just more than what is noise", steps: []reading{{0, 1031, 4000, ""}, {1000 * ms, 999, 4000, "evicts"}}},
		{name: "more cache than other memory", steps: []reading{{0, 1101, 4000, ""}, {1000 * ms, 999, 4051, "waits"}}},
		{name: "more other memory than cache", steps: []reading{{0, 1101, 4000, ""}, {1000 * ms, 999, 4050, "evicts"}}},
		{name: "cache that shrinks", steps: []reading{{0, 1001, 4000, ""}, {1000 * ms, 999, 3970, "evicts"}}},
		{name: "not all cache together", steps: []reading{{0, 999, 1, "waits"}, {1 * ms, 998, 1, "evicts"}}},
		{name: "no cache at all", steps: []reading{{0, 1000, 0, ""}, {1000 * ms, 999, 0, "evicts"}}},
		{name: "reclaim stalls", stalled: true, steps: []reading{{0, 1000, 4000, ""}, {1000 * ms, 999, 4001, "evicts"}}},
		{name: "the reference is a second old", steps: []reading{ // since then other memory shrank
			{0, 2000, 4000, ""}, {100 * ms, 1010, 4000, ""}, {1100 * ms, 999, 4000, "waits"},
		}},
		{name: "the oldest where none is a second old", steps: []reading{
			{0, 1100, 4000, ""}, {100 * ms, 1010, 4000, ""}, {999 * ms, 999, 4000, "evicts"},
		}},
		{name: "no reference of more than 10 s ago", steps: []reading{
			{0, 1100, 4000, ""}, {10000 * ms, 1010, 4000, ""}, {10001 * ms, 999, 4000, "waits"},
		}},
		{name: "an older reference where it is the only one", steps: []reading{
			{0, 1100, 4000, ""}, {60000 * ms, 999, 4000, "evicts"},
		}},
		{name: "a reading below is no reference", steps: []reading{
			{0, 1010, 4000, ""}, {100 * ms, 2000, 4000, ""}, {200 * ms, 990, 5010, "waits"}, {1300 * ms, 1010, 4990, ""}, {2301 * ms, 999, 5000, "waits"},
		}},
		{name: "a slow leak beside heavy reading", steps: []reading{
			{0, 1500, 1000, ""}, {1000 * ms, 990, 1500, "waits"}, {2000 * ms, 880, 1600, "waits"}, {5000 * ms, 550, 1900, "waits"}, {10999 * ms, 300, 2100, "waits"},
		}},
		{name: "a hog while a crossing waits", steps: []reading{
			{0, 1500, 1000, ""}, {1000 * ms, 990, 1510, "waits"}, {1005 * ms, 960, 1509, "waits"}, {1010 * ms, 950, 1510, "evicts"},
		}},
		{name: "compared with a second ago, not with the crossing alone", steps: []reading{ // first other memory shrank
			{0, 1500, 1000, ""}, {1000 * ms, 990, 1510, "waits"}, {2000 * ms, 990, 1810, "waits"}, {2500 * ms, 990, 1810, "waits"},
			{3000 * ms, 950, 1810, "evicts"},
		}},
		{name: "answered until it is no longer met", steps: []reading{
			{0, 2000, 4000, ""}, {1000 * ms, 999, 4000, "evicts"}, {1001 * ms, 999, 4001, "evicts"}, {1002 * ms, 1000, 4000, ""}, {2100 * ms, 999, 4001, "waits"},
		}},
		{name: "answered however long it lasts", steps: []reading{
			{0, 2000, 4000, ""}, {1000 * ms, 999, 4000, "evicts"}, {5000 * ms, 999, 4001, "evicts"},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newTimeline(t, hard(signal.MemoryAvailable, "1000Mi"))
			l.in.ReclaimStalled = tc.stalled
			table := NewTable(&l.in, &l.state, begin)
			for _, r := range tc.steps {
				l.observe(signal.MemoryAvailable, r.available*mi)
				l.in.Observations[signal.MemoryAvailable].Cache = r.cache * mi
				o := l.step(r.at)
				if got := outcome(len(o.Met) > 0, len(o.Waiting) > 0); got != r.want {
					t.Errorf("Step at %v: %q; want %q", r.at, got, r.want)
				}
				v := table.Decide(&l.in.Observations, begin.Add(r.at))
				if got := outcome(v.Why != Recovered, v.Why == Waiting); got != r.want {
					t.Errorf("Table.Decide at %v: %q; want %q", r.at, got, r.want)
				}
			}
		})
	}
}

// A stall at the limit of all pods answers a crossing of the pods' signal, and no
// other.
func TestStallAtTheLimitOfThePods(t *testing.T) {
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
		l := newTimeline(t, hard(tc.signal, "1000Mi"))
		l.in.ReclaimStalled, l.in.PodsReclaimStalled = tc.node, tc.pods
		table := NewTable(&l.in, &l.state, begin)
		l.observe(tc.signal, 999*mi)
		l.in.Observations[tc.signal].Cache = 4000 * mi
		o := l.step(0)
		if got := outcome(len(o.Met) > 0, len(o.Waiting) > 0); got != tc.want {
			t.Errorf("%s, stalls of the node %t, of the pods %t: Step %q; want %q", tc.signal, tc.node, tc.pods, got, tc.want)
		}
		v := table.Decide(&l.in.Observations, begin)
		if got := outcome(v.Why != Recovered, v.Why == Waiting); got != tc.want {
			t.Errorf("%s, stalls of the node %t, of the pods %t: Table.Decide %q; want %q", tc.signal, tc.node, tc.pods, got, tc.want)
		}
	}
}

func outcome(met, waiting bool) string {
	switch {
	case waiting:
		return "waits"
	case met:
		return "evicts"
	}
	return ""
}

// The sampler compares readings of its own. Its answer ends the wait in the decision
// that it is given to, if the threshold is met there.
func TestAnsweredBySampler(t *testing.T) {
	memory, pods := Key{Signal: signal.MemoryAvailable}, Key{Signal: signal.AllocatableMemoryAvailable, Copy: true}
	low := func(l *timeline) {
		l.observe(signal.MemoryAvailable, 999*mi)
		l.in.Observations[signal.MemoryAvailable].Cache = 4000 * mi
	}
	for _, tc := range []struct {
		name     string
		answered []Key
		want     bool
	}{
		{"none", nil, true}, {"another threshold", []Key{pods}, true}, {"this one", []Key{memory}, false},
	} {
		l := newTimeline(t, hard(signal.MemoryAvailable, "1000Mi"))
		low(l)
		l.in.Answered = tc.answered
		if o := l.step(0); len(o.Waiting) > 0 != tc.want {
			t.Errorf("%s answered: Step waits for %v; want it to wait: %t", tc.name, o.Waiting, tc.want)
		}
	}
	l := newTimeline(t, hard(signal.MemoryAvailable, "1000Mi"))
	l.observe(signal.MemoryAvailable, 1001*mi)
	table := NewTable(&l.in, &l.state, begin)
	decide := func(at time.Duration) Why {
		v := table.Decide(&l.in.Observations, begin.Add(at))
		return v.Why
	}
	table.Answer(signal.MemoryAvailable)
	if got := decide(0); got != Recovered {
		t.Errorf("answered and above: Decide() = %q; want %q", got, Recovered)
	}
	table.Answer(signal.MemoryAvailable)
	l.in.Observations[signal.MemoryAvailable] = signal.Observation{Status: signal.Unreadable}
	if got := decide(0); got != Recovered {
		t.Errorf("answered and unreadable: Decide() = %q; want %q", got, Recovered)
	}
	low(l)
	if got := decide(1); got != Waiting {
		t.Errorf("the next crossing: Decide() = %q; want %q", got, Waiting)
	}
	table.Answer(signal.MemoryAvailable)
	if got := decide(2); got != Nobody {
		t.Errorf("answered while it waits: Decide() = %q; want %q", got, Nobody)
	}
}

// Each threshold is compared with readings of its own signal.
func TestReadingsAreApart(t *testing.T) {
	l := newTimeline(t, hard(signal.MemoryAvailable, "1000Mi"), hard(signal.AllocatableMemoryAvailable, "1000Mi"))
	l.observe(signal.MemoryAvailable, 2000*mi)
	l.in.Observations[signal.MemoryAvailable].Cache = 1000 * mi
	l.observe(signal.AllocatableMemoryAvailable, 2000*mi)
	l.in.Observations[signal.AllocatableMemoryAvailable].Cache = 4000 * mi
	l.step(0)
	l.in.Observations[signal.MemoryAvailable].Available, l.in.Observations[signal.MemoryAvailable].Cache = 999*mi, 2001*mi
	if o := l.step(time.Second); len(o.Waiting) != 1 {
		t.Errorf("waiting = %v; want memory.available to wait", o.Waiting)
	}
}

// Readings of another source are not compared: what the kernel's two sources say
// may be seconds apart.
func TestSourcesAreNotCompared(t *testing.T) {
	l := newTimeline(t, hard(signal.MemoryAvailable, "1000Mi"))
	l.observe(signal.MemoryAvailable, 2000*mi)
	l.in.Observations[signal.MemoryAvailable].Cache = 4000 * mi
	l.step(0)
	l.in.Observations[signal.MemoryAvailable].Source = signal.Sampler
	l.in.Observations[signal.MemoryAvailable].Available = 999 * mi
	if o := l.step(time.Second); len(o.Waiting) != 1 {
		t.Errorf("crossing in a reading of another source: waiting = %v; want it to wait", o.Waiting)
	}
	l.in.Observations[signal.MemoryAvailable].Source = signal.Files
	l.in.Observations[signal.MemoryAvailable].Available = 900 * mi
	if o := l.step(2 * time.Second); len(o.Waiting) != 1 {
		t.Errorf("growth between two sources: waiting = %v; want it to wait", o.Waiting)
	}
}

// The daemon's floor grows with what per-CPU counters hold back, and is at most half
// of the threshold.
func TestGrowthFloor(t *testing.T) {
	for _, tc := range []struct {
		threshold   string
		drift, grew int64 // in MiB
		waits       bool
	}{
		{"1000Mi", 0, 31, true}, {"1000Mi", 0, 32, false}, {"1000Mi", 50, 99, true}, {"1000Mi", 50, 100, false},
		{"40Mi", 0, 19, true}, {"40Mi", 0, 20, false}, {"40Mi", 500, 20, false},
	} {
		l := newTimeline(t, hard(signal.MemoryAvailable, tc.threshold))
		l.in.Measured, l.in.Drift = true, tc.drift*mi
		at := l.in.Policy.Thresholds[0].Value.Amount(0)
		l.observe(signal.MemoryAvailable, at-1+tc.grew*mi)
		l.in.Observations[signal.MemoryAvailable].Cache = 4000 * mi
		l.step(0)
		l.in.Observations[signal.MemoryAvailable].Available = at - 1
		if o := l.step(time.Second); len(o.Waiting) > 0 != tc.waits {
			t.Errorf("threshold %s, drift %d MiB, grown %d MiB: waiting = %v; want it to wait: %t", tc.threshold, tc.drift, tc.grew, o.Waiting, tc.waits)
		}
	}
}

// What a scenario observes has no such counters.
func TestGrowthFloorUnmeasured(t *testing.T) {
	l := newTimeline(t, hard(signal.MemoryAvailable, "40Mi"))
	l.observe(signal.MemoryAvailable, 70*mi)
	l.in.Observations[signal.MemoryAvailable].Cache = 4000 * mi
	l.step(0)
	l.in.Observations[signal.MemoryAvailable].Available = 39 * mi
	if o := l.step(time.Second); len(o.Waiting) == 0 {
		t.Error("other memory has grown by 31 MiB: waiting = []; want it to wait")
	}
}

// A restart goes on with the wait.
func TestWaitSurvivesRestart(t *testing.T) {
	l := newTimeline(t, hard(signal.MemoryAvailable, "1000Mi"))
	l.observe(signal.MemoryAvailable, 999*mi)
	l.in.Observations[signal.MemoryAvailable].Cache = 4000 * mi
	l.step(0)
	l.state.Readings = nil
	waiting := l.state
	wantVictims(t, "still waiting", l.step(5*time.Second))
	l.state = waiting
	l.in.Pods = []Pod{aPod("a", using(gi))}
	wantVictims(t, "10 s since the crossing", l.step(10*time.Second), "a")
	l.state = waiting.Clone()
	l.state.Timers[0].Crossing = signal.MemoryReading{} // of an evictd that did not keep it
	wantVictims(t, "10 s, by the timer alone", l.step(10*time.Second), "a")
	l.state = waiting
	l.in.Observations[signal.MemoryAvailable].Available = 960 * mi
	wantVictims(t, "grown since the crossing", l.step(time.Second), "a")
}

func TestReadingsAreBounded(t *testing.T) {
	var r signal.Readings
	at := begin
	for i := range 100_000 {
		at = at.Add(time.Duration(1+i%7) * time.Millisecond)
		r.Follow(signal.MemoryReading{}, signal.MemoryReading{Time: at, Other: int64(i)}, false)
	}
	at = at.Add(time.Millisecond)
	now := signal.MemoryReading{Time: at}
	first := r.Follow(signal.MemoryReading{}, now, true)
	later := r.Follow(now, now, true)
	got := at.Sub(first.Reference.Time)
	if got < time.Second || got > time.Second+100*time.Millisecond {
		t.Errorf("the reference is %v old; want about a second", got)
	}
	if diff := cmp.Diff(first.Reference, later.Recent); diff != "" {
		t.Errorf("with nothing met before, the reference and the recent reading differ (-reference +recent):\n%s", diff)
	}
}
