package pods

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/cri/critest"
)

// fakeTree is a Tree with given rows.
type fakeTree struct {
	rows         map[uint64]bpf.Row
	broken       bool
	otherCgroups uint64 // hash of cgroups without rows
}

func (f *fakeTree) Walk() bool      { return !f.broken }
func (f *fakeTree) SetHash() uint64 { return uint64(len(f.rows)) + f.otherCgroups<<32 }

func (f *fakeTree) Find(cgroup uint64) *bpf.Row {
	if row, ok := f.rows[cgroup]; ok && !f.broken {
		return &row
	}
	return nil
}

// grow adds anonymous memory to a cgroup.
func (f *fakeTree) grow(cgroup, bytes uint64) {
	row := f.rows[cgroup]
	row.Usage += bytes
	row.Anon += bytes
	f.rows[cgroup] = row
}

// newWalkedNode returns a node with a pod of two containers whose cgroups all walks find.
func newWalkedNode(t *testing.T) (*node, *Inventory, *fakeTree, critest.Pod) {
	t.Helper()
	n := newNode(t, true)
	p := n.addPod(critest.Pod{Containers: []critest.Container{{PID: 100}, {PID: 101}}})
	tree := &fakeTree{rows: map[uint64]bpf.Row{}}
	i := n.synced(func(o *Options) { o.Tree = tree })
	for _, g := range i.current.Load().measured {
		tree.rows[g.ID()] = bpf.Row{Cgroup: g.ID(), Usage: 128 << 20, Anon: 64 << 20, InactiveFile: 32 << 20, ActiveFile: 32 << 20}
	}
	return n, i, tree, p
}

// The files of a cgroup are read only after a walk has shown a noticeable change.
func TestMeasureByWalk(t *testing.T) {
	n, i, tree, p := newWalkedNode(t)
	now := time.Now()
	first := i.Measure(now)
	if got := first.Pods[0].Usage.Freeable; got != 120<<20 || !first.Walked {
		t.Fatalf("Measure() = %d MiB freeable, walked %t; want 120, true", got>>20, first.Walked)
	}
	n.cgroup(n.path(p, p.Containers[0]), 3<<30, 2<<30, 100)
	again := i.Measure(now.Add(time.Second))
	if got := again.Pods[0].Usage.Freeable; got != 120<<20 || !again.Taken.Equal(now.Add(time.Second)) || !again.ReadAt[0].Equal(now) {
		t.Errorf("unchanged: Measure() = %d MiB freeable, taken %v, read %v; want 120, a second later, at the first measurement", got>>20, again.Taken, again.ReadAt)
	}
	// One container changes a little, then noticeably.
	id := first.Handles[p.UID].Containers[slices.IndexFunc(first.Handles[p.UID].Containers, func(c evict.RunningContainer) bool { return c.InitPID == 100 })].CgroupID
	tree.grow(id, 100<<10)
	if got, ok := i.MeasureUnchanged(now.Add(2 * time.Second)); !ok || got.Version != again.Version || got.UsageGrowth != 100<<10 || !got.Taken.Equal(now.Add(2*time.Second)) {
		t.Errorf("changed by 100 KiB of 128 MiB: MeasureUnchanged() = %+v, %t; want version %d, a growth of 100 KiB, 2 seconds later, true", got, ok, again.Version)
	}
	tree.grow(id, 1<<20)
	if got, ok := i.MeasureUnchanged(now.Add(3 * time.Second)); ok {
		t.Errorf("changed: MeasureUnchanged() = %+v, true; want false", got)
	}
	changed := i.Measure(now.Add(3 * time.Second))
	if got := changed.Pods[0].Usage.Freeable; got != 2<<30+60<<20 || changed.Version == again.Version || !changed.ReadAt[0].Equal(now) {
		t.Errorf("changed: Measure() = %d MiB freeable, version %d, read %v; want 2108, another, at the first measurement", got>>20, changed.Version, changed.ReadAt)
	}
	if got := first.Pods[0].Usage.Freeable; got != 120<<20 {
		t.Errorf("the first snapshot has changed to %d MiB; want 120", got>>20)
	}
	// The files are read again after readingMaxAge, for what a walk does not show.
	n.cgroup(n.path(p, p.Containers[0]), 1<<30, 1<<30, 100)
	if got := i.Measure(now.Add(3*time.Second + readingMaxAge)).Pods[0].Usage.Freeable; got != 1<<30+60<<20 {
		t.Errorf("after %v: %d MiB freeable; want 1084", readingMaxAge, got>>20)
	}
	// Without a walk all files are read.
	tree.broken = true
	n.cgroup(n.path(p, p.Containers[0]), 512<<20, 512<<20, 100)
	if s := i.Measure(now.Add(4*time.Second + readingMaxAge)); s.Pods[0].Usage.Freeable != 572<<20 || s.Walked {
		t.Errorf("without a walk: %d MiB freeable, walked %t; want 572, false", s.Pods[0].Usage.Freeable>>20, s.Walked)
	}
}

// The files of a cgroup with a partial row are read each time.
func TestMeasurePartialRow(t *testing.T) {
	n, i, tree, p := newWalkedNode(t)
	now := time.Now()
	first := i.Measure(now)
	for id, row := range tree.rows {
		row.Partial = true
		tree.rows[id] = row
	}
	n.cgroup(n.path(p, p.Containers[0]), 3<<30, 2<<30, 100)
	for second := range 2 {
		again := i.Measure(now.Add(time.Duration(second) * time.Second))
		if got := again.Pods[0].Usage.Freeable; got != 2<<30+60<<20 || first.Pods[0].Usage.Freeable != 120<<20 {
			t.Errorf("after %d s: %d MiB freeable; want 2108, from the files", second, got>>20)
		}
	}
}

// Small changes of many pods add up, in Measure and in MeasureUnchanged. After
// InvalidateReadings the files of a pod are read.
func TestMeasureIsExact(t *testing.T) {
	n := newNode(t, true)
	const podCount, growth = 40, 250 << 10
	var last critest.Pod
	for pid := range podCount {
		last = n.addPod(critest.Pod{Containers: []critest.Container{{PID: 100 + pid}}})
	}
	tree := &fakeTree{rows: map[uint64]bpf.Row{}}
	i := n.synced(func(o *Options) { o.Tree = tree })
	for _, g := range i.current.Load().measured {
		tree.rows[g.ID()] = bpf.Row{Cgroup: g.ID(), Usage: 100 << 20, Anon: 60 << 20, InactiveFile: 20 << 20, ActiveFile: 20 << 20}
	}
	sum := func(s Snapshot) (sum int64) {
		for n := range s.Pods {
			sum += s.Pods[n].Usage.Memory
			if own := s.Pods[n].Containers[0].Usage.Memory; own != s.Pods[n].Usage.Memory {
				t.Errorf("pod %d: its only container uses %d of %d; want all", n, own, s.Pods[n].Usage.Memory)
			}
		}
		return sum + s.UsageGrowth
	}
	now := time.Now()
	before := sum(i.Measure(now))
	for id := range tree.rows {
		tree.grow(id, growth)
	}
	if s, ok := i.MeasureUnchanged(now.Add(time.Second)); !ok || sum(s)-before != podCount*growth {
		t.Errorf("%d pods grew by %d each: MeasureUnchanged() sums up to %d, %t; want %d", podCount, growth, sum(s)-before, ok, podCount*growth)
	}
	if got := sum(i.Measure(now.Add(2*time.Second))) - before; got != podCount*growth {
		t.Errorf("%d pods grew by %d each: Measure() sums up to %d; want %d", podCount, growth, got, podCount*growth)
	}
	// Half of a pod's heap has become tmpfs: a walk shows no difference.
	n.cgroup(n.path(last, last.Containers[0]), 100<<20, 30<<20, 100+podCount-1)
	freeable := func(s Snapshot) int64 {
		return s.Pods[slices.IndexFunc(s.Pods, func(p evict.Pod) bool { return p.UID == last.UID })].Usage.Freeable
	}
	later := now.Add(3 * time.Second)
	if got := freeable(i.Measure(later)); got != 60<<20 {
		t.Fatalf("with a walk %d MiB are freeable; want 60, unchanged", got>>20)
	}
	i.InvalidateReadings(last.UID)
	s := i.Measure(later)
	if got := freeable(s); got != 30<<20 {
		t.Errorf("after InvalidateReadings() %d MiB are freeable; want 30", got>>20)
	}
	if read := slices.IndexFunc(s.ReadAt, func(at time.Time) bool { return at.Equal(later) }); s.Pods[read].UID != last.UID {
		t.Errorf("read again: %s; want %s alone", s.Pods[read].UID, last.UID)
	}
	i.InvalidateReadings()
	if s := i.Measure(later); slices.ContainsFunc(s.ReadAt, later.After) {
		t.Errorf("after InvalidateReadings(): ReadAt = %v; want %v for all pods", s.ReadAt, later)
	}
}

// After a new list MeasureUnchanged fails even if no cgroup has changed.
func TestMeasureUnchangedNeedsSameList(t *testing.T) {
	_, i, _, _ := newWalkedNode(t)
	now := time.Now()
	if _, ok := i.MeasureUnchanged(now); ok {
		t.Error("MeasureUnchanged() before Measure() = true; want false")
	}
	i.Measure(now)
	if _, ok := i.MeasureUnchanged(now); !ok {
		t.Error("MeasureUnchanged() after Measure() = false; want true")
	}
	if err := i.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, ok := i.MeasureUnchanged(now); ok {
		t.Error("MeasureUnchanged() after another list = true; want false")
	}
}

// The files of a cgroup without a row are read.
func TestMeasureWithoutRow(t *testing.T) {
	n, i, tree, p := newWalkedNode(t)
	i.Measure(time.Now())
	rows := tree.rows
	tree.rows = map[uint64]bpf.Row{}
	n.cgroup(n.path(p, p.Containers[0]), 3<<30, 2<<30, 100)
	if got := i.Measure(time.Now()).Pods[0].Usage.Freeable; got != 2<<30+60<<20 {
		t.Errorf("not found: %d MiB freeable; want 2108", got>>20)
	}
	tree.rows = rows
	if got := i.Measure(time.Now()).Pods[0].Usage.Freeable; got != 2<<30+60<<20 {
		t.Errorf("found again: %d MiB freeable; want 2108", got>>20)
	}
}

// countingRuntime counts its lists.
type countingRuntime struct {
	fakeRuntime
	lists atomic.Int32
}

func (s *countingRuntime) List(ctx context.Context) (List, error) {
	s.lists.Add(1)
	return s.fakeRuntime.List(ctx)
}

// While walks each second find the listed cgroups and no others, lists become less frequent.
// A created or removed cgroup requests a list at once. Without walks the interval is as
// before. The runtime does not report changes, so watchedListInterval is the maximum.
func TestRunListsWhileWalked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &countingRuntime{fakeRuntime: fakeRuntime{watch: unwatchable}}
		tree := &fakeTree{rows: map[uint64]bpf.Row{}}
		n := &node{t: t, v2: true, proc: t.TempDir(), cgroups: t.TempDir()}
		n.build()
		i := n.inventory(func(o *Options) { o.Runtime, o.Tree = s, tree })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- i.Run(ctx) }()
		walk := func(seconds int) (lists int32) {
			synctest.Wait()
			before := s.lists.Load()
			for range seconds {
				time.Sleep(time.Second)
				i.Measure(time.Now())
				synctest.Wait()
			}
			return s.lists.Load() - before
		}
		time.Sleep(500 * time.Millisecond)
		if got := walk(15); got < 4 || got > 6 {
			t.Errorf("in the first 15 seconds: %d lists; want less and less frequent ones", got)
		}
		walk(20)
		if got := walk(60); got < 5 || got > 7 {
			t.Errorf("in an unchanged minute: %d lists; want one every %v", got, watchedListInterval)
		}
		tree.otherCgroups++
		if got := walk(1); got != 1 {
			t.Errorf("directly after a new cgroup: %d lists; want 1", got)
		}
		if got := walk(10); got < 3 || got > 5 {
			t.Errorf("in the 10 seconds after that: %d lists; want less and less frequent ones", got)
		}
		walk(20)
		tree.broken = true
		if got := walk(2); got != 0 {
			t.Errorf("directly after a failed walk: %d lists; want 0", got)
		}
		if got := walk(1); got != 1 {
			t.Errorf("%v after the last walk: %d lists; want 1", maxWalkAge, got)
		}
		if got := walk(10); got < 9 {
			t.Errorf("without walks: %d lists in 10 seconds; want one a second", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v; want no error", err)
		}
	})
}

// A long interval needs both reports of changes and all pods below kubepods: otherwise a pod
// outside the walked cgroups could go unseen for long.
func TestNextListIn(t *testing.T) {
	for _, tt := range []struct {
		unchanged                 time.Duration
		watched, allBelowKubepods bool
		want                      time.Duration
	}{
		{0, false, false, ListInterval},
		{0, true, true, watchedListInterval},
		{4 * time.Second, false, true, 4 * time.Second},
		{time.Hour, false, true, watchedListInterval},
		{time.Hour, true, false, watchedListInterval},
		{20 * time.Second, true, true, 20 * time.Second},
		{time.Hour, true, true, unchangedListInterval},
	} {
		if got := nextListIn(tt.unchanged, tt.watched, tt.allBelowKubepods); got != tt.want {
			t.Errorf("nextListIn(%v, %t, %t) = %v; want %v", tt.unchanged, tt.watched, tt.allBelowKubepods, got, tt.want)
		}
	}
}

// All cgroups of all pods must be below kubepods.
func TestAllBelowKubepods(t *testing.T) {
	for name, tt := range map[string]struct {
		parents []string
		want    bool
	}{
		"no pods":                       {nil, false},
		"all":                           {[]string{"/kubepods/besteffort/poda", "/kubepods/podb"}, true},
		"one outside":                   {[]string{"/kubepods/besteffort/poda", "/foo/podb"}, false},
		"a similar name":                {[]string{"/kubepods2/poda"}, false},
		"default parent of the runtime": {[]string{"/k8s.io"}, false},
	} {
		n := newNode(t, true)
		n.cgroup("/kubepods", 1<<30, 1<<30)
		for pid, parent := range tt.parents {
			n.addPod(critest.Pod{CgroupParent: parent, Containers: []critest.Container{{PID: 100 + pid}}})
		}
		if got := n.synced().current.Load().allBelowKubepods; got != tt.want {
			t.Errorf("%s: allBelowKubepods = %t; want %t", name, got, tt.want)
		}
	}
}

// Walks do not show a container outside the walked tree, nor the start of one that was
// created.
func TestUnchangedFor(t *testing.T) {
	_, i, tree, _ := newWalkedNode(t)
	start := time.Now()
	const later = 7 * time.Second
	unchanged := func() time.Duration {
		i.Measure(start)
		i.Measure(start.Add(later))
		return i.unchangedFor(start.Add(later))
	}
	if got := unchanged(); got != later {
		t.Errorf("all found: unchangedFor() = %v; want %v", got, later)
	}
	i.current.Load().hasUnstarted = true
	if got := unchanged(); got != 0 {
		t.Errorf("container created and not running: unchangedFor() = %v; want 0", got)
	}
	i.current.Load().hasUnstarted = false
	for id := range maps.Keys(tree.rows) {
		delete(tree.rows, id)
		break
	}
	if got := unchanged(); got != 0 {
		t.Errorf("container not found: unchangedFor() = %v; want 0", got)
	}
	i.current.Load().measured = nil
	if got := unchanged(); got != later {
		t.Errorf("no containers: unchangedFor() = %v; want %v", got, later)
	}
	if got := i.unchangedFor(start.Add(later + maxWalkAge)); got != 0 {
		t.Errorf("no recent walk: unchangedFor() = %v; want 0", got)
	}
}
