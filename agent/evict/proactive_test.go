package evict

import (
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// cold asks what the kernel may be asked for after the last step.
func (l *timeline) cold(at time.Duration) Cold {
	return l.in.Policy.Cold(l.in.Pods, &l.in.Observations, &l.state, begin.Add(at))
}

func TestCold(t *testing.T) {
	l := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), soft(signal.MemoryAvailable, "3Gi", time.Minute).reclaiming("512Mi"))
	l.in.Pods = []Pod{aPod("a", using(gi)), aPod("b", using(2*gi)), aPod("static", using(4*gi), func(p *Pod) { p.Static = true })}
	l.in.Measured = true
	l.observe(signal.MemoryAvailable, 4*gi)
	l.step(0)
	if c := l.cold(0); c.Short != 0 || c.Pods != nil {
		t.Errorf("Cold() with enough available = %+v; want nothing", c)
	}

	l.observe(signal.MemoryAvailable, 2*gi)
	l.step(time.Second)
	c := l.cold(time.Second)
	var order []string
	for _, r := range c.Pods {
		order = append(order, r.UID)
	}
	if c.Short != gi+gi/2 || c.Signal != signal.MemoryAvailable || !slices.Equal(order, []string{"b", "a"}) {
		t.Errorf("Cold() = %+v; want 1.5 GiB with its minimum reclaim, of b and a", c)
	}

	// The hard threshold comes before all that.
	l.observe(signal.MemoryAvailable, gi/2)
	hardStep := *l
	hardStep.step(31 * time.Second)
	if c := hardStep.cold(31 * time.Second); c.Short != 0 {
		t.Errorf("Cold() where the hard threshold is met = %+v; want nothing", c)
	}

	// When the grace is over a pod goes, and is waited for.
	l.observe(signal.MemoryAvailable, 2*gi)
	if o := l.step(61 * time.Second); len(o.Evict) != 1 {
		t.Fatalf("victims after the grace = %v; want one", victims(o))
	}
	if c := l.cold(61 * time.Second); c.Short != 0 {
		t.Errorf("Cold() with a pod on its way out = %+v; want nothing", c)
	}
}

// What can't be read is not short, and other signals' thresholds are no business of
// the kernel's.
func TestColdOfOthers(t *testing.T) {
	l := newTimeline(t, soft(signal.MemoryAvailable, "3Gi", time.Minute), soft(signal.NodeFsAvailable, "10Gi", time.Minute))
	l.in.Pods = []Pod{aPod("a", using(gi))}
	l.observe(signal.MemoryAvailable, 4*gi)
	l.observe(signal.NodeFsAvailable, gi)
	l.step(0)
	if c := l.cold(0); c.Short != 0 {
		t.Errorf("Cold() where a disk is low = %+v; want nothing", c)
	}
	l.observe(signal.MemoryAvailable, gi)
	l.step(time.Second)
	l.in.Observations[signal.MemoryAvailable].Status = signal.Unreadable
	if c := l.cold(time.Second); c.Short != 0 {
		t.Errorf("Cold() of what can't be read = %+v; want nothing", c)
	}
}
