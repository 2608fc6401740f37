package evict

import (
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// If a signal is still met after one kind of reclaim, the next kind is ordered, even if
// victims in flight cover the deficit. After the last kind no pod is evicted then.
func TestNextReclaimIfVictimsCoverDeficit(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.NodeFsAvailable, "10Gi"))
	tl.in.Pods = []Pod{aPod("a", using(gi), withRootfs(20*gi)), aPod("b", withRootfs(50*gi))}
	tl.observe(signal.MemoryAvailable, 2*gi)
	tl.observe(signal.NodeFsAvailable, 5*gi)
	wantReclaim(t, "0s", tl.step(0), ReclaimContainers)
	tl.observe(signal.MemoryAvailable, 900*mi)
	wantVictims(t, "memory low", tl.step(100*time.Millisecond), "a")
	o := tl.step(200*time.Millisecond, Outcome{})
	wantReclaim(t, "containers removed", o, ReclaimImages)
	wantVictims(t, "containers removed", o)
	o = tl.step(300*time.Millisecond, Outcome{})
	wantReclaim(t, "images removed", o, "")
	wantVictims(t, "images removed", o)
	wantMet(t, "images removed", o, signal.MemoryAvailable, signal.NodeFsAvailable)
}

// If the reclaim for a hard threshold has freed enough, the soft threshold of the same
// signal is acted on in the next Step, not in this one.
func TestSoftThresholdWaitsAfterHardReclaim(t *testing.T) {
	tl := newTimeline(t, hard(signal.NodeFsAvailable, "10Gi"), soft(signal.NodeFsAvailable, "20Gi", time.Second))
	tl.in.Pods = []Pod{aPod("a", withRootfs(50*gi))}
	tl.observe(signal.NodeFsAvailable, 5*gi)
	wantReclaim(t, "hard", tl.step(0), ReclaimContainers)
	tl.observe(signal.NodeFsAvailable, 15*gi)
	o := tl.step(2*time.Second, Outcome{})
	wantReclaim(t, "after the reclaim", o, "")
	wantVictims(t, "after the reclaim", o)
	wantMet(t, "after the reclaim", o, signal.NodeFsAvailable)
	wantReclaim(t, "soft", tl.step(3*time.Second), ReclaimContainers)
}

// Reclaims that have begun are continued with the next kind if the signal is still met,
// even if the previous ones freed nothing and no pod is left to evict.
func TestReclaimContinuesWithoutPods(t *testing.T) {
	disk := hard(signal.NodeFsAvailable, "20Gi")
	tl := newTimeline(t, disk)
	tl.in.NothingReclaimed = []ThresholdKey{disk.Key()}
	tl.in.Pods = []Pod{podWithLogs("a", 50*gi)}
	tl.observe(signal.NodeFsAvailable, 10*gi)
	wantReclaim(t, "before an eviction", tl.step(0), ReclaimContainers)
	tl.remove("a")
	wantReclaim(t, "without pods", tl.step(time.Second, Outcome{}), ReclaimImages)
}

// A reclaim that freed nothing is not repeated while the signal's back-off delays the
// next eviction. Other signals do not wait for it.
func TestFruitlessReclaimWaitsForBackoff(t *testing.T) {
	tl, next := nodeWithFullDisk(t, podWithLogs("a", 2*gi), podWithLogs("b", gi, withPIDs(500)))
	disk := tl.in.Policy.Thresholds[0].Key()
	tl.in.Policy.Thresholds = append(tl.in.Policy.Thresholds, hard(signal.PIDAvailable, "100"))
	o := next()
	wantVictims(t, "two pods cover too little", o, "a")
	if len(o.Futile) != 1 {
		t.Fatalf("futile = %+v; want nodefs.available", o.Futile)
	}
	backoffEnd := o.Futile[0].Until.Sub(start)
	tl.remove("a")
	tl.in.NothingReclaimed = []ThresholdKey{disk}
	wantReclaim(t, "during the back-off", tl.step(backoffEnd/2), "")
	wantReclaim(t, "after the back-off", tl.step(backoffEnd), ReclaimContainers)
	wantVictims(t, "after the reclaim", tl.step(backoffEnd+time.Millisecond, Outcome{}), "b")

	tl.state.Victims = nil
	tl.observe(signal.PIDAvailable, 0)
	o = tl.step(backoffEnd + 2*time.Millisecond)
	wantReclaim(t, "another signal", o, "")
	wantVictims(t, "another signal", o, "b")
}

// Pods that were evicted for exceeding their own limits are not victims of a signal: if
// they free nothing, the signal does not become futile.
func TestLimitVictimsDoNotMakeFutile(t *testing.T) {
	overLimit := func(p *Pod) {
		p.Volumes = []Volume{{Name: "v", Type: EmptyDir, SizeLimit: qty("1Mi"), Used: 2 * mi}}
	}
	tl := newTimeline(t, hard(signal.NodeFsAvailable, "20Gi"))
	tl.in.Policy.Layout = ImageFs // one kind of reclaim before victims are chosen
	tl.in.Measured = true
	for _, name := range []string{"a", "b", "c"} {
		tl.in.Pods = append(tl.in.Pods, aPod(name, using(200*mi), overLimit))
	}
	tl.in.Pods = append(tl.in.Pods, podWithLogs("d", 6*gi), podWithLogs("e", 5*gi))
	tl.observe(signal.NodeFsAvailable, 10*gi)
	wantVictims(t, "over their limits", tl.step(0), "a", "b", "c")
	o := tl.step(2 * time.Second)
	if len(o.Stuck) != 3 {
		t.Fatalf("stuck = %v; want a, b and c", o.Stuck)
	}
	wantReclaim(t, "disk low", o, ReclaimContainers)
	o = tl.step(3*time.Second, Outcome{})
	wantVictims(t, "after the reclaim", o, "d", "e")
	if len(o.Futile) != 0 {
		t.Errorf("futile = %+v; want none", o.Futile)
	}
}
