package evict

import (
	"errors"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// On a read-only filesystem nothing can be freed, so no pod is evicted for it, however
// low it is, until it is writable again. Other signals are not affected.
func TestReadOnlyFilesystem(t *testing.T) {
	tl := newTimeline(t, hard(signal.NodeFsAvailable, "1Gi"), hard(signal.NodeFsInodesFree, "1000"), hard(signal.PIDAvailable, "1000"))
	tl.in.Pods = []Pod{aPod("a", withPIDs(900), withInodes(1)), aPod("b", withPIDs(1), withInodes(900))}
	tl.observe(signal.NodeFsAvailable, 0)
	tl.observe(signal.NodeFsInodesFree, 0)
	readOnly := func(yes bool) {
		for _, s := range []signal.Signal{signal.NodeFsAvailable, signal.NodeFsInodesFree} {
			tl.in.Observations[s].ReadOnly = yes
		}
	}
	readOnly(true)
	o := tl.step(0)
	wantReclaim(t, "read-only", o, "")
	wantVictims(t, "read-only", o)
	wantMet(t, "read-only", o, signal.NodeFsAvailable, signal.NodeFsInodesFree)
	wantConditions(t, "read-only", o, signal.DiskPressure)
	tl.observe(signal.PIDAvailable, 10)
	wantVictims(t, "another signal", tl.step(time.Second), "a")
	tl.observe(signal.PIDAvailable, 5000)
	readOnly(false)
	wantReclaim(t, "writable again", tl.step(time.Minute), ReclaimContainers)
}

func TestReclaimStages(t *testing.T) {
	for _, tt := range []struct {
		name   string
		layout Layout
		signal signal.Signal
		stages []ReclaimKind
	}{
		{"single", SingleFs, signal.NodeFsAvailable, []ReclaimKind{ReclaimContainers, ReclaimImages}},
		{"imagefs, nodefs", ImageFs, signal.NodeFsAvailable, []ReclaimKind{ReclaimContainers}},
		{"imagefs, imagefs", ImageFs, signal.ImageFsAvailable, []ReclaimKind{ReclaimContainers, ReclaimImages}},
		{"split, imagefs", SplitFs, signal.ImageFsAvailable, []ReclaimKind{ReclaimImages}},
		{"split, containerfs", SplitFs, signal.ContainerFsAvailable, []ReclaimKind{ReclaimContainers}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			everything := func(p *Pod) {
				p.Containers[0].Usage = ContainerUsage{Rootfs: 20 * gi, Logs: 20 * gi, ImagesBytes: 20 * gi}
			}
			tl := newTimeline(t, hard(tt.signal, "10Gi").reclaiming("2Gi"), hard(signal.PIDAvailable, "100"))
			tl.in.Policy.Layout = tt.layout
			tl.in.Pods = []Pod{aPod("a", everything, withPIDs(1000))}
			tl.observe(tt.signal, 5*gi)
			tl.observe(signal.PIDAvailable, 1)
			o := tl.step(0)
			for i, kind := range tt.stages {
				wantReclaim(t, "stage", o, kind)
				wantVictims(t, "stage", o)
				if o.Reclaim.Signal != tt.signal || o.Reclaim.Deficit != 7*gi {
					t.Errorf("stage %d: reclaim = %+v; want %s and a deficit of 7Gi", i, *o.Reclaim, tt.signal)
				}
				if tl.state.Reclaim == nil {
					t.Errorf("stage %d: the reclaim is not waited for", i)
				}
				o = tl.step(time.Duration(i)*time.Second, Outcome{Err: errors.New("an error does not end the stages")})
			}
			wantReclaim(t, "after the stages", o, "")
			wantVictims(t, "after the stages", o, "a")
			if tl.state.Reclaim != nil {
				t.Errorf("after the stages: state.Reclaim = %+v; want nil", *tl.state.Reclaim)
			}
		})
	}
}

// If a reclaim frees enough, no pod is evicted, and the Step that finds this acts on no
// other signal.
func TestReclaimFreesEnough(t *testing.T) {
	tl := newTimeline(t, hard(signal.NodeFsAvailable, "10Gi"), hard(signal.ImageFsAvailable, "10Gi"), hard(signal.PIDAvailable, "100"))
	tl.in.Pods = []Pod{aPod("a", withRootfs(50*gi), withPIDs(500))}
	tl.observe(signal.NodeFsAvailable, gi)
	tl.observe(signal.ImageFsAvailable, gi)
	tl.observe(signal.PIDAvailable, 200)
	wantReclaim(t, "0s", tl.step(0), ReclaimContainers)
	tl.observe(signal.NodeFsAvailable, 10*gi)
	tl.observe(signal.PIDAvailable, 1)
	o := tl.step(time.Second, Outcome{})
	wantReclaim(t, "1s", o, "")
	wantVictims(t, "1s", o)
	wantMet(t, "1s", o, signal.ImageFsAvailable, signal.PIDAvailable)
	o = tl.step(2 * time.Second)
	wantReclaim(t, "2s", o, ReclaimContainers)
	wantVictims(t, "2s", o)
}

// A running reclaim postpones disk signals, never memory.
func TestMemoryDoesNotWaitForReclaim(t *testing.T) {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"), hard(signal.NodeFsAvailable, "10Gi"))
	tl.in.Pods = []Pod{aPod("a", using(gi)), aPod("b", withRootfs(gi))}
	tl.observe(signal.MemoryAvailable, 2*gi)
	tl.observe(signal.NodeFsAvailable, 0)
	wantReclaim(t, "0s", tl.step(0), ReclaimContainers)
	tl.observe(signal.MemoryAvailable, 900*mi)
	o := tl.step(time.Second)
	wantReclaim(t, "1s", o, "")
	wantVictims(t, "1s", o, "a")
	o = tl.step(1500*time.Millisecond, Outcome{})
	wantReclaim(t, "1.5s", o, ReclaimImages)
}

// The Step after a reclaim acts on the signal of the reclaim. Other signals, except
// hard memory thresholds, wait for the next Step.
func TestOtherSignalsWaitAfterReclaim(t *testing.T) {
	for _, tt := range []struct {
		name   string
		memory Threshold
		want   []string
	}{
		{"hard memory does not wait", hard(signal.MemoryAvailable, "1Gi"), []string{"a"}},
		{"soft memory waits", soft(signal.MemoryAvailable, "1Gi", time.Nanosecond), nil},
	} {
		tl := newTimeline(t, hard(signal.NodeFsAvailable, "10Gi"), tt.memory)
		tl.in.Pods = []Pod{aPod("a", using(2*gi))}
		tl.observe(signal.MemoryAvailable, 2*gi)
		tl.observe(signal.NodeFsAvailable, gi)
		wantReclaim(t, tt.name, tl.step(0), ReclaimContainers)
		tl.observe(signal.NodeFsAvailable, 20*gi)
		tl.observe(signal.MemoryAvailable, 0)
		tl.step(time.Second) // the reclaim is still running
		tl.state.Victims = nil
		wantVictims(t, tt.name, tl.step(time.Second+2, Outcome{}), tt.want...)
		tl.state.Victims = nil
		wantVictims(t, tt.name+": the next step", tl.step(time.Second+3), "a")
	}
}

// Also if no pod may be evicted for the disk after its reclaim, that Step acts on no
// other signal.
func TestOtherSignalsWaitIfNoPodEligible(t *testing.T) {
	tl := newTimeline(t, hard(signal.NodeFsAvailable, "10Gi"), hard(signal.PIDAvailable, "100"))
	tl.in.Policy.Layout = ImageFs
	tl.in.Pods = []Pod{aPod("m", func(p *Pod) { p.Mirror = true })}
	tl.observe(signal.NodeFsAvailable, gi)
	tl.observe(signal.PIDAvailable, 0)
	wantReclaim(t, "0s", tl.step(0), ReclaimContainers)
	tl.in.Pods = append(tl.in.Pods, aPod("a", withPIDs(200)))
	tl.state.Backoffs = []Backoff{{Signal: signal.NodeFsAvailable, Until: start.Add(time.Minute)}}
	wantVictims(t, "1s", tl.step(time.Second, Outcome{}))
}

// A reclaim that freed nothing is not ordered again before the next attempt is due,
// unless a pod would be evicted after it. Other signals do not wait for it.
func TestFruitlessReclaimIsNotRepeated(t *testing.T) {
	disk := hard(signal.NodeFsAvailable, "20Gi")
	tl := newTimeline(t, disk, hard(signal.PIDAvailable, "100"))
	tl.in.Policy.Layout = ImageFs // one kind of reclaim before victims are chosen
	tl.in.Pods = []Pod{podWithLogs("a", 28<<10, withPIDs(500))}
	tl.observe(signal.NodeFsAvailable, 10*gi)
	tl.observe(signal.PIDAvailable, 500)
	wantReclaim(t, "at first", tl.step(0), ReclaimContainers)
	wantVictims(t, "negligible pods", tl.step(time.Second, Outcome{}))

	tl.in.NothingReclaimed = []ThresholdKey{disk.Key()}
	o := tl.step(2 * time.Second)
	wantReclaim(t, "again", o, "")
	wantVictims(t, "again", o)
	if len(o.Futile) != 1 || o.Futile[0].Coverage != 28<<10 {
		t.Errorf("futile = %+v; want coverage 28 KiB", o.Futile)
	}
	tl.observe(signal.PIDAvailable, 50)
	wantVictims(t, "another signal", tl.step(3*time.Second), "a")
	tl.observe(signal.PIDAvailable, 500)

	tl.state.Victims = nil
	tl.pod("a").Containers[0].Usage.Logs = 5 * gi
	o = tl.step(4 * time.Second)
	wantReclaim(t, "before an eviction", o, ReclaimContainers)
	wantVictims(t, "before an eviction", o)
	wantVictims(t, "after the reclaim", tl.step(5*time.Second, Outcome{}), "a")

	tl.state.Victims, tl.state.Backoffs = nil, nil
	tl.in.Pods = nil
	wantReclaim(t, "without pods", tl.step(6*time.Second), "")
	tl.in.NothingReclaimed = nil
	wantReclaim(t, "when an attempt is due", tl.step(7*time.Second), ReclaimContainers)
}
