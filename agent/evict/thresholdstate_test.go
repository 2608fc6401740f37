package evict

import (
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Only hard memory thresholds wait for file cache, so only for them are readings
// stored.
func TestReadingsOfHardMemoryOnly(t *testing.T) {
	tl := newTimeline(t, soft(signal.MemoryAvailable, "2Gi", time.Minute), hard(signal.NodeFsAvailable, "10Gi"))
	tl.observe(signal.MemoryAvailable, gi)
	tl.observe(signal.NodeFsAvailable, gi)
	tl.step(0)
	tl.step(time.Second)
	if len(tl.state.Readings) != 0 {
		t.Errorf("readings = %+v; want none", tl.state.Readings)
	}
	if len(tl.state.Timers) != 2 {
		t.Fatalf("timers = %+v; want one for each threshold", tl.state.Timers)
	}
	for _, timer := range tl.state.Timers {
		if timer.Crossing != (signal.MemoryReading{}) {
			t.Errorf("crossing of %+v = %+v; want none", timer.Threshold, timer.Crossing)
		}
	}
	tl.in.Policy.Thresholds = []Threshold{hard(signal.MemoryAvailable, "2Gi")}
	tl.step(2 * time.Second)
	if len(tl.state.Readings) != 1 || len(tl.state.Timers) != 1 || tl.state.Timers[0].Crossing.Time.IsZero() {
		t.Errorf("hard memory threshold: readings %+v, timers %+v; want one of each, with the crossing", tl.state.Readings, tl.state.Timers)
	}
}

// The grace period of a soft eviction is the configured maximum or the pod's own, if
// that is shorter. If the maximum is negative, it is the pod's own, or 30 s if the pod
// specifies none.
func TestSoftGraceLimits(t *testing.T) {
	for _, tt := range []struct {
		name    string
		maximum int64
		pod     Pod
		want    time.Duration
	}{
		{"no maximum, none of its own", -1, aPod("a", using(gi)), 30 * time.Second},
		{"no maximum, its own", -1, aPod("a", using(gi), withGrace(600)), 600 * time.Second},
		{"no maximum, at least 1 s", -1, aPod("a", using(gi), withGrace(0)), time.Second},
		{"maximum of 0, none of its own", 0, aPod("a", using(gi)), time.Second},
		{"maximum of 0, its own", 0, aPod("a", using(gi), withGrace(600)), time.Second},
		{"maximum, none of its own", 60, aPod("a", using(gi)), time.Minute},
		{"maximum, a longer one of its own", 60, aPod("a", using(gi), withGrace(600)), time.Minute},
		{"maximum, a shorter one of its own", 60, aPod("a", using(gi), withGrace(20)), 20 * time.Second},
	} {
		tl := newTimeline(t, soft(signal.MemoryAvailable, "2Gi", time.Second))
		tl.in.Policy.MaxPodGraceSeconds = tt.maximum
		tl.in.Pods = []Pod{tt.pod}
		tl.observe(signal.MemoryAvailable, gi)
		tl.step(0)
		o := tl.step(time.Second)
		wantVictims(t, tt.name, o, "a")
		if got := o.Evict[0].Grace; got != tt.want {
			t.Errorf("%s: grace = %v; want %v", tt.name, got, tt.want)
		}
	}
}

// If usage is not measured, as in a scenario, a victim is assumed to have freed its
// memory. It is not chosen again while it is listed.
func TestUnmeasuredVictimIsNotChosenAgain(t *testing.T) {
	tl := shortOfMemory(t, 100*mi, 200*mi)
	wantVictims(t, "0s", tl.step(0), "a")
	for at := time.Second; at <= time.Hour; at += time.Minute {
		wantVictims(t, at.String(), tl.step(at))
	}
	if got := tl.status("a"); got != Settled {
		t.Errorf("status = %s; want %s", got, Settled)
	}
}

// A measured victim that is unsettled counts until the settle timeout, however long that
// is, and is then reported as stuck.
func TestLongSettleTimeout(t *testing.T) {
	tl := shortOfMemory(t, 100*mi, 200*mi, 150*mi)
	tl.in.Measured, tl.in.Policy.SettleTimeout = true, 5*time.Minute
	wantVictims(t, "0s", tl.step(0), "a")
	wantVictims(t, "4m", tl.step(4*time.Minute))
	if got := tl.status("a"); got != Unsettled {
		t.Errorf("after 4m: status = %s; want %s", got, Unsettled)
	}
	o := tl.step(5 * time.Minute)
	wantVictims(t, "5m", o, "b")
	if len(o.Stuck) != 1 || o.Stuck[0] != "a" {
		t.Errorf("after 5m: stuck = %v; want a", o.Stuck)
	}
}
