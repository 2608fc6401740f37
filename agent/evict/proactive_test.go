package evict

import (
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// proactiveReclaim returns the proactive reclaim to do after the last Step.
func (l *timeline) proactiveReclaim(at time.Duration) ProactiveReclaim {
	return l.in.Policy.ProactiveReclaim(l.in.Pods, &l.in.Observations, &l.state, start.Add(at))
}

func TestProactiveReclaim(t *testing.T) {
	l := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), soft(signal.MemoryAvailable, "3Gi", time.Minute).reclaiming("512Mi"))
	l.in.Pods = []Pod{aPod("a", using(gi)), aPod("b", using(2*gi)), aPod("static", using(4*gi), func(p *Pod) { p.Static = true })}
	l.in.Measured = true
	l.observe(signal.MemoryAvailable, 4*gi)
	l.step(0)
	if c := l.proactiveReclaim(0); c.Deficit != 0 || c.Pods != nil {
		t.Errorf("proactive reclaim with enough available = %+v; want nothing", c)
	}

	l.observe(signal.MemoryAvailable, 2*gi)
	l.step(time.Second)
	c := l.proactiveReclaim(time.Second)
	var order []string
	for _, r := range c.Pods {
		order = append(order, r.UID)
	}
	if c.Deficit != gi+gi/2 || c.Signal != signal.MemoryAvailable || !slices.Equal(order, []string{"b", "a"}) {
		t.Errorf("proactive reclaim = %+v; want 1.5 GiB with its minimum reclaim, of b and a", c)
	}

	// A hard threshold that is met stops proactive reclaim.
	l.observe(signal.MemoryAvailable, gi/2)
	hardStep := *l
	hardStep.step(31 * time.Second)
	if c := hardStep.proactiveReclaim(31 * time.Second); c.Deficit != 0 {
		t.Errorf("proactive reclaim with the hard threshold met = %+v; want nothing", c)
	}

	// After the grace period a pod is evicted, and the victim is unsettled.
	l.observe(signal.MemoryAvailable, 2*gi)
	if o := l.step(61 * time.Second); len(o.Evict) != 1 {
		t.Fatalf("victims after the grace = %v; want one", victims(o))
	}
	if c := l.proactiveReclaim(61 * time.Second); c.Deficit != 0 {
		t.Errorf("proactive reclaim with an unsettled victim = %+v; want nothing", c)
	}
}

// An unreadable signal has no deficit, and thresholds of other signals do not cause
// proactive reclaim.
func TestProactiveReclaimNotNeeded(t *testing.T) {
	l := newTimeline(t, soft(signal.MemoryAvailable, "3Gi", time.Minute), soft(signal.NodeFsAvailable, "10Gi", time.Minute))
	l.in.Pods = []Pod{aPod("a", using(gi))}
	l.observe(signal.MemoryAvailable, 4*gi)
	l.observe(signal.NodeFsAvailable, gi)
	l.step(0)
	if c := l.proactiveReclaim(0); c.Deficit != 0 {
		t.Errorf("proactive reclaim with a disk low = %+v; want nothing", c)
	}
	l.observe(signal.MemoryAvailable, gi)
	l.step(time.Second)
	l.in.Observations[signal.MemoryAvailable].Status = signal.Unreadable
	if c := l.proactiveReclaim(time.Second); c.Deficit != 0 {
		t.Errorf("proactive reclaim with memory.available unreadable = %+v; want nothing", c)
	}
}
