package evict

import (
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

func observed(capacity int64) *signal.Observation {
	return &signal.Observation{Status: signal.Observed, Capacity: capacity}
}

// Which thresholds are left to the kubelet: those on disks and PIDs that are not above its own.
func TestEvictedFirst(t *testing.T) {
	const s, pids, memory = signal.NodeFsAvailable, signal.PIDAvailable, signal.MemoryAvailable
	unknown := &signal.Observation{}
	for _, tt := range []struct {
		name          string
		own, kubelets Threshold
		at            *signal.Observation
		left          bool
	}{
		{"equal", hard(s, "10%"), hard(s, "10%"), observed(100 * gi), true},
		{"kubelet's is higher", hard(s, "10%"), hard(s, "15%"), observed(100 * gi), true},
		{"kubelet's is lower", hard(s, "10%"), hard(s, "9.9%"), observed(100 * gi), false},
		{"kubelet's is lower by a byte", hard(s, "10Gi"), hard(s, "10737418239"), observed(100 * gi), false},
		{"quantity not below a percentage", hard(s, "10%"), hard(s, "11Gi"), observed(100 * gi), true},
		{"quantity below a percentage", hard(s, "10%"), hard(s, "10Gi"), observed(200 * gi), false},
		{"own is the larger of both", hard(s, "5% or 20Gi"), hard(s, "10%"), observed(100 * gi), false},
		{"equal on a disk of unknown size", hard(s, "10%"), hard(s, "10%"), unknown, true},
		{"can't be compared", hard(s, "10%"), hard(s, "10Gi"), unknown, false},
		{"other signal", hard(s, "10%"), hard(signal.NodeFsInodesFree, "90%"), observed(100 * gi), false},
		{"PIDs", hard(pids, "1000"), hard(pids, "1000"), observed(32768), true},
		{"PIDs, kubelet's is lower", hard(pids, "1000"), hard(pids, "1%"), observed(32768), false},
		{"memory", hard(memory, "100Mi"), hard(memory, "1Gi"), observed(10 * gi), false},
		{"pods' memory", hard(signal.AllocatableMemoryAvailable, "100Mi"), hard(signal.AllocatableMemoryAvailable, "1Gi"), observed(10 * gi), false},
		{"soft above the kubelet's hard", soft(s, "20%", time.Minute), hard(s, "10%"), observed(100 * gi), false},
		{"soft below the kubelet's hard", soft(s, "20%", time.Minute), hard(s, "25%"), observed(100 * gi), true},
		{"the kubelet's never met", hard(s, "10%"), hard(s, "0.0%"), observed(100 * gi), false},
	} {
		if got := tt.own.EvictedFirst([]Threshold{hard(memory, "1Ti"), tt.kubelets}, tt.at); (got != nil) != tt.left {
			t.Errorf("%s: EvictedFirst() = %v; want one: %t", tt.name, got, tt.left)
		}
		if got := tt.own.EvictedFirst(nil, tt.at); got != nil {
			t.Errorf("%s: EvictedFirst() without a kubelet = %v; want none", tt.name, got)
		}
	}
}

// A threshold that is left to the kubelet is observed, and its condition is published. evictd acts
// for it when the kubelet has not relieved it in time, in dry run too.
func TestLeftToKubelet(t *testing.T) {
	for _, tt := range []struct {
		s       signal.Signal
		timeout time.Duration
	}{{signal.NodeFsAvailable, kubeletDiskTimeout}, {signal.PIDAvailable, kubeletPIDTimeout}} {
		for _, dryRun := range []bool{false, true} {
			tl := newTimeline(t, hard(tt.s, "1000"))
			tl.in.DryRun = dryRun
			tl.in.Pods = []Pod{aPod("a", withRootfs(10*gi), withPIDs(5000)), aPod("b", withRootfs(gi), withPIDs(100))}
			tl.in.KubeletHard = []Threshold{hard(tt.s, "1000")}
			tl.in.Observations[tt.s].Capacity = 100 * gi
			tl.observe(tt.s, 1000)
			tl.step(0)
			tl.observe(tt.s, 999)
			for at := time.Second; at < tt.timeout; at += 10 * time.Second {
				if o := tl.step(at); len(o.Evict) > 0 || o.Reclaim != nil || len(o.Met) != 1 || len(o.Conditions) != 1 {
					t.Fatalf("%v, dry run %t, after %v: %+v; want it met, and nothing ordered", tt.s, dryRun, at, o)
				}
			}
			o := tl.step(time.Second + tt.timeout)
			if len(o.Evict) == 0 && o.Reclaim == nil {
				t.Errorf("%v, dry run %t, after %v: nothing ordered; want evictd to act", tt.s, dryRun, tt.timeout)
			}

			// A shortage that the kubelet relieves in time begins anew.
			tl = newTimeline(t, hard(tt.s, "1000"))
			tl.in.Pods, tl.in.KubeletHard = []Pod{aPod("a", withRootfs(10*gi), withPIDs(5000))}, []Threshold{hard(tt.s, "1000")}
			tl.in.Observations[tt.s].Capacity = 100 * gi
			for i := range 4 {
				tl.observe(tt.s, int64(999+i%2))
				if o := tl.step(time.Duration(i) * (tt.timeout - time.Second)); len(o.Evict) > 0 || o.Reclaim != nil {
					t.Errorf("%v: %+v; want nothing ordered", tt.s, o)
				}
			}

			// Without a known configuration evictd evicts.
			tl = newTimeline(t, hard(tt.s, "1000"))
			tl.in.Pods = []Pod{aPod("a", withRootfs(10*gi), withPIDs(5000))}
			tl.observe(tt.s, 999)
			if o := tl.step(0); len(o.Evict) == 0 && o.Reclaim == nil {
				t.Errorf("%v: nothing ordered without a kubelet's configuration", tt.s)
			}
		}
	}
}

// The kubelet may be content below evictd's minimum reclaim: a threshold that is left to it ends at its
// value, also if evictd acted on it before it knew the kubelet's configuration. Once evictd acts, it
// does so up to the target.
func TestLeftToKubeletEndsAtItsValue(t *testing.T) {
	const s = signal.NodeFsAvailable
	acts := func(o Orders) bool { return len(o.Evict) > 0 || o.Reclaim != nil }
	for _, tt := range []struct {
		name        string
		before      bool          // evictd acted before it knew the kubelet's configuration
		relievedAt  time.Duration // to between the value and evictd's target
		met, actsAt bool          // 10 s later, and after the timeout
	}{
		{"in time", false, time.Minute, false, false},
		{"in time, and evictd acted before", true, time.Minute, false, false},
		{"late", false, kubeletDiskTimeout + time.Minute, true, true},
	} {
		tl := newTimeline(t, hard(s, "10Gi").reclaiming("10Gi"))
		tl.in.Pods = []Pod{aPod("a", withRootfs(30*gi))}
		tl.in.Observations[s].Capacity = 100 * gi
		tl.observe(s, 9*gi)
		if tt.before && !acts(tl.step(0)) {
			t.Fatalf("%s: nothing ordered without a kubelet's configuration", tt.name)
		}
		tl.in.KubeletHard = []Threshold{hard(s, "10Gi")}
		var outcomes []Outcome
		if tt.before {
			outcomes = []Outcome{{}}
		}
		for at := time.Second; at < tt.relievedAt; at += 10 * time.Second {
			if o := tl.step(at, outcomes...); acts(o) && at < kubeletDiskTimeout || len(o.Met) != 1 {
				t.Fatalf("%s: after %v: %+v; want it met, and left to the kubelet", tt.name, at, o)
			}
			outcomes = nil
		}
		tl.observe(s, 12*gi)
		tl.step(tt.relievedAt)
		if o := tl.step(tt.relievedAt + 10*time.Second); len(o.Met) == 1 != tt.met {
			t.Errorf("%s: with 12Gi: met %v; want it met: %t", tt.name, o.Met, tt.met)
		}
		tl.state.Reclaim, tl.state.Backoffs = nil, nil
		if o := tl.step(tt.relievedAt + 2*kubeletDiskTimeout); acts(o) != tt.actsAt {
			t.Errorf("%s: with 12Gi, after the timeout: %+v; want evictd to act: %t", tt.name, o, tt.actsAt)
		}
	}
}

// What is left to the kubelet postpones nothing else.
func TestOthersAreNotLeftToKubelet(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.NodeFsAvailable, "10Gi"), hard(signal.PIDAvailable, "1000"))
	tl.in.Pods = []Pod{aPod("a", using(3*gi), withPIDs(5000))}
	tl.in.KubeletHard = []Threshold{hard(signal.NodeFsAvailable, "10Gi"), hard(signal.MemoryAvailable, "2Gi"), hard(signal.PIDAvailable, "10")}
	tl.in.Observations[signal.NodeFsAvailable].Capacity = 100 * gi
	tl.observe(signal.NodeFsAvailable, gi)
	tl.observe(signal.PIDAvailable, 100)
	tl.observe(signal.MemoryAvailable, 2*gi)
	if o := tl.step(0); len(o.Evict) != 1 || o.Evict[0].Cause != "pid.available" {
		t.Errorf("PIDs: %+v; want the pod evicted", o.Evict)
	}
	tl.state = State{}
	tl.observe(signal.MemoryAvailable, 0)
	if o := tl.step(0); len(o.Evict) != 1 || o.Evict[0].Cause != "memory.available" {
		t.Errorf("memory: %+v; want the pod evicted", o.Evict)
	}
}

// A node-level reclaim that ends is not followed by the next kind, when the threshold was left to the
// kubelet meanwhile.
func TestReclaimIsLeftToKubelet(t *testing.T) {
	for _, known := range []bool{false, true} {
		tl := newTimeline(t, hard(signal.NodeFsAvailable, "10Gi"))
		tl.in.Pods = []Pod{aPod("a", withRootfs(20*gi))}
		tl.in.Observations[signal.NodeFsAvailable].Capacity = 100 * gi
		tl.observe(signal.NodeFsAvailable, gi)
		if o := tl.step(0); o.Reclaim == nil {
			t.Fatalf("%+v; want a reclaim", o)
		}
		if known {
			tl.in.KubeletHard = []Threshold{hard(signal.NodeFsAvailable, "10Gi")}
		}
		o := tl.step(time.Second, Outcome{})
		if acts := o.Reclaim != nil || len(o.Evict) > 0; acts == known || tl.state.Reclaim != nil != acts {
			t.Errorf("kubelet known %t: %+v, reclaim in the state %+v", known, o, tl.state.Reclaim)
		}
	}
}
