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

// fakeTree is a Tree that walks whenever it works.
type fakeTree struct {
	rows    map[uint64]bpf.Row
	broken  bool
	strange uint64 // in the shape
}

func (f *fakeTree) Walk() bool    { return !f.broken }
func (f *fakeTree) Shape() uint64 { return uint64(len(f.rows)) + f.strange<<32 }

func (f *fakeTree) Find(cgroup uint64) *bpf.Row {
	if row, ok := f.rows[cgroup]; ok && !f.broken {
		return &row
	}
	return nil
}

// use has the walk find so much more, anonymous, in a cgroup.
func (f *fakeTree) use(cgroup, bytes uint64) {
	row := f.rows[cgroup]
	row.Usage += bytes
	row.Anon += bytes
	f.rows[cgroup] = row
}

// walked has a pod of two containers on a node whose walks find all that is
// measured.
func walked(t *testing.T) (*node, *Inventory, *fakeTree, critest.Pod) {
	t.Helper()
	n := newNode(t, true)
	p := n.addPod(critest.Pod{Containers: []critest.Container{{PID: 100}, {PID: 101}}})
	tree := &fakeTree{rows: map[uint64]bpf.Row{}}
	i := n.synced(func(o *Options) { o.Tree = tree })
	for _, g := range i.world.Load().groups {
		tree.rows[g.ID()] = bpf.Row{Cgroup: g.ID(), Usage: 128 << 20, Anon: 64 << 20, InactiveFile: 32 << 20, ActiveFile: 32 << 20}
	}
	return n, i, tree, p
}

// Of what a walk finds not to have moved nothing is read; of what has, all.
func TestMeasureByWalk(t *testing.T) {
	n, i, tree, p := walked(t)
	now := time.Now()
	first := i.Measure(now)
	if got := first.Pods[0].Usage.Freeable; got != 120<<20 || !first.Walked {
		t.Fatalf("Measure() = %d MiB freeable, walked %t; want 120, true", got>>20, first.Walked)
	}
	n.cgroup(n.path(p, p.Containers[0]), 3<<30, 2<<30, 100)
	again := i.Measure(now.Add(time.Second))
	if got := again.Pods[0].Usage.Freeable; got != 120<<20 || !again.Taken.Equal(now.Add(time.Second)) || !again.Read[0].Equal(now) {
		t.Errorf("nothing moved: Measure() = %d MiB freeable, taken %v, read %v; want 120, a second later, then", got>>20, again.Taken, again.Read)
	}
	// One container moves a little, then noticeably.
	id := first.Handles[p.UID].Containers[slices.IndexFunc(first.Handles[p.UID].Containers, func(c evict.ContainerHandle) bool { return c.InitPID == 100 })].CgroupID
	tree.use(id, 100<<10)
	if got, ok := i.Still(now.Add(2 * time.Second)); !ok || got.Version != again.Version || got.Moved != 100<<10 || !got.Taken.Equal(now.Add(2*time.Second)) {
		t.Errorf("moved by 100 KiB of 128 MiB: Still() = %+v, %t; want version %d, moved by that, 2 seconds later, true", got, ok, again.Version)
	}
	tree.use(id, 1<<20)
	if got, ok := i.Still(now.Add(3 * time.Second)); ok {
		t.Errorf("moved: Still() = %+v, true; want false", got)
	}
	moved := i.Measure(now.Add(3 * time.Second))
	if got := moved.Pods[0].Usage.Freeable; got != 2<<30+60<<20 || moved.Version == again.Version || !moved.Read[0].Equal(now) {
		t.Errorf("moved: Measure() = %d MiB freeable, version %d, read %v; want 2108, another, the other container's then", got>>20, moved.Version, moved.Read)
	}
	if got := first.Pods[0].Usage.Freeable; got != 120<<20 {
		t.Errorf("the first snapshot has changed to %d MiB; want 120", got>>20)
	}
	// What a walk can't tell, the files do now and then.
	n.cgroup(n.path(p, p.Containers[0]), 1<<30, 1<<30, 100)
	if got := i.Measure(now.Add(3*time.Second + readAgain)).Pods[0].Usage.Freeable; got != 1<<30+60<<20 {
		t.Errorf("after %v: %d MiB freeable; want 1084", readAgain, got>>20)
	}
	// Without a walk everything is read.
	tree.broken = true
	n.cgroup(n.path(p, p.Containers[0]), 512<<20, 512<<20, 100)
	if s := i.Measure(now.Add(4*time.Second + readAgain)); s.Pods[0].Usage.Freeable != 572<<20 || s.Walked {
		t.Errorf("without a walk: %d MiB freeable, walked %t; want 572, false", s.Pods[0].Usage.Freeable>>20, s.Walked)
	}
}

// A cgroup of which a walk has visited only a part is read from its files each time.
func TestMeasurePartialRow(t *testing.T) {
	n, i, tree, p := walked(t)
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
			t.Errorf("after %d s: %d MiB freeable; want 2108, as the files have it", second, got>>20)
		}
	}
}

// The little that each pod has moved by adds up to what all have, in a measurement
// and where nothing has moved noticeably; what it consists of is read when asked for.
func TestMeasureIsExact(t *testing.T) {
	n := newNode(t, true)
	const many, little = 40, 250 << 10
	var last critest.Pod
	for pid := range many {
		last = n.addPod(critest.Pod{Containers: []critest.Container{{PID: 100 + pid}}})
	}
	tree := &fakeTree{rows: map[uint64]bpf.Row{}}
	i := n.synced(func(o *Options) { o.Tree = tree })
	for _, g := range i.world.Load().groups {
		tree.rows[g.ID()] = bpf.Row{Cgroup: g.ID(), Usage: 100 << 20, Anon: 60 << 20, InactiveFile: 20 << 20, ActiveFile: 20 << 20}
	}
	sum := func(s Snapshot) (sum int64) {
		for n := range s.Pods {
			sum += s.Pods[n].Usage.Memory
			if own := s.Pods[n].Containers[0].Usage.Memory; own != s.Pods[n].Usage.Memory {
				t.Errorf("pod %d: its only container uses %d of %d; want all", n, own, s.Pods[n].Usage.Memory)
			}
		}
		return sum + s.Moved
	}
	now := time.Now()
	before := sum(i.Measure(now))
	for id := range tree.rows {
		tree.use(id, little)
	}
	if s, ok := i.Still(now.Add(time.Second)); !ok || sum(s)-before != many*little {
		t.Errorf("%d pods grew by %d each: Still() tells of %d, %t; want %d", many, little, sum(s)-before, ok, many*little)
	}
	if got := sum(i.Measure(now.Add(2*time.Second))) - before; got != many*little {
		t.Errorf("%d pods grew by %d each: Measure() tells of %d; want %d", many, little, got, many*little)
	}
	// Half of one's heap has become tmpfs: the walk sees no difference.
	n.cgroup(n.path(last, last.Containers[0]), 100<<20, 30<<20, 100+many-1)
	freeable := func(s Snapshot) int64 {
		return s.Pods[slices.IndexFunc(s.Pods, func(p evict.Pod) bool { return p.UID == last.UID })].Usage.Freeable
	}
	later := now.Add(3 * time.Second)
	if got := freeable(i.Measure(later)); got != 60<<20 {
		t.Fatalf("by the walk %d MiB are freeable; want it to tell of 60 still", got>>20)
	}
	i.Forget(last.UID)
	s := i.Measure(later)
	if got := freeable(s); got != 30<<20 {
		t.Errorf("after Forget() %d MiB are freeable; want 30", got>>20)
	}
	if read := slices.IndexFunc(s.Read, func(at time.Time) bool { return at.Equal(later) }); s.Pods[read].UID != last.UID {
		t.Errorf("read again: %s; want %s alone", s.Pods[read].UID, last.UID)
	}
	i.Forget()
	if s := i.Measure(later); slices.ContainsFunc(s.Read, later.After) {
		t.Errorf("after Forget() of all Read = %v; want %v for all", s.Read, later)
	}
}

// A list that came meanwhile is another, though nothing has moved.
func TestStillByTheSameList(t *testing.T) {
	_, i, _, _ := walked(t)
	now := time.Now()
	if _, ok := i.Still(now); ok {
		t.Error("Still() before Measure() = true; want false")
	}
	i.Measure(now)
	if _, ok := i.Still(now); !ok {
		t.Error("Still() after Measure() = false; want true")
	}
	if err := i.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, ok := i.Still(now); ok {
		t.Error("Still() after another list = true; want false")
	}
}

// A cgroup that a walk does not find is read, and so is found to be gone.
func TestMeasureWhatIsNotWalked(t *testing.T) {
	n, i, tree, p := walked(t)
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

// countedSource counts how often it was asked.
type countedSource struct {
	source
	lists atomic.Int32
}

func (s *countedSource) List(ctx context.Context) (List, error) {
	s.lists.Add(1)
	return s.source.List(ctx)
}

// While walks find the cgroups that are listed and no others, once a second, the
// list is asked for rarely; at once when one comes or goes, ever more rarely after
// that, and as before where nobody walks any more. The source does not tell of
// changes, so that it is asked now and then all the same.
func TestRunListsWhileWalked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &countedSource{source: source{watch: unwatchable}}
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
			t.Errorf("in the first 15 seconds: %d lists; want them ever more rarely", got)
		}
		walk(20)
		if got := walk(60); got < 5 || got > 7 {
			t.Errorf("in a minute of calm: %d lists; want one every %v", got, watchedEvery)
		}
		tree.strange++
		if got := walk(1); got != 1 {
			t.Errorf("right after a cgroup came: %d lists; want 1", got)
		}
		if got := walk(10); got < 3 || got > 5 {
			t.Errorf("in the 10 seconds after that: %d lists; want them ever more rarely", got)
		}
		walk(20)
		tree.broken = true
		if got := walk(2); got != 0 {
			t.Errorf("right after a walk that failed: %d lists; want 0", got)
		}
		if got := walk(1); got != 1 {
			t.Errorf("%v after the last walk: %d lists; want 1", walkHolds, got)
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

// Who is listed rarely could be missed for long where nothing tells of a pod that
// no walk comes by.
func TestRest(t *testing.T) {
	for _, tt := range []struct {
		steady          time.Duration
		watched, within bool
		want            time.Duration
	}{
		{0, false, false, listEvery},
		{0, true, true, watchedEvery},
		{4 * time.Second, false, true, 4 * time.Second},
		{time.Hour, false, true, watchedEvery},
		{time.Hour, true, false, watchedEvery},
		{20 * time.Second, true, true, 20 * time.Second},
		{time.Hour, true, true, steadyEvery},
	} {
		if got := rest(tt.steady, tt.watched, tt.within); got != tt.want {
			t.Errorf("rest(%v, %t, %t) = %v; want %v", tt.steady, tt.watched, tt.within, got, tt.want)
		}
	}
}

// All that is a pod's has to be below the cgroup of all pods.
func TestWithin(t *testing.T) {
	for name, tt := range map[string]struct {
		parents []string
		want    bool
	}{
		"nobody":            {nil, false},
		"all of them":       {[]string{"/kubepods/besteffort/poda", "/kubepods/podb"}, true},
		"one is elsewhere":  {[]string{"/kubepods/besteffort/poda", "/foo/podb"}, false},
		"a similar name":    {[]string{"/kubepods2/poda"}, false},
		"the runtime's own": {[]string{"/k8s.io"}, false},
	} {
		n := newNode(t, true)
		n.cgroup("/kubepods", 1<<30, 1<<30)
		for pid, parent := range tt.parents {
			n.addPod(critest.Pod{CgroupParent: parent, Containers: []critest.Container{{PID: 100 + pid}}})
		}
		if got := n.synced().world.Load().within; got != tt.want {
			t.Errorf("%s: within = %t; want %t", name, got, tt.want)
		}
	}
}

// Walks say nothing of a container outside of the tree that is walked, nor of one
// that was made and is not told to run yet.
func TestSteady(t *testing.T) {
	_, i, tree, _ := walked(t)
	start := time.Now()
	const later = 7 * time.Second
	steady := func() time.Duration {
		i.Measure(start)
		i.Measure(start.Add(later))
		return i.steady(start.Add(later))
	}
	if got := steady(); got != later {
		t.Errorf("all found: steady() = %v; want %v", got, later)
	}
	i.world.Load().unstarted = true
	if got := steady(); got != 0 {
		t.Errorf("a container does not run yet: steady() = %v; want 0", got)
	}
	i.world.Load().unstarted = false
	for id := range maps.Keys(tree.rows) {
		delete(tree.rows, id)
		break
	}
	if got := steady(); got != 0 {
		t.Errorf("a container is not found: steady() = %v; want 0", got)
	}
	i.world.Load().groups = nil
	if got := steady(); got != later {
		t.Errorf("there are no containers: steady() = %v; want %v", got, later)
	}
	if got := i.steady(start.Add(later + walkHolds)); got != 0 {
		t.Errorf("the last walk is long ago: steady() = %v; want 0", got)
	}
}
