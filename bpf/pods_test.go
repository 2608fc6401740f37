package bpf

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func setPods(t testing.TB, s *Sampler, c cgroup) {
	t.Helper()
	dir := c.open(t)
	if err := s.SetPods(int(dir.Fd())); err != nil {
		t.Fatal(err)
	}
	dir.Close()
}

// pods requests a walk and returns the figures of the pods' cgroup.
func pods(t *testing.T, s *Sampler) Pods {
	t.Helper()
	if err := s.Walk(time.Second); err != nil {
		t.Fatal(err)
	}
	raw := tickNow(t, s)
	var sample Sample
	sample.set(&raw.Sample)
	sample.Pods.Slope, sample.Pods.Walked = 0, 0
	return sample.Pods
}

// cacheFile returns the name of a file on a filesystem whose cache is on the file LRU.
func cacheFile(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "cache")
}

// coldFile returns the name of such a file that has content, none of which is cached. A file that a
// hog writes and drops would look like memory of its processes for a moment: pages leave their list
// before they are uncharged (mm/swap.c: folios_put_refs).
func coldFile(t *testing.T) string {
	t.Helper()
	name := cacheFile(t)
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for piece, size := make([]byte, mib), 0; size < cachedBytes; size += len(piece) {
		if _, err := f.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	mapped, err := unix.Mmap(int(f.Fd()), 0, cachedBytes, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapped)
	cached := make([]byte, cachedBytes/os.Getpagesize())
	eventually(t, "a file that is not cached", func() bool {
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			t.Fatal(err)
		}
		if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mapped[0])), cachedBytes, uintptr(unsafe.Pointer(&cached[0]))); errno != 0 {
			t.Fatal(errno)
		}
		return !slices.ContainsFunc(cached, func(page byte) bool { return page&1 != 0 })
	})
	return name
}

func TestPodsFigures(t *testing.T) {
	_, s := openSampler(t, Options{})
	top := makeCgroup(t)
	inner := top.child(t, "pod").child(t, "container")
	hog := startHog(t, inner)
	hog.run("grow %d", 96*mib)
	hog.run("cache %s", cacheFile(t))
	setPods(t, s, top)

	eventually(t, "figures as in the cgroup's files", func() bool {
		want := Pods{Valid: true, Usage: top.usage(t), WalkUsage: top.usage(t), InactiveFile: top.stat(t, "inactive_file"), ActiveFile: top.stat(t, "active_file")}
		got := pods(t, s)
		// Megabytes of large folios may be in the CPUs' batches (mm/swap.c: folio_add_lru)
		// and not on a list yet.
		if want.InactiveFile+want.ActiveFile < cachedBytes/2 || cmp.Diff(want, got) != "" {
			t.Logf("got %+v; want %+v", got, want)
			return false
		}
		return true
	})
}

func TestRows(t *testing.T) {
	_, s := openSampler(t, Options{})
	top := makeCgroup(t)
	pod := top.child(t, "pod")
	container, other := pod.child(t, "container"), top.child(t, "other")
	hog := startHog(t, container)
	hog.run("grow %d", 96*mib)
	hog.run("cache %s", cacheFile(t))

	if _, _, err := s.Rows(nil); !errors.Is(err, ErrNoTable) {
		t.Errorf("Rows() before a walk = %v; want %v", err, ErrNoTable)
	}
	if err := s.Walk(10 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Walk() without a cgroup = %v; want %v", err, os.ErrDeadlineExceeded)
	}
	setPods(t, s, top)
	// The kernel lists children in the order of their creation.
	cgroups := []cgroup{top, pod, container, other}
	parents := []int{0, 0, 1, 0}
	eventually(t, "rows as in the cgroups' files", func() bool {
		before := tickNow(t, s).Sample.Time
		if err := s.Walk(time.Second); err != nil {
			t.Fatal(err)
		}
		rows, table, err := s.Rows(nil)
		if err != nil || table.Truncated || uint64(table.Time) < before {
			t.Fatalf("Rows() = %+v, %v; want a whole table, newer than %d", table, err, before)
		}
		var want []Row
		for i, c := range cgroups {
			want = append(want, Row{
				Cgroup: c.id(t), Parent: parents[i], Usage: c.usage(t),
				InactiveFile: c.stat(t, "inactive_file"), ActiveFile: c.stat(t, "active_file"),
				Anon: c.stat(t, "inactive_anon") + c.stat(t, "active_anon"), Unevictable: c.stat(t, "unevictable"),
			})
		}
		if diff := cmp.Diff(want, rows); diff != "" || want[2].Anon < 96*mib {
			t.Log(diff)
			return false
		}
		return true
	})

	if err := s.SetWalk(time.Millisecond); err != nil {
		t.Fatal(err)
	}
	_, last, _ := s.Rows(nil)
	eventually(t, "walk without a request", func() bool {
		_, table, err := s.Rows(nil)
		return err == nil && table.Time > last.Time
	})
}

// A removed cgroup has no row. Its file cache counts for its parent, as in the parent's
// memory.stat.
func TestRowsAfterRemoval(t *testing.T) {
	_, s := openSampler(t, Options{})
	top := makeCgroup(t)
	pod := top.child(t, "pod")
	container := pod.child(t, "container")
	hog := startHog(t, container)
	hog.run("cache %s", cacheFile(t))
	setPods(t, s, top)
	hog.stop()
	eventually(t, "remove", func() bool { return os.Remove(container.dir) == nil })

	eventually(t, "cache without a cgroup", func() bool {
		if err := s.Walk(time.Second); err != nil {
			t.Fatal(err)
		}
		rows, _, err := s.Rows(nil)
		if err != nil {
			t.Fatal(err)
		}
		want := []Row{{Cgroup: top.id(t)}, {Cgroup: pod.id(t)}}
		for i, c := range []cgroup{top, pod} {
			want[i].Usage, want[i].InactiveFile, want[i].ActiveFile = c.usage(t), c.stat(t, "inactive_file"), c.stat(t, "active_file")
			want[i].Anon, want[i].Unevictable = c.stat(t, "inactive_anon")+c.stat(t, "active_anon"), c.stat(t, "unevictable")
		}
		if diff := cmp.Diff(want, rows); diff != "" || rows[1].InactiveFile < 32*mib {
			t.Log(diff)
			return false
		}
		return true
	})
}

// If the table is too small, the lists of cgroups without a row count for the row of their
// parent, which is partial.
func TestTooFewRows(t *testing.T) {
	_, s := openSampler(t, Options{Rows: 2})
	top := makeCgroup(t)
	first := top.child(t, "a")
	startHog(t, top.child(t, "b")).run("grow %d", 16*mib)
	startHog(t, top.child(t, "c")).run("grow %d", 16*mib)
	setPods(t, s, top)
	got := pods(t, s)
	rows, table, err := s.Rows(nil)
	if err != nil || len(rows) != 2 || table.Truncated {
		t.Fatalf("Rows() = %d rows, %+v, %v; want 2, not truncated", len(rows), table, err)
	}
	if rows[0].Cgroup != top.id(t) || !rows[0].Partial || rows[0].Anon < 31*mib {
		t.Errorf("first row = %+v; want a partial one with the memory of all cgroups", rows[0])
	}
	if rows[1].Cgroup != first.id(t) || rows[1].Partial {
		t.Errorf("second row = %+v; want a whole one of the first cgroup", rows[1])
	}
	if !got.Valid {
		t.Errorf("Pods = %+v; want it valid", got)
	}
	if stats, err := s.Stats(); err != nil || stats.Truncated == 0 {
		t.Errorf("Stats() = %+v, %v; want truncated counted", stats, err)
	}
}

// A walk that takes too long gives up, and the next follows after a growing back-off. The
// node's figures stay valid. The pods' are valid again when the tree is small again.
func TestWalkGivesUp(t *testing.T) {
	ring, s := openSampler(t, Options{WalkLimit: time.Nanosecond})
	top := makeCgroup(t)
	var children []cgroup
	for i := range 40 {
		children = append(children, top.child(t, strconv.Itoa(i)))
	}
	startHog(t, top.child(t, "hog")).run("grow %d", 64*mib)
	setPods(t, s, top)
	arm(t, s, Threshold{Key: 7, Source: SourcePods, Capacity: gib, Available: gib - 16*mib})
	eventually(t, "three walks that gave up", func() bool {
		stats, err := s.Stats()
		return err == nil && stats.Truncated >= 3
	})
	var sample Sample
	if err := s.Sample(&sample); err != nil || sample.Pods.Valid || !sample.Pods.Truncated || !sample.Node.Valid {
		t.Errorf("Sample() = %+v, %v; want truncated pods and a valid node", sample, err)
	}
	if records := takeRecords(t, ring); len(records) != 0 {
		t.Errorf("records = %+v; want none, since there are no figures of the pods", records)
	}
	// The back-off after three is half a second, and doubles.
	before, begin := tickNow(t, s).Stats, time.Now()
	for range 100 {
		if err := s.Kick(); err != nil {
			t.Fatal(err)
		}
	}
	after, took := tickNow(t, s).Stats, time.Since(begin)
	if most := 1 + uint64(took/(500*time.Millisecond)); after.Walks > before.Walks+most {
		t.Errorf("%d walks in 100 ticks and %v after three that gave up; want at most %d", after.Walks-before.Walks, took, most)
	}
	for _, c := range children {
		if err := os.Remove(c.dir); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "figures of the pods", func() bool {
		err := s.Sample(&sample)
		return err == nil && sample.Pods.Valid && !sample.Pods.Truncated
	})
	if got := nextRecord(t, ring).Crossing; got.Key != 7 {
		t.Errorf("crossing = %+v; want the one of the pods", got)
	}
}

// Anonymous memory crosses the pods' threshold, inactive file cache does not.
func TestPodsCrossing(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	hog := startHog(t, top.child(t, "pod"))
	setPods(t, s, top)
	used := pods(t, s)
	th := Threshold{Key: 3, Source: SourcePods, Capacity: used.WorkingSet() + gib, Available: gib - 32*mib}
	arm(t, s, th)

	hog.run("cache %s", cacheFile(t))
	const least = cachedBytes / 2 // large folios may be in the CPUs' batches, see TestPodsFigures
	if got := pods(t, s); got.Usage < used.Usage+least || got.InactiveFile < least {
		t.Fatalf("Pods = %+v; want 64 MiB of inactive file cache", got)
	}
	noRecord(t, ring, s, 20)

	hog.run("grow %d", 64*mib)
	c := nextRecord(t, ring).Crossing
	p := c.Sample.Pods
	if c.Key != 3 || c.Source != SourcePods || c.Available >= th.Available || c.Available != th.Capacity-p.WorkingSet() {
		t.Errorf("crossing = %+v; want one of %+v", c, th)
	}
	if !p.Valid || p.Walked < c.Seen || p.InactiveFile < least {
		t.Errorf("crossing seen %s with %+v; want file figures that are not older", c.Seen, p)
	}
	// The table is of the walk that found the crossing, or a later one.
	rows, table, err := s.Rows(nil)
	if err != nil || table.Time < p.Walked || len(rows) != 2 || rows[1].Usage < 64*mib+least {
		t.Errorf("Rows() = %+v of %s, %v; want the pod's usage, of a walk at %s or later", rows, table.Time, err, p.Walked)
	}
	t.Logf("seen %s after it was above, %d KiB below", c.Seen-c.LastAbove, (th.Available-c.Available)>>10)
	noRecord(t, ring, s, 20)
}

// While available memory varies around a threshold, the crossing is reported once. It is
// reported again only after memory was above the threshold by the margin.
func TestMargin(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	first, second := startHog(t, top), startHog(t, top)
	setPods(t, s, top)
	used := pods(t, s)
	arm(t, s, Threshold{Source: SourcePods, Capacity: used.WorkingSet() + gib, Available: gib - 48*mib, Margin: 32 * mib})
	first.run("grow %d", 36*mib)
	noRecord(t, ring, s, 20)
	second.run("grow %d", 36*mib)
	if got := nextRecord(t, ring); got.Kind != KindCrossing {
		t.Fatalf("Next() = %+v; want a crossing", got)
	}
	second.run("shrink") // 12 MiB above
	noRecord(t, ring, s, 20)
	second.run("grow %d", 36*mib)
	noRecord(t, ring, s, 20)
	second.run("shrink")
	first.run("shrink") // 48 MiB above
	noRecord(t, ring, s, 20)
	first.run("grow %d", 96*mib)
	if got := nextRecord(t, ring); got.Kind != KindCrossing || got.Crossing.LastAbove == 0 {
		t.Errorf("Next() = %+v; want another crossing", got)
	}
	noRecord(t, ring, s, 20)
}

// The removal of the pods' cgroup is reported once, its figures are no longer valid, and
// they do not affect those of the next one.
func TestPodsRemoved(t *testing.T) {
	ring, s := openSampler(t, Options{})
	first, second := makeCgroup(t), makeCgroup(t)
	setPods(t, s, first)
	arm(t, s, Threshold{Source: SourcePods, Capacity: gib, Available: 1})
	id := first.id(t)
	if got := pods(t, s); !got.Valid {
		t.Fatalf("Pods = %+v; want it valid", got)
	}
	if err := os.Remove(first.dir); err != nil {
		t.Fatal(err)
	}
	if got := nextRecord(t, ring); got.Kind != KindPodsRemoved || got.PodsRemoved.Cgroup != id || got.PodsRemoved.Time <= 0 {
		t.Errorf("Next() = %+v; want the removal of cgroup %d", got, id)
	}
	noRecord(t, ring, s, 20)
	var sample Sample
	if err := s.Sample(&sample); err != nil || sample.Pods != (Pods{}) || !sample.Node.Valid {
		t.Errorf("Sample() = %+v, %v; want no pods and a valid node", sample, err)
	}

	// The sampler still has the first cgroup's pointer: new cgroups must not be mistaken
	// for it.
	for range 30 {
		makeCgroup(t)
	}
	noRecord(t, ring, s, 20)
	setPods(t, s, second)
	if got := pods(t, s); !got.Valid {
		t.Errorf("Pods of another cgroup = %+v; want it valid", got)
	}
	if err := s.SetPods(-1); err != nil {
		t.Fatal(err)
	}
	noRecord(t, ring, s, 3)
}

func TestSetPodsInvalid(t *testing.T) {
	ring, s := openSampler(t, Options{})
	memoryTree(t)
	plain, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if err := s.SetPods(int(plain.Fd())); err == nil {
		t.Error("SetPods() of a directory that is no cgroup = nil; want an error")
	}
	other, err := os.Open("/sys/fs/cgroup/unified")
	if errors.Is(err, os.ErrNotExist) {
		return // one tree for all controllers
	} else if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := s.SetPods(int(other.Fd())); err == nil {
		t.Error("SetPods() in the tree of another controller = nil; want an error")
	}
	noRecord(t, ring, s, 3)
}

func TestAddToParents(t *testing.T) {
	rows := []Row{
		{Cgroup: 1, Parent: 0, Usage: 100, InactiveFile: 1, ActiveFile: 2, Anon: 3, Unevictable: 4},
		{Cgroup: 2, Parent: 0, Usage: 60, InactiveFile: 10},
		{Cgroup: 3, Parent: 1, Usage: 50, InactiveFile: 20, Anon: 30, Partial: true},
		{Cgroup: 4, Parent: 0, Usage: 5, ActiveFile: 7, Unevictable: 1},
	}
	want := []Row{
		{Cgroup: 1, Parent: 0, Usage: 100, InactiveFile: 31, ActiveFile: 9, Anon: 33, Unevictable: 5, Partial: true},
		{Cgroup: 2, Parent: 0, Usage: 60, InactiveFile: 30, Anon: 30, Partial: true},
		{Cgroup: 3, Parent: 1, Usage: 50, InactiveFile: 20, Anon: 30, Partial: true},
		{Cgroup: 4, Parent: 0, Usage: 5, ActiveFile: 7, Unevictable: 1},
	}
	if diff := cmp.Diff(want, addToParents(rows)); diff != "" {
		t.Errorf("addToParents() differs (-want +got):\n%s", diff)
	}
}
