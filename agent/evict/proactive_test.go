package evict

import (
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// proactiveReclaim returns the proactive reclaim to do after the last Step.
func (tl *timeline) proactiveReclaim(at time.Duration) ProactiveReclaim {
	return tl.in.Policy.ProactiveReclaim(tl.in.Pods, &tl.in.Observations, &tl.state, start.Add(at))
}

func TestProactiveReclaim(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), soft(signal.MemoryAvailable, "3Gi", time.Minute).reclaiming("512Mi"))
	tl.in.Pods = []Pod{aPod("a", using(gi)), aPod("b", using(2*gi)), aPod("static", using(4*gi), func(p *Pod) { p.Static = true })}
	tl.in.Measured = true
	tl.observe(signal.MemoryAvailable, 4*gi)
	tl.step(0)
	if r := tl.proactiveReclaim(0); r.Deficit != 0 || r.Pods != nil {
		t.Errorf("proactive reclaim with enough available = %+v; want nothing", r)
	}

	tl.observe(signal.MemoryAvailable, 2*gi)
	tl.step(time.Second)
	r := tl.proactiveReclaim(time.Second)
	var order []string
	for _, r := range r.Pods {
		order = append(order, r.UID)
	}
	if r.Deficit != gi+gi/2 || r.Signal != signal.MemoryAvailable || !slices.Equal(order, []string{"b", "a"}) {
		t.Errorf("proactive reclaim = %+v; want 1.5 GiB with its minimum reclaim, of b and a", r)
	}

	// A hard threshold that is met stops proactive reclaim.
	tl.observe(signal.MemoryAvailable, gi/2)
	hardStep := *tl
	hardStep.step(31 * time.Second)
	if r := hardStep.proactiveReclaim(31 * time.Second); r.Deficit != 0 {
		t.Errorf("proactive reclaim with the hard threshold met = %+v; want nothing", r)
	}

	// After the grace period a pod is evicted, and the victim is unsettled.
	tl.observe(signal.MemoryAvailable, 2*gi)
	if o := tl.step(61 * time.Second); len(o.Evict) != 1 {
		t.Fatalf("victims after the grace = %v; want one", victims(o))
	}
	if r := tl.proactiveReclaim(61 * time.Second); r.Deficit != 0 {
		t.Errorf("proactive reclaim with an unsettled victim = %+v; want nothing", r)
	}
}

// An unreadable signal has no deficit, and thresholds of other signals do not cause
// proactive reclaim.
func TestProactiveReclaimNotNeeded(t *testing.T) {
	tl := newTimeline(t, soft(signal.MemoryAvailable, "3Gi", time.Minute), soft(signal.NodeFsAvailable, "10Gi", time.Minute))
	tl.in.Pods = []Pod{aPod("a", using(gi))}
	tl.observe(signal.MemoryAvailable, 4*gi)
	tl.observe(signal.NodeFsAvailable, gi)
	tl.step(0)
	if r := tl.proactiveReclaim(0); r.Deficit != 0 {
		t.Errorf("proactive reclaim with a disk low = %+v; want nothing", r)
	}
	tl.observe(signal.MemoryAvailable, gi)
	tl.step(time.Second)
	tl.in.Observations[signal.MemoryAvailable].Status = signal.Unreadable
	if r := tl.proactiveReclaim(time.Second); r.Deficit != 0 {
		t.Errorf("proactive reclaim with memory.available unreadable = %+v; want nothing", r)
	}
}
