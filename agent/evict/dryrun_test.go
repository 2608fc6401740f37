package evict

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/signal"
)

func TestDryRunOncePerEpisode(t *testing.T) {
	l := shortOfMemory(t, 500*mi, 300*mi, 300*mi, 300*mi)
	l.in.DryRun = true
	wantVictims(t, "0s", l.step(0), "a", "b")
	if len(l.state.Victims) != 0 {
		t.Errorf("victims = %v; want none in dry run", l.state.Victims)
	}
	o := l.step(time.Hour)
	wantVictims(t, "they count as gone", o)
	wantMet(t, "they count as gone", o)
	l.observe(signal.MemoryAvailable, 10*gi-700*mi)
	o = l.step(2 * time.Hour)
	wantVictims(t, "deficit larger than their memory", o, "c")
	want := []Exempt{
		{Pod: "default/a", UID: "a", Reason: ReasonTerminating, Detail: "would have been evicted"},
		{Pod: "default/b", UID: "b", Reason: ReasonTerminating, Detail: "would have been evicted"},
	}
	if diff := cmp.Diff(want, o.Exempt); diff != "" {
		t.Errorf("exempt (-want +got):\n%s", diff)
	}
	l.observe(signal.MemoryAvailable, 10*gi)
	l.step(3 * time.Hour)
	if len(l.state.DryRunVictims) != 0 {
		t.Errorf("dry-run victims = %v; want none after the episode", l.state.DryRunVictims)
	}
	l.observe(signal.MemoryAvailable, 10*gi-100*mi)
	wantVictims(t, "the next episode", l.step(4*time.Hour), "a")
}

// Dry run adds what WouldFree returns to the observations. The threshold is met without
// it and not met with it.
func TestWouldFree(t *testing.T) {
	l := shortOfMemory(t, 500*mi, 300*mi, 300*mi, 300*mi)
	l.in.DryRun = true
	if got := l.in.Policy.WouldFree(&l.state, l.in.Pods); got != [signal.Count]int64{} {
		t.Errorf("WouldFree() = %v before the first victim; want nothing", got)
	}
	wantVictims(t, "0s", l.step(0), "a", "b")
	free := l.in.Policy.WouldFree(&l.state, l.in.Pods)
	if free[signal.MemoryAvailable] != 600*mi {
		t.Errorf("WouldFree() = %v; want 600Mi of memory", free)
	}
	low := l.in.Policy.Thresholds[0].Value.Amount(0)
	read := l.in.Observations[signal.MemoryAvailable].Available
	if met := l.step(time.Second).Met; len(met) > 0 || read >= low || read+free[signal.MemoryAvailable] < low {
		t.Errorf("available %d, would free %d, threshold %d: met = %v; want none, and met without dry run", read, free[signal.MemoryAvailable], low, met)
	}
	l.in.Pods = l.in.Pods[1:]
	if got := l.in.Policy.WouldFree(&l.state, l.in.Pods)[signal.MemoryAvailable]; got != 300*mi {
		t.Errorf("WouldFree() = %d after a pod is gone; want 300Mi", got)
	}
}

func TestDryRunEpisodes(t *testing.T) {
	l := newTimeline(t, hard(signal.MemoryAvailable, "1Gi").reclaiming("1Gi"))
	l.in.DryRun = true
	l.in.Pods = []Pod{aPod("a", using(4*gi))}
	l.observe(signal.MemoryAvailable, 900*mi)
	wantVictims(t, "0s", l.step(0), "a")
	l.observe(signal.MemoryAvailable, 1900*mi)
	wantVictims(t, "above the threshold", l.step(time.Second))
	l.observe(signal.MemoryAvailable, 900*mi)
	wantVictims(t, "the episode lasts until the minimum reclaim is back", l.step(2*time.Second))
	l.in.Observations[signal.MemoryAvailable].Status = signal.Unreadable
	l.step(3 * time.Second)
	l.observe(signal.MemoryAvailable, 900*mi)
	wantVictims(t, "an unreadable signal does not end it", l.step(4*time.Second))
	l.in.Pods = []Pod{aPod("b", using(4*gi))}
	wantVictims(t, "a has exited by itself", l.step(5*time.Second), "b")
	l.in.DryRun = false
	wantVictims(t, "dry run is switched off", l.step(6*time.Second), "b")
	if len(l.state.DryRunVictims) != 0 || len(l.state.Victims) != 1 {
		t.Errorf("dry-run victims %v, victims %v; want one victim and no dry-run victim", l.state.DryRunVictims, l.state.Victims)
	}
}

func TestDryRunLimits(t *testing.T) {
	l := newTimeline(t)
	l.in.DryRun = true
	l.in.Pods = []Pod{aPod("a", withRootfs(2), func(p *Pod) { p.Containers[0].Resources.Limits.EphemeralStorage = qty("1") })}
	wantVictims(t, "0s", l.step(0), "a")
	wantVictims(t, "1s", l.step(time.Second))
	l.pod("a").Containers[0].Usage.Rootfs = 1
	l.step(2 * time.Second)
	l.pod("a").Containers[0].Usage.Rootfs = 2
	wantVictims(t, "over the limit again", l.step(3*time.Second), "a")
}
