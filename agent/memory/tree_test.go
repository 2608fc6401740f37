package memory

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/kernel/kerneltest"
)

func TestRowIndex(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 300, maxRows} {
		var x rowIndex
		x.reserve(maxRows)
		for i := range n {
			// Inode numbers of a hierarchy are ascending, with gaps.
			x.rows = append(x.rows, bpf.Row{Cgroup: uint64(1000 + 7*i), Usage: uint64(i)})
		}
		x.rebuild()
		for i := range n {
			if row := x.find(uint64(1000 + 7*i)); row == nil || row.Usage != uint64(i) {
				t.Fatalf("%d rows: find(row %d) = %+v; want it", n, i, row)
			}
		}
		for _, other := range []uint64{0, 1, 999, 1001, 1 << 40} {
			if row := x.find(other); row != nil {
				t.Errorf("%d rows: find(%d) = %+v; want nil", n, other, row)
			}
		}
		x.reset()
		if row := x.find(1000); row != nil {
			t.Errorf("%d rows, after reset(): find() = %+v; want nil", n, row)
		}
	}
}

// A walk finds the cgroups below kubepods with their usage, and its hash changes with the
// set of cgroups. Without a sampler there is no walk.
func TestTree(t *testing.T) {
	reader, o := newSamplerReader(t)
	tree := reader.Tree()
	eventually(t, "a walk", tree.Walk)
	pods := o.Hierarchy.Memory.Path(o.CgroupRoot, "kubepods")
	var st unix.Stat_t
	if err := unix.Stat(pods, &st); err != nil {
		t.Fatal(err)
	}
	row := tree.Find(st.Ino)
	if row == nil || tree.Find(1) != nil {
		t.Fatalf("Find(the pods' cgroup) = %v, Find(the root) = %v; want a row, nil", row, tree.Find(1))
	}
	before := tree.SetHash()
	if eventually(t, "another walk", tree.Walk); tree.SetHash() != before {
		t.Error("SetHash() changed without a new or removed cgroup")
	}
	child := filepath.Join(pods, "child")
	kerneltest.MakeCgroup(t, child)
	if err := unix.Stat(child, &st); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a walk with the child", tree.Walk)
	if tree.SetHash() == before || tree.Find(st.Ino) == nil {
		t.Errorf("new cgroup: SetHash() changed %t, Find() = %v; want true, a row", tree.SetHash() != before, tree.Find(st.Ino))
	}
	// The reading that confirms an alarm has their usage too.
	var into signal.Observations
	eventually(t, "a reading with the child", func() bool {
		reader.Read(time.Now(), time.Now(), &into)
		_, _, ok := reader.Usage(st.Ino)
		return ok
	})
	reader.SetSampler(nil)
	if tree.Walk() || tree.Find(st.Ino) != nil {
		t.Error("Walk() without a sampler = true, or Find() = a row; want neither")
	}
	reader.Read(time.Now(), time.Now(), &into)
	if _, _, ok := reader.Usage(st.Ino); ok {
		t.Error("Usage() without a sampler is ok; want not ok")
	}
}

// Usage does not use a partial row. Other rows of the same walk are used.
func TestUsageOfPartialRows(t *testing.T) {
	var reader SamplerReader
	reader.rows.rows = []bpf.Row{{Cgroup: 1, Usage: 5, Partial: true}, {Cgroup: 2, Usage: 3, Anon: 2, Partial: true}, {Cgroup: 3, Usage: 2, Anon: 1}}
	reader.rows.rebuild()
	if workingSet, anonymous, ok := reader.Usage(2); ok {
		t.Errorf("Usage() of a partial row = %d, %d; want none", workingSet, anonymous)
	}
	if workingSet, anonymous, ok := reader.Usage(3); !ok || workingSet != 2 || anonymous != 1 {
		t.Errorf("Usage() of a whole row = %d, %d, %t; want 2, 1", workingSet, anonymous, ok)
	}
}

// The walk that found a crossing can confirm it: the sampler pauses for several times as
// long as that walk took before the next.
func TestSamplerReadingReusesWalk(t *testing.T) {
	reader, _ := newSamplerReader(t)
	source := reader.sampler.Load()
	var walked, sample bpf.Sample
	for range 100 {
		raised, _ := bpf.MonotonicTime()
		if source.Walk(walkDeadline) != nil || source.Sample(&walked) != nil || walked.Pods.Walked < raised {
			continue // another walk came in between
		}
		requested, _ := bpf.MonotonicTime()
		if source.tick(requested, raised, &sample) && sample.Time >= requested && sample.Pods.Walked == walked.Pods.Walked {
			return
		}
	}
	t.Errorf("in 100 tries each tick was late or had a new walk; the last tick at %v has the walk of %v", sample.Time, sample.Pods.Walked)
}

// Without a walk in time, the usage of kubepods alone decides whether a threshold can be
// crossed.
func TestClearlyAbove(t *testing.T) {
	const mib = 1 << 20
	pods := func(available uint64, soft time.Duration) bpf.Threshold {
		id := signal.IDOf(&signal.Threshold{Signal: signal.AllocatableMemoryAvailable, Grace: soft})
		return bpf.Threshold{Key: uint64(id), Source: bpf.SourcePods, Capacity: 1000 * mib, Available: available * mib, CountCache: true}
	}
	node := bpf.Threshold{Key: uint64(signal.IDOf(&signal.Threshold{Signal: signal.MemoryAvailable})), Capacity: 1000 * mib, Available: 900 * mib}
	sample := bpf.Sample{
		Node: bpf.Node{Valid: true, Anon: 800 * mib},
		Pods: bpf.Pods{Valid: true, Usage: 600 * mib, InactiveFile: 300 * mib, ActiveFile: 200 * mib},
	}
	for _, tc := range []struct {
		name  string
		armed []bpf.Threshold
		want  bool
	}{
		{"nothing armed", nil, true},
		{"of the node only", []bpf.Threshold{node}, true},
		{"far", []bpf.Threshold{node, pods(400, 0)}, true},
		{"crossed if none of it is cache", []bpf.Threshold{pods(401, 0)}, false},
		{"soft", []bpf.Threshold{pods(401, time.Minute)}, true},
	} {
		s := &Sampler{Armed: tc.armed}
		if got := s.clearlyAbove(&sample); got != tc.want {
			t.Errorf("%s: clearlyAbove() = %t; want %t", tc.name, got, tc.want)
		}
	}
}

// Without a walk in time, the signal of kubepods is unreadable only where kubepods has a
// limit; the upper bound of its usage is known.
func TestPodsNotWalked(t *testing.T) {
	const mib = 1 << 20
	now := time.Now()
	sample := &bpf.Sample{Pods: bpf.Pods{Valid: true, Walked: time.Second, Usage: 600 * mib, InactiveFile: 100 * mib}}
	for _, tc := range []struct {
		name   string
		source Sampler
		since  time.Duration
		want   signal.Status
		used   kubepodsReading
	}{
		{"no pods", Sampler{}, 0, signal.NotObserved, noPods},
		{"walked", Sampler{Pods: true, Kubepods: 1000 * mib}, time.Second, signal.Observed, kubepodsReading{500 * mib, 600 * mib, true}},
		{"walked, no limit", Sampler{Pods: true}, time.Second, signal.NotObserved, kubepodsReading{500 * mib, 600 * mib, true}},
		{"late", Sampler{Pods: true, Kubepods: 1000 * mib}, 2 * time.Second, signal.Unreadable, kubepodsReading{usage: 600 * mib}},
		{"late, no limit", Sampler{Pods: true}, 2 * time.Second, signal.NotObserved, kubepodsReading{usage: 600 * mib}},
	} {
		if o, used := tc.source.allocatable(now, sample, tc.since); o.Status != tc.want || used != tc.used {
			t.Errorf("%s: allocatable() = %+v, %+v; want status %v, %+v", tc.name, o, used, tc.want, tc.used)
		}
	}
}

// A walk lists new cgroups last, until the next survey sorts them.
func TestSetHashIgnoresOrder(t *testing.T) {
	setHash := func(cgroups ...uint64) uint64 {
		var tree Tree
		for _, c := range cgroups {
			tree.rows.rows = append(tree.rows.rows, bpf.Row{Cgroup: c})
		}
		return tree.SetHash()
	}
	same := setHash(1, 2, 3)
	if got := setHash(3, 1, 2); got != same {
		t.Errorf("SetHash() in another order = %#x; want %#x", got, same)
	}
	for _, other := range [][]uint64{{}, {1, 2}, {1, 2, 4}, {1, 2, 3, 0}, {2, 2, 2}, {1, 1, 4}, {0, 3, 3}} {
		if setHash(other...) == same {
			t.Errorf("SetHash() of %v is that of 1, 2, 3", other)
		}
	}
}
