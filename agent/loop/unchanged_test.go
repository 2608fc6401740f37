package loop

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/hot"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// unchangedTree is a pods.Tree without cgroups, so that nothing ever changes.
type unchangedTree struct{ broken bool }

func (s *unchangedTree) Walk() bool           { return !s.broken }
func (s *unchangedTree) Find(uint64) *bpf.Row { return nil }
func (s *unchangedTree) SetHash() uint64      { return 1 }

// emptySource is a runtime that lists no pods.
type emptySource struct{}

func (emptySource) Name() string                            { return "empty" }
func (emptySource) List(context.Context) (pods.List, error) { return pods.List{}, nil }
func (emptySource) Watch(context.Context, func()) error     { return pods.ErrUnwatchable }

// An iteration in which nothing has changed takes no step; everything that a step could
// act upon leads to one.
func TestIterateUnchanged(t *testing.T) {
	n := newNode(t, settings)
	n.used = gi
	l := n.Loop
	tree := &unchangedTree{}
	listed := pods.New(pods.Options{Hierarchy: n.hierarchy, Procfs: "/proc", Tree: tree})
	l.inventory = listed
	t.Cleanup(func() { listed.Close() })
	proc := n.proc
	waited := func(microseconds int) {
		kerneltest.Write(t, proc, map[string]string{"vmstat": fmt.Sprintf("pgscan_kswapd 0\npgscan_direct %d\n", microseconds), "pressure/memory": fmt.Sprintf(
			"some avg10=0.00 avg60=0.00 avg300=0.00 total=%d\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=%[1]d\n", microseconds)})
	}
	waited(0)
	all, err := signal.ParseThreshold("99.9%")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	step := func() {
		l.view = l.iterate(t.Context(), start)
		if !l.view.nothingPending() || l.view.anyThresholdMet() {
			t.Fatalf("orders on a node with enough memory: %+v", l.view.Orders)
		}
	}
	if l.iterateUnchanged(start) != nil {
		t.Error("iterateUnchanged() before the first step = a view; want nil")
	}
	step()
	later := start.Add(time.Second)
	v := l.iterateUnchanged(later)
	if v == nil || !v.Time.Equal(later) || !v.Observations[signal.MemoryAvailable].Time.Equal(later) {
		t.Fatalf("iterateUnchanged() = %+v; want a view of now", v)
	}
	memory := l.memory
	for name, change := range map[string]func(){
		"an outcome":             func() { l.outcomes = []evict.Outcome{{UID: "u", Err: errors.New("it can't")}} },
		"a victim to resume":     func() { l.toResume = map[string]bool{"u": true} },
		"a stall":                func() { n.stalls = make([]lanes.Stall, 1) },
		"a kill of the hot path": func() { l.arbiter.Acquire(l.generation) },
		"a victim":               func() { l.view.State.Victims = make([]evict.Victim, 1) },
		"a condition":            func() { l.view.State.Conditions = make([]evict.ConditionTimer, 1) },
		"unreadable":             func() { l.view.Orders.Unreadable = make([]signal.Signal, 1) },
		"another mode":           func() { l.view.Mode.Reasons = []string{"because"} },
		"long ago":               func() { l.lastStep = later.Add(-maxStepGap) },
		"reclaim stalls":         func() { waited(100_000) },
		"no walk":                func() { tree.broken = true },
		"a list": func() {
			if err := listed.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		"another measurement": func() { l.inventory.Measure(start) },
		"less is unaccounted": func() {
			l.unaccounted = evict.UnaccountedBaseline{}
			for i := range 3 {
				l.unaccounted.Update(start.Add(time.Duration(i)), 1<<40)
			}
			listed = pods.New(pods.Options{Hierarchy: n.hierarchy, Procfs: "/proc", Tree: tree, Runtime: emptySource{}})
			t.Cleanup(func() { listed.Close() })
			if err := listed.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			l.inventory = listed
			l.view.Snapshot = l.inventory.Measure(start)
			l.memory = withPods(t)
		},
		"a threshold": func() {
			p := *l.policy
			p.Thresholds = []evict.Threshold{{Threshold: signal.Threshold{Signal: signal.MemoryAvailable, Value: all}}}
			l.view.Policy = &p
		},
	} {
		step()
		change()
		if l.iterateUnchanged(later) != nil {
			t.Errorf("%s: iterateUnchanged() = a view; want nil, and so a step", name)
		}
		l.outcomes, l.toResume, n.stalls = nil, nil, nil
		tree.broken = false
		waited(0)
		l.reclaimStalls = stallDetector{proc: l.reclaimStalls.proc, tree: l.reclaimStalls.tree}
		l.memory, l.unaccounted = memory, evict.UnaccountedBaseline{}
		if _, generation := l.arbiter.TakeKills(nil); generation != l.generation {
			l.generation = generation
		}
	}
}

// Memory that a pod frees between the two readings makes the unaccounted amount too low. It
// must not make the known remainder look like an unlisted pod.
func TestUnaccountedWhilePodsShrink(t *testing.T) {
	const mi = 1 << 20
	hog := pods.Snapshot{Pods: []evict.Pod{{UID: "u", HasStats: true, Usage: evict.PodUsage{Memory: 8192 * mi}}}}
	for _, tc := range []struct {
		name     string
		snapshot pods.Snapshot // before the node was read; after that there are no pods
		kubepods int64
		change   func(l *Loop)
		want     int64
	}{
		{"nothing happens", pods.Snapshot{}, 150, nil, 150},
		{"less is left", pods.Snapshot{}, 20, nil, 20},
		{"a pod ends", hog, 8192 + 70, nil, 150},
		{"a pod has ended", hog, 90, nil, 90},
		{"a victim dies", pods.Snapshot{}, 20, func(l *Loop) { l.state.Victims = []evict.Victim{{UID: "u", Status: evict.Unsettled}} }, 150},
		{"a victim is stuck", pods.Snapshot{}, 20, func(l *Loop) { l.state.Victims = []evict.Victim{{UID: "u", Status: evict.Stuck}} }, 20},
		{"a pod was just killed", pods.Snapshot{}, 20, func(l *Loop) { l.hotKills = make([]hot.Kill, 1) }, 150},
	} {
		l := &Loop{inventory: pods.New(pods.Options{Hierarchy: &cgroup.Hierarchy{Memory: kernel.FS(t.TempDir())}, Procfs: kernel.FS(t.TempDir())})}
		at := time.Unix(1000, 0)
		for i := range 3 {
			l.unaccounted.Update(at.Add(time.Duration(i)), 150*mi)
		}
		if tc.change != nil {
			tc.change(l)
		}
		tc.snapshot.ListRequested = at.Add(2)
		l.updateUnaccounted(&View{Snapshot: tc.snapshot, Node: memory.Node{Kubepods: tc.kubepods * mi, KubepodsKnown: true}})
		if got := l.unaccounted.Bytes(); got != tc.want*mi {
			t.Errorf("%s: %d MiB unaccounted; want %d", tc.name, got/mi, tc.want)
		}
	}
}

// Unreadable usage of kubepods is not taken for 0.
func TestUnlistedPodWithUnreadableKubepods(t *testing.T) {
	const usage, inactive = 1 << 30, 100 << 20
	stat := fmt.Sprintf("total_cache 0\ntotal_rss 1\ntotal_shmem 0\ntotal_mapped_file 0\ntotal_inactive_file %d\ntotal_active_file 0\n", inactive)
	tree := podsTree(t, fmt.Sprintf("%d\n", usage), stat)
	listed := pods.New(pods.Options{Hierarchy: &cgroup.Hierarchy{Memory: kernel.FS(t.TempDir())}, Procfs: "/proc"})
	l := &Loop{memory: readTree(t, tree), lanes: fakeLanes{&node{}}, inventory: listed}
	v := &View{Time: time.Now()}
	v.Snapshot = l.inventory.Measure(v.Time)
	l.readNode(v)
	if !v.Node.KubepodsKnown || v.Node.Kubepods != usage-inactive {
		t.Fatalf("the node = %+v; want %d used by its pods", v.Node, usage-inactive)
	}
	kerneltest.Write(t, tree, map[string]string{"memory/kubepods/memory.stat": "nonsense\n"})
	before := l.unaccounted
	v.Snapshot = l.inventory.Measure(v.Time)
	l.readNode(v)
	if v.Node.KubepodsKnown || v.unaccounted() != usage-inactive || l.unaccounted != before {
		t.Fatalf("the pods can't be read: the node = %+v, %d unaccounted; want at most %d, and no new sample", v.Node, v.unaccounted(), usage-inactive)
	}
	v.Orders.Evict = []evict.Order{{UID: "a", Cause: signal.MemoryAvailable.String(), Hard: true}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			_ = listed.Sync(ctx) // until a list was waited for
			time.Sleep(time.Millisecond)
		}
	}()
	if !l.mustRepeatForUnlistedPod(ctx, v) {
		t.Error("mustRepeatForUnlistedPod() = false; want it to wait for a list")
	}
}

// A pod that is about to be evicted by files that were read earlier is read again.
func TestInvalidateStale(t *testing.T) {
	now := time.Unix(1000, 0)
	l := &Loop{inventory: pods.New(pods.Options{Hierarchy: &cgroup.Hierarchy{Memory: kernel.FS(t.TempDir())}, Procfs: "/proc"})}
	v := &View{Snapshot: pods.Snapshot{
		Pods:   []evict.Pod{{UID: "a"}, {UID: "b"}, {UID: "c"}},
		ReadAt: []time.Time{now.Add(-time.Minute), now, now.Add(-time.Second)},
	}}
	for uid, want := range map[string]bool{"a": true, "b": false, "c": true, "d": false} {
		v.Orders.Evict = []evict.Order{{UID: uid}}
		if got := l.invalidateStale(v, now); got != want {
			t.Errorf("%s is to be evicted: invalidateStale() = %t; want %t", uid, got, want)
		}
	}
	if v.Orders.Evict = nil; l.invalidateStale(v, now) {
		t.Error("no pod is to be evicted: invalidateStale() = true; want false")
	}
}

func TestNearThreshold(t *testing.T) {
	value, err := signal.ParseThreshold("1Gi")
	if err != nil {
		t.Fatal(err)
	}
	v := &View{Policy: &evict.Policy{Thresholds: []evict.Threshold{{Threshold: signal.Threshold{Signal: signal.MemoryAvailable, Value: value}}}}}
	for _, tc := range []struct {
		available int64 // MiB of 16 GiB
		walked    bool
		want      time.Duration
	}{
		{8192, true, idleInterval},
		{2049, true, idleInterval},
		{2047, true, nearInterval},
		{2047, false, idleInterval},
	} {
		v.Observations[signal.MemoryAvailable] = signal.Observation{Status: signal.Observed, Available: tc.available << 20, Capacity: 16 << 30}
		v.Snapshot.Walked = tc.walked
		v.Time = time.Now()
		if got := nextInterval(v, lanes.Alarm{}); got != tc.want {
			t.Errorf("with %d MiB available, walked %t: nextInterval() = %v; want %v", tc.available, tc.walked, got, tc.want)
		}
	}
	v.Snapshot.Walked = true
	v.Took = 20 * time.Millisecond
	if got, want := nextInterval(v, lanes.Alarm{}), idleRestFactor*v.Took; got != want {
		t.Errorf("after an iteration of %v: nextInterval() = %v; want %v", v.Took, got, want)
	}
}

// withPods reads the memory of a node whose pods use one byte.
func withPods(t *testing.T) *memory.Memory {
	t.Helper()
	return readTree(t, podsTree(t, "1\n", "total_cache 0\ntotal_rss 1\ntotal_shmem 0\ntotal_mapped_file 0\ntotal_inactive_file 0\ntotal_active_file 0\n"))
}

// podsTree is a tree of cgroups in which all pods have a usage and a memory.stat.
func podsTree(t *testing.T, usage, stat string) string {
	t.Helper()
	return kerneltest.Tree(t, map[string]string{
		"memory/memory.usage_in_bytes": "1\n", "memory/memory.stat": "total_rss 1\n", "memory/cgroup.procs": "",
		"memory/kubepods/memory.usage_in_bytes": usage, "memory/kubepods/memory.limit_in_bytes": "9223372036854771712\n", "memory/kubepods/cgroup.procs": "",
		"memory/kubepods/memory.stat": stat,
	})
}

func readTree(t *testing.T, tree string) *memory.Memory {
	t.Helper()
	h, err := cgroup.Find(kernel.FS(tree))
	if err != nil {
		t.Fatal(err)
	}
	m, err := memory.Open(memory.Options{Procfs: "/proc", Hierarchy: h})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}
