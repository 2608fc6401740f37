package lanes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

const node = signal.Mark(1) // the hard threshold on memory.available

// A mark is covered as far as its figures are there: the node's are without the
// pods'.
func TestSamplerCovers(t *testing.T) {
	armed := []bpf.Threshold{{Key: uint64(node)}, {Key: uint64(pods), Source: bpf.SourcePods}}
	for _, tc := range []struct {
		name       string
		lane       sampler
		node, pods bool
		note       string
	}{
		{"all", sampler{pods: 1, last: bpf.Sample{Node: bpf.Node{Valid: true}, Pods: bpf.Pods{Valid: true}}}, true, true, ""},
		{"no pods", sampler{last: bpf.Sample{Node: bpf.Node{Valid: true}}}, true, false, ""},
		{"too many cgroups", sampler{pods: 1, last: bpf.Sample{Node: bpf.Node{Valid: true}, Pods: bpf.Pods{Truncated: true}}}, true, false, "more cgroups than"},
		{"pods that can't be read", sampler{pods: 1, last: bpf.Sample{Node: bpf.Node{Valid: true}}}, true, false, "can't read it"},
		{"pods that can't be found", sampler{troubled: trouble{err: errors.New("two of them")}, last: bpf.Sample{Node: bpf.Node{Valid: true}}}, true, false, "two of them"},
		{"no node", sampler{pods: 1, last: bpf.Sample{Pods: bpf.Pods{Valid: true}}}, false, true, ""},
	} {
		l := &tc.lane
		l.armed, l.ring = armed, &ring{}
		_, ofNode := l.covers(node)
		_, ofPods := l.covers(pods)
		if ofNode != tc.node || ofPods != tc.pods {
			t.Errorf("%s: covers the node %t, the pods %t; want %t, %t", tc.name, ofNode, ofPods, tc.node, tc.pods)
		}
		if note := l.note(); !strings.Contains(note, tc.note) || (note == "") != (tc.note == "") {
			t.Errorf("%s: note %q; want %q", tc.name, note, tc.note)
		}
		if quick := l.source(&watched{}) != nil; quick != (tc.node && tc.note == "") {
			t.Errorf("%s: a quick reading is the sampler's: %t; want %t", tc.name, quick, !quick)
		}
	}
}

// watchNodeToo adds a mark on the node that is never crossed.
func watchNodeToo(t *testing.T, s *Set) {
	t.Helper()
	marks := thresholds(t, map[string]time.Duration{"1Mi": 0})
	s.mu.Lock()
	marks = append(marks, s.thresholds...)
	s.mu.Unlock()
	s.Arm(marks)
}

// covers waits until a lane that is up covers the node's mark, and the pods' or
// not.
func covers(t *testing.T, s *Set, ofPods bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("the node's mark covered, the pods' %t", ofPods), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.ContainsFunc(s.entries, func(e *entry) bool { return e.covered[node] && e.covered[pods] == ofPods })
	})
}

// TestTooManyCgroupsHere: a tree that a walk does not get through leaves the pods'
// mark to the other lanes, and the node's where it is.
func TestTooManyCgroupsHere(t *testing.T) {
	var s *Set
	var slow atomic.Bool
	s, _, dir := openHere(t, BPF, &Fault{
		Still: slow.Load,
		Open: func() error { // on the Set's goroutine
			if slow.Swap(false) {
				s.sampler.o.walkLimit = time.Nanosecond
			}
			return nil
		},
	})
	watchNodeToo(t, s)
	covers(t, s, true)
	for i := range 40 {
		makeChild(t, s.o.Hierarchy, dir, fmt.Sprint(i))
	}
	slow.Store(true) // so that it is opened anew
	covers(t, s, false)
	eventually(t, "a word on how many they are", func() bool { return strings.Contains(statusOf(s, BPF).Why, "more cgroups than") })
	if st := statusOf(s, BPF); st.State != Up {
		t.Errorf("status %+v; want it up, and the pods left to others", st)
	}
}

// TestAmbiguousPodsHere: that nobody can say which cgroup is the pods' does not
// degrade the lane. It stays at the one that it has; one that is opened just then
// covers the node's mark alone until it is known.
func TestAmbiguousPodsHere(t *testing.T) {
	var still atomic.Bool
	s, _, dir := openHere(t, BPF, &Fault{
		Still: still.Load,
		Open:  func() error { still.Store(false); return nil },
	})
	watchNodeToo(t, s)
	covers(t, s, true)
	before := statusOf(s, BPF).Reopened // a machine that is slow may have been found to be so
	other := filepath.Join(filepath.Dir(dir), "kubepods.slice")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(other) })
	eventually(t, "a word on the pods", func() bool { return strings.Contains(statusOf(s, BPF).Why, "both exist") })
	covers(t, s, true)
	if st := statusOf(s, BPF); st.State != Up || st.Reopened != before {
		t.Errorf("status %+v; want it up as it was", st)
	}
	still.Store(true)
	eventually(t, "the lane opened anew", func() bool { return statusOf(s, BPF).Reopened > before })
	covers(t, s, false)
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	covers(t, s, true)
	if st := statusOf(s, BPF); st.State != Up || st.Why != "" {
		t.Errorf("status %+v; want it up, and nothing amiss", st)
	}
}

// TestSlowLoadHere: the time that the programs took to load does not count against
// the first tick. The Set passes the time at which it began to open the lane.
func TestSlowLoadHere(t *testing.T) {
	h, root := kubepods(t, 512<<20)
	s := NewSet(SetOptions{
		Options: memory.Options{Procfs: kernel.FS("/proc"), Hierarchy: h, CgroupRoot: root},
		Sysfs:   "/sys", Wait: newThread(t), Quick: memory.NewQuick(nil),
	})
	l := s.sampler
	for i := range 5 {
		err := l.open(time.Now().Add(-2*firstTick), &watched{})
		if never(err) {
			t.Skipf("needs the %s lane: %v", BPF, err)
		}
		if err != nil {
			t.Errorf("open() %d of a sampler that took long to load = %v; want nil", i, err)
		}
		if err := l.close(); err != nil {
			t.Fatalf("close() = %v; want nil", err)
		}
	}
}

// A machine that has grown makes the sampler look again. The sampler here belongs to
// no Set, which on a slow machine closes and reopens its own at any time.
func TestSamplerOnAGrownMachine(t *testing.T) {
	ring, err := bpf.OpenRing()
	if errors.Is(err, bpf.ErrUnavailable) {
		t.Skipf("needs the %s lane: %v", BPF, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer ring.Close()
	opened, err := bpf.OpenSampler(ring, bpf.Options{})
	if errors.Is(err, bpf.ErrUnavailable) {
		t.Skipf("needs the %s lane: %v", BPF, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	tree := kerneltest.Tree(t, map[string]string{"devices/system/cpu/online": "0-1023\n"})
	grown := &sampler{o: SetOptions{Sysfs: kernel.FS(tree)}, sampler: opened, cpus: 1024}
	if err := grown.check(); err != nil {
		t.Errorf("check() of the same machine = %v; want nil", err)
	}
	grown.cpus = 2
	if err := grown.check(); err == nil || !strings.Contains(err.Error(), "1024 CPUs are online") {
		t.Errorf("check() of a machine with more CPUs = %v; want an error", err)
	}
}

// In calm the pods' cgroup is looked for where there is a reason to.
func TestSamplerFollows(t *testing.T) {
	gone := &ring{}
	gone.gone.Store(true)
	for _, tc := range []struct {
		name string
		l    *sampler
		want bool
	}{
		{"followed", &sampler{ring: &ring{}, pods: 4711}, true},
		{"none", &sampler{ring: &ring{}}, false},
		{"gone", &sampler{ring: gone, pods: 4711}, false},
		{"in trouble", &sampler{ring: &ring{}, pods: 4711, troubled: trouble{err: errors.New("two of them")}}, false},
	} {
		if got := tc.l.stands(); got != tc.want {
			t.Errorf("%s: stands() = %t; want %t", tc.name, got, tc.want)
		}
	}
}

// A record whose key is no mark is an alarm of none.
func TestCrossingOfNoMark(t *testing.T) {
	r := &ring{}
	for _, key := range []uint64{0, uint64(signal.Marks), 256 + uint64(pods), 1 << 63} {
		got, raised := r.crossing(&bpf.Crossing{Key: key}, time.Now())
		if !raised || got.Lane != BPF || got.Mark != 0 {
			t.Errorf("crossing(key %d) = %+v, %t; want an alarm of no mark", key, got, raised)
		}
	}
	if got, _ := r.crossing(&bpf.Crossing{Key: uint64(pods)}, time.Now()); got.Mark != pods || !r.raised[pods].Load() {
		t.Errorf("crossing(key %d) = %+v; want the %v", pods, got, pods)
	}
}

// The readers of memory have the sampler as long as the lane is up.
func TestReadersHaveTheSampler(t *testing.T) {
	var tree *memory.Tree
	t.Cleanup(func() { // after the Set is closed
		if tree != nil && tree.Walk() {
			t.Error("Walk() without the lane = true; want false")
		}
	})
	s, _, pods := openHere(t, BPF, nil)
	covered(t, s)
	tree = s.o.Quick.Tree()
	eventually(t, "a walk", tree.Walk)
	fd, id, err := openDir(pods)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if tree.Find(id) == nil {
		t.Error("Find(the pods' cgroup) = nil; want its row")
	}
}
