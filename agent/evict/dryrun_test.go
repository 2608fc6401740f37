package evict

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/signal"
)

func TestDryRunOncePerEpisode(t *testing.T) {
	tl := shortOfMemory(t, 500*mi, 300*mi, 300*mi, 300*mi)
	tl.in.DryRun = true
	wantVictims(t, "0s", tl.step(0), "a", "b")
	if len(tl.state.Victims) != 0 {
		t.Errorf("victims = %v; want none in dry run", tl.state.Victims)
	}
	o := tl.step(time.Hour)
	wantVictims(t, "they count as gone", o)
	wantMet(t, "they count as gone", o)
	tl.observe(signal.MemoryAvailable, 10*gi-700*mi)
	o = tl.step(2 * time.Hour)
	wantVictims(t, "deficit larger than their memory", o, "c")
	want := []Exempt{
		{Pod: "default/a", UID: "a", Reason: ReasonTerminating, Detail: "would have been evicted"},
		{Pod: "default/b", UID: "b", Reason: ReasonTerminating, Detail: "would have been evicted"},
	}
	if diff := cmp.Diff(want, o.Exempt); diff != "" {
		t.Errorf("exempt (-want +got):\n%s", diff)
	}
	tl.observe(signal.MemoryAvailable, 10*gi)
	tl.step(3 * time.Hour)
	if len(tl.state.DryRunVictims) != 0 {
		t.Errorf("dry-run victims = %v; want none after the episode", tl.state.DryRunVictims)
	}
	tl.observe(signal.MemoryAvailable, 10*gi-100*mi)
	wantVictims(t, "the next episode", tl.step(4*time.Hour), "a")
}

// Dry run adds what WouldFree returns to the observations. The threshold is met without
// it and not met with it.
func TestWouldFree(t *testing.T) {
	tl := shortOfMemory(t, 500*mi, 300*mi, 300*mi, 300*mi)
	tl.in.DryRun = true
	if got := tl.in.Policy.WouldFree(&tl.state, tl.in.Pods); got != [signal.Count]int64{} {
		t.Errorf("WouldFree() = %v before the first victim; want nothing", got)
	}
	wantVictims(t, "0s", tl.step(0), "a", "b")
	free := tl.in.Policy.WouldFree(&tl.state, tl.in.Pods)
	if free[signal.MemoryAvailable] != 600*mi {
		t.Errorf("WouldFree() = %v; want 600Mi of memory", free)
	}
	low := tl.in.Policy.Thresholds[0].Value.Amount(0)
	read := tl.in.Observations[signal.MemoryAvailable].Available
	if met := tl.step(time.Second).Met; len(met) > 0 || read >= low || read+free[signal.MemoryAvailable] < low {
		t.Errorf("available %d, would free %d, threshold %d: met = %v; want none, and met without dry run", read, free[signal.MemoryAvailable], low, met)
	}
	tl.in.Pods = tl.in.Pods[1:]
	if got := tl.in.Policy.WouldFree(&tl.state, tl.in.Pods)[signal.MemoryAvailable]; got != 300*mi {
		t.Errorf("WouldFree() = %d after a pod is gone; want 300Mi", got)
	}
}

func TestDryRunEpisodes(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi").reclaiming("1Gi"))
	tl.in.DryRun = true
	tl.in.Pods = []Pod{aPod("a", using(4*gi))}
	tl.observe(signal.MemoryAvailable, 900*mi)
	wantVictims(t, "0s", tl.step(0), "a")
	tl.observe(signal.MemoryAvailable, 1900*mi)
	wantVictims(t, "above the threshold", tl.step(time.Second))
	tl.observe(signal.MemoryAvailable, 900*mi)
	wantVictims(t, "the episode lasts until the minimum reclaim is back", tl.step(2*time.Second))
	tl.in.Observations[signal.MemoryAvailable].Status = signal.Unreadable
	tl.step(3 * time.Second)
	tl.observe(signal.MemoryAvailable, 900*mi)
	wantVictims(t, "an unreadable signal does not end it", tl.step(4*time.Second))
	tl.in.Pods = []Pod{aPod("b", using(4*gi))}
	wantVictims(t, "a has exited by itself", tl.step(5*time.Second), "b")
	tl.in.DryRun = false
	wantVictims(t, "dry run is switched off", tl.step(6*time.Second), "b")
	if len(tl.state.DryRunVictims) != 0 || len(tl.state.Victims) != 1 {
		t.Errorf("dry-run victims %v, victims %v; want one victim and no dry-run victim", tl.state.DryRunVictims, tl.state.Victims)
	}
}

func TestDryRunLimits(t *testing.T) {
	tl := newTimeline(t)
	tl.in.DryRun = true
	tl.in.Pods = []Pod{aPod("a", withRootfs(2), func(p *Pod) { p.Containers[0].Resources.Limits.EphemeralStorage = qty("1") })}
	wantVictims(t, "0s", tl.step(0), "a")
	if got := tl.state.DryRunVictims[0].Cause; got != CausePodLimit {
		t.Errorf("cause of the dry-run victim = %q; want %q", got, CausePodLimit)
	}
	wantVictims(t, "1s", tl.step(time.Second))
	tl.pod("a").Containers[0].Usage.Rootfs = 1
	tl.step(2 * time.Second)
	tl.pod("a").Containers[0].Usage.Rootfs = 2
	wantVictims(t, "over the limit again", tl.step(3*time.Second), "a")
}
