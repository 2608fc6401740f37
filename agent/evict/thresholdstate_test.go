package evict

import (
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Only hard memory thresholds wait for file cache, so only for them are readings
// stored.
func TestReadingsOfHardMemoryOnly(t *testing.T) {
	l := newTimeline(t, soft(signal.MemoryAvailable, "2Gi", time.Minute), hard(signal.NodeFsAvailable, "10Gi"))
	l.observe(signal.MemoryAvailable, gi)
	l.observe(signal.NodeFsAvailable, gi)
	l.step(0)
	l.step(time.Second)
	if len(l.state.Readings) != 0 {
		t.Errorf("readings = %+v; want none", l.state.Readings)
	}
	if len(l.state.Timers) != 2 {
		t.Fatalf("timers = %+v; want one for each threshold", l.state.Timers)
	}
	for _, timer := range l.state.Timers {
		if timer.Crossing != (signal.MemoryReading{}) {
			t.Errorf("crossing of %+v = %+v; want none", timer.Threshold, timer.Crossing)
		}
	}
	l.in.Policy.Thresholds = []Threshold{hard(signal.MemoryAvailable, "2Gi")}
	l.step(2 * time.Second)
	if len(l.state.Readings) != 1 || len(l.state.Timers) != 1 || l.state.Timers[0].Crossing.Time.IsZero() {
		t.Errorf("hard memory threshold: readings %+v, timers %+v; want one of each, with the crossing", l.state.Readings, l.state.Timers)
	}
}

// If the longest grace period of soft evictions is negative, a pod has its own, which is
// 30 s if it specifies none.
func TestGraceWithoutMaximum(t *testing.T) {
	for _, tt := range []struct {
		name string
		pod  Pod
		want time.Duration
	}{
		{"none of its own", aPod("a", using(gi)), 30 * time.Second},
		{"its own", aPod("a", using(gi), withGrace(600)), 600 * time.Second},
		{"at least 1 s", aPod("a", using(gi), withGrace(0)), time.Second},
	} {
		l := newTimeline(t, soft(signal.MemoryAvailable, "2Gi", time.Second))
		l.in.Policy.MaxPodGraceSeconds = -1
		l.in.Pods = []Pod{tt.pod}
		l.observe(signal.MemoryAvailable, gi)
		l.step(0)
		o := l.step(time.Second)
		wantVictims(t, tt.name, o, "a")
		if got := o.Evict[0].Grace; got != tt.want {
			t.Errorf("%s: grace = %v; want %v", tt.name, got, tt.want)
		}
	}
}

// If usage is not measured, as in a scenario, a victim is assumed to have freed its
// memory. It is not chosen again while it is listed.
func TestUnmeasuredVictimIsNotChosenAgain(t *testing.T) {
	l := shortOfMemory(t, 100*mi, 200*mi)
	wantVictims(t, "0s", l.step(0), "a")
	for at := time.Second; at <= time.Hour; at += time.Minute {
		wantVictims(t, at.String(), l.step(at))
	}
	if got := l.status("a"); got != Settled {
		t.Errorf("status = %s; want %s", got, Settled)
	}
}
