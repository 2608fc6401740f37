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

const node = signal.ThresholdID(1) // the hard threshold on memory.available

// A threshold is covered while the sample has its values: those of the node do not need
// those of kubepods.
func TestSamplerCovers(t *testing.T) {
	armed := []bpf.Threshold{{Key: uint64(node)}, {Key: uint64(pods), Source: bpf.SourcePods}}
	for _, tc := range []struct {
		name           string
		lane           samplerLane
		node, pods     bool
		partialFailure string
	}{
		{"all", samplerLane{pods: 1, last: bpf.Sample{Node: bpf.Node{Valid: true}, Pods: bpf.Pods{Valid: true}}}, true, true, ""},
		{"no pods", samplerLane{last: bpf.Sample{Node: bpf.Node{Valid: true}}}, true, false, ""},
		{"too many cgroups", samplerLane{pods: 1, last: bpf.Sample{Node: bpf.Node{Valid: true}, Pods: bpf.Pods{Truncated: true}}}, true, false, "more cgroups than"},
		{"kubepods unreadable", samplerLane{pods: 1, last: bpf.Sample{Node: bpf.Node{Valid: true}}}, true, false, "can't read it"},
		{"kubepods not found", samplerLane{podsFailure: partialFailure{err: errors.New("two of them")}, last: bpf.Sample{Node: bpf.Node{Valid: true}}}, true, false, "two of them"},
		{"no node", samplerLane{pods: 1, last: bpf.Sample{Pods: bpf.Pods{Valid: true}}}, false, true, ""},
	} {
		l := &tc.lane
		l.armed, l.ring = armed, &ring{}
		_, ofNode := l.covers(node)
		_, ofPods := l.covers(pods)
		if ofNode != tc.node || ofPods != tc.pods {
			t.Errorf("%s: covers the node %t, kubepods %t; want %t, %t", tc.name, ofNode, ofPods, tc.node, tc.pods)
		}
		if got := l.partialFailure(); !strings.Contains(got, tc.partialFailure) || (got == "") != (tc.partialFailure == "") {
			t.Errorf("%s: partial failure %q; want %q", tc.name, got, tc.partialFailure)
		}
		if ok := l.source(&laneInput{}) != nil; ok != (tc.node && tc.partialFailure == "") {
			t.Errorf("%s: readings use the sampler: %t; want %t", tc.name, ok, !ok)
		}
	}
}

// addNodeThreshold adds a threshold on the node that is never crossed.
func addNodeThreshold(t *testing.T, s *Set) {
	t.Helper()
	armed := thresholds(t, map[string]time.Duration{"1Mi": 0})
	s.mu.Lock()
	armed = append(armed, s.thresholds...)
	s.mu.Unlock()
	s.Arm(armed)
}

// waitCoverage waits until a lane that is up covers the threshold of the node, and that of
// kubepods or not.
func waitCoverage(t *testing.T, s *Set, ofPods bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("coverage of the node, and of kubepods %t", ofPods), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.ContainsFunc(s.entries, func(e *entry) bool { return e.covered[node] && e.covered[pods] == ofPods })
	})
}

// A tree that is too large for a walk leaves the threshold of kubepods to the other lanes.
// The threshold of the node stays covered.
func TestTooManyCgroups(t *testing.T) {
	var s *Set
	var slow atomic.Bool
	s, _, dir := openLane(t, BPF, &Fault{
		HideSamples: slow.Load,
		Open: func() error { // on the Set's goroutine
			if slow.Swap(false) {
				s.sampler.o.walkLimit = time.Nanosecond
			}
			return nil
		},
	})
	addNodeThreshold(t, s)
	waitCoverage(t, s, true)
	for i := range 40 {
		makeChild(t, s.o.Hierarchy, dir, fmt.Sprint(i))
	}
	slow.Store(true) // so that it is opened again
	waitCoverage(t, s, false)
	eventually(t, "a partial failure with the reason", func() bool { return strings.Contains(statusOf(s, BPF).Reason, "more cgroups than") })
	if st := statusOf(s, BPF); st.State != Up {
		t.Errorf("status %+v; want it up, and kubepods left to other lanes", st)
	}
}

// Two candidates for kubepods do not degrade the lane, which keeps the cgroup that it
// follows. A lane that is opened then covers the node alone, until there is one candidate.
func TestAmbiguousKubepods(t *testing.T) {
	var stopped atomic.Bool
	s, _, dir := openLane(t, BPF, &Fault{
		HideSamples: stopped.Load,
		Open:        func() error { stopped.Store(false); return nil },
	})
	addNodeThreshold(t, s)
	waitCoverage(t, s, true)
	before := statusOf(s, BPF).Reopened // a slow machine may have degraded it already
	other := filepath.Join(filepath.Dir(dir), "kubepods.slice")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(other) })
	eventually(t, "a partial failure of kubepods", func() bool { return strings.Contains(statusOf(s, BPF).Reason, "both exist") })
	waitCoverage(t, s, true)
	if st := statusOf(s, BPF); st.State != Up || st.Reopened != before {
		t.Errorf("status %+v; want it up and not reopened", st)
	}
	stopped.Store(true)
	eventually(t, "reopened lane", func() bool { return statusOf(s, BPF).Reopened > before })
	waitCoverage(t, s, false)
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	waitCoverage(t, s, true)
	// The status may show the failure for a moment longer.
	eventually(t, "lane without a partial failure", func() bool {
		st := statusOf(s, BPF)
		return st.State == Up && st.Reason == ""
	})
}

// The time to load the programs does not count for the deadline of the first tick. The Set
// passes the time at which it began to open the lane.
func TestSlowLoad(t *testing.T) {
	h, root := kubepods(t, 512<<20)
	s := NewSet(SetOptions{
		Options: memory.Options{Procfs: kernel.FS("/proc"), Hierarchy: h, CgroupRoot: root},
		Sysfs:   "/sys", Wait: newThread(t), SamplerReader: memory.NewSamplerReader(nil),
	})
	l := s.sampler
	for i := range 5 {
		err := l.open(time.Now().Add(-2*firstTickDeadline), &laneInput{})
		if permanent(err) {
			t.Skipf("needs the %s lane: %v", BPF, err)
		}
		if err != nil {
			t.Errorf("open() %d of a sampler that loads slowly = %v; want nil", i, err)
		}
		if err := l.close(); err != nil {
			t.Fatalf("close() = %v; want nil", err)
		}
	}
}

// New CPUs are an error of the sampler, which opens it again. The sampler of this test
// belongs to no Set: on a slow machine a Set may reopen its own at any time.
func TestSamplerAfterCPUHotplug(t *testing.T) {
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
	grown := &samplerLane{o: SetOptions{Sysfs: kernel.FS(tree)}, sampler: opened, cpus: 1024}
	if err := grown.checkMachine(); err != nil {
		t.Errorf("checkMachine() of the same machine = %v; want nil", err)
	}
	grown.cpus = 2
	if err := grown.checkMachine(); err == nil || !strings.Contains(err.Error(), "1024 CPUs are online") {
		t.Errorf("checkMachine() with more CPUs = %v; want an error", err)
	}
}

// While idle, kubepods is looked for only if it is not followed.
func TestSamplerPodsFollowed(t *testing.T) {
	removed := &ring{}
	removed.podsRemoved.Store(true)
	for _, tc := range []struct {
		name string
		l    *samplerLane
		want bool
	}{
		{"followed", &samplerLane{ring: &ring{}, pods: 4711}, true},
		{"none", &samplerLane{ring: &ring{}}, false},
		{"removed", &samplerLane{ring: removed, pods: 4711}, false},
		{"failed", &samplerLane{ring: &ring{}, pods: 4711, podsFailure: partialFailure{err: errors.New("two of them")}}, false},
	} {
		if got := tc.l.podsFollowed(); got != tc.want {
			t.Errorf("%s: podsFollowed() = %t; want %t", tc.name, got, tc.want)
		}
	}
}

// The alarm of a record whose key is no threshold has no threshold.
func TestAlarmOfUnknownKey(t *testing.T) {
	r := &ring{}
	for _, key := range []uint64{0, uint64(signal.ThresholdIDCount), 256 + uint64(pods), 1 << 63} {
		got, raised := r.alarm(&bpf.Crossing{Key: key}, time.Now())
		if !raised || got.Lane != BPF || got.Threshold != 0 {
			t.Errorf("alarm(key %d) = %+v, %t; want an alarm without a threshold", key, got, raised)
		}
	}
	if got, _ := r.alarm(&bpf.Crossing{Key: uint64(pods)}, time.Now()); got.Threshold != pods || !r.raised[pods].Load() {
		t.Errorf("alarm(key %d) = %+v; want the %v", pods, got, pods)
	}
}

// The memory readers have the sampler while the lane is up.
func TestReadersUseSampler(t *testing.T) {
	var tree *memory.Tree
	t.Cleanup(func() { // after the Set is closed
		if tree != nil && tree.Walk() {
			t.Error("Walk() without the lane = true; want false")
		}
	})
	s, _, pods := openLane(t, BPF, nil)
	waitCovered(t, s)
	tree = s.o.SamplerReader.Tree()
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
