package evict

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/signal"
)

// nodeWithFullDisk returns a node whose nodefs.available is 10 GiB below the threshold.
// next makes the Steps up to the one after the node-level reclaim.
func nodeWithFullDisk(t *testing.T, pods ...Pod) (tl *timeline, next func() Orders) {
	tl = newTimeline(t, hard(signal.NodeFsAvailable, "20Gi"))
	tl.in.Policy.Layout = ImageFs // one kind of reclaim before victims are chosen
	tl.in.Pods = pods
	tl.observe(signal.NodeFsAvailable, 10*gi)
	at := time.Duration(0)
	return tl, func() Orders {
		t.Helper()
		wantReclaim(t, "before the choice", tl.step(at), ReclaimContainers)
		at += time.Millisecond
		return tl.step(at, Outcome{})
	}
}

func podWithLogs(name string, bytes int64, options ...option) Pod {
	return aPod(name, append(options, func(p *Pod) { p.Containers[0].Usage.Logs = bytes })...)
}

func diskUnknown(p *Pod) { p.DiskUnknown = true }

// A pod whose disk usage was not measured at all ranks last among its equals, and is
// evicted if it is the only one left.
func TestUnmeasuredDiskRanksLast(t *testing.T) {
	_, next := nodeWithFullDisk(t,
		podWithLogs("a", 100*gi, diskUnknown), podWithLogs("b", gi), podWithLogs("c", 0, withPriority(5)))
	o := next()
	wantVictims(t, "first", o, "b")
	if got, want := ranking(o.Ranking), []string{"b", "a", "c"}; !slices.Equal(got, want) || !o.Ranking[1].NoStats || o.Ranking[1].Usage != 0 {
		t.Errorf("ranking %v, unmeasured pod %+v; want %v and no usage", got, o.Ranking[1], want)
	}
	if len(o.Exempt) != 0 {
		t.Errorf("exempt %+v; want none", o.Exempt)
	}
	tl, next := nodeWithFullDisk(t, podWithLogs("a", 100*gi, diskUnknown))
	o = next()
	wantVictims(t, "alone", o, "a")
	if o.Evict[0].Annotations != nil {
		t.Errorf("annotations %v for an unmeasured pod; want none", o.Evict[0].Annotations)
	}
	if pod := tl.pod("a"); pod.usage(signal.MemoryAvailable, ImageFs) != pod.Usage.Memory {
		t.Error("usage(memory.available) ignores the memory of a pod with unmeasured disk usage")
	}
}

// If something outside the pods fills the disk, no pod is evicted: the few KiB of each
// would not relieve it.
func TestNegligibleCoverage(t *testing.T) {
	tl, next := nodeWithFullDisk(t, podWithLogs("a", 28<<10), podWithLogs("b", 28<<10), podWithLogs("c", 100*gi, func(p *Pod) { p.Static = true }))
	for range 2 {
		o := next()
		wantVictims(t, "56 KiB of 10 GiB", o)
		want := []Futility{{Signal: signal.NodeFsAvailable, Deficit: 10 * gi, Coverage: 56 << 10}}
		if diff := cmp.Diff(want, o.Futile); diff != "" {
			t.Errorf("futile (-want +got):\n%s", diff)
		}
	}
	// There is no back-off: a pod that starts to fill the disk is evicted at once.
	tl.pod("b").Containers[0].Usage.Logs = gi
	wantVictims(t, "1 GiB of 10 GiB", next(), "b")
}

func TestNegligible(t *testing.T) {
	for _, tt := range []struct {
		name    string
		signal  signal.Signal
		deficit int64
		pods    []Pod
		want    bool
	}{
		{"below both limits", signal.NodeFsAvailable, 10 * gi, []Pod{podWithLogs("a", 255*mi), podWithLogs("b", mi-1)}, true},
		{"256 MiB", signal.NodeFsAvailable, 10 * gi, []Pod{podWithLogs("a", 255*mi), podWithLogs("b", mi)}, false},
		{"5 %", signal.NodeFsAvailable, 20 * mi, []Pod{podWithLogs("a", mi)}, false},
		{"less than 5 %", signal.NodeFsAvailable, 20*mi + 1, []Pod{podWithLogs("a", mi)}, true},
		{"one pod is not measured", signal.NodeFsAvailable, 10 * gi, []Pod{podWithLogs("a", mi), podWithLogs("b", 0, diskUnknown)}, false},
		{"maximum deficit", signal.NodeFsAvailable, math.MaxInt64, []Pod{podWithLogs("a", 255*mi)}, true},
		{"maximum usage", signal.NodeFsAvailable, math.MaxInt64, []Pod{podWithLogs("a", math.MaxInt64), podWithLogs("b", math.MaxInt64)}, false},
		{"9,999 inodes", signal.NodeFsInodesFree, 1 << 30, []Pod{withLogsInodes("a", 9_999)}, true},
		{"10,000 inodes", signal.NodeFsInodesFree, 1 << 30, []Pod{withLogsInodes("a", 10_000)}, false},
	} {
		d := &decision{in: Inputs{Pods: tt.pods}, policy: &Policy{Layout: ImageFs}}
		ranked, _ := d.policy.Rank(tt.pods, tt.signal, &d.State, start)
		if got := d.negligible(tt.signal, tt.deficit, ranked); got != tt.want {
			t.Errorf("%s: negligible = %t; want %t", tt.name, got, tt.want)
		}
	}
}

func withLogsInodes(name string, n int64) Pod {
	return aPod(name, func(p *Pod) { p.Containers[0].Usage.LogsInodes = n })
}
