package bpf

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// walk requests a walk and returns the rows by their cgroup, and the number of surveys.
func walk(t *testing.T, s *Sampler) (map[uint64]Row, uint64) {
	t.Helper()
	if err := s.Walk(time.Second); err != nil {
		t.Fatal(err)
	}
	rows, table, err := s.Rows(nil)
	if err != nil || table.Truncated {
		t.Fatalf("Rows() = %+v, %v; want a whole table", table, err)
	}
	stats, err := s.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return byCgroup(t, rows), stats.Surveys
}

// byCgroup checks the order of rows, and returns them by their cgroup.
func byCgroup(t *testing.T, rows []Row) map[uint64]Row {
	t.Helper()
	byCgroup := map[uint64]Row{}
	for i, row := range rows {
		if row.Parent > i || row.Parent == i && i > 0 {
			t.Fatalf("row %d is below row %d; want one before it", i, row.Parent)
		}
		byCgroup[row.Cgroup] = row
	}
	if len(byCgroup) != len(rows) {
		t.Fatalf("%d rows of %d cgroups: %+v; want one of each", len(rows), len(byCgroup), rows)
	}
	return byCgroup
}

// A walk finds cgroups that were created after the last survey, and those below them. It
// adds the memory of removed ones to the parent.
func TestWalkFindsNewAndRemovedCgroups(t *testing.T) {
	_, s := openSampler(t, Options{})
	top := makeCgroup(t)
	old := top.child(t, "old")
	setPods(t, s, top)
	tickNow(t, s)
	changed := 0
	for round := range 5 {
		// A round counts only if no survey runs during it.
		before, surveys := walk(t, s)
		pod := top.child(t, fmt.Sprint("pod", round))
		container := pod.child(t, "container")
		below := old.child(t, fmt.Sprint("below", round))
		if _, seen := before[pod.id(t)]; seen {
			t.Fatalf("round %d: there is a row of the pod before it was created", round)
		}
		after, same := walk(t, s)
		for _, c := range []cgroup{top, old, pod, container, below} {
			if _, ok := after[c.id(t)]; !ok {
				t.Errorf("round %d: no row of %s", round, c.dir)
			}
		}
		if len(after) != len(before)+3 {
			t.Errorf("round %d: %d rows; want %d", round, len(after), len(before)+3)
		}
		if surveys == same {
			changed++
		}

		hog := startHog(t, container)
		hog.run("cache %s", cacheFile(t))
		hog.stop()
		_, surveys = walk(t, s)
		ids := []uint64{container.id(t), pod.id(t)}
		eventually(t, "remove", func() bool { return os.Remove(container.dir) == nil && os.Remove(pod.dir) == nil })
		after, same = walk(t, s)
		if slices.ContainsFunc(ids, func(id uint64) bool { _, ok := after[id]; return ok }) {
			t.Errorf("round %d: there are rows of removed cgroups", round)
		}
		// Other memory that is freed with a cgroup looks like a loss of its cache.
		const lost = 4 * mib
		if got, most := after[top.id(t)].InactiveFile, uint64(round+1)*cachedBytes; got+uint64(round+1)*lost < most || got > most+mib {
			t.Errorf("round %d: %d MiB of inactive file cache; want %d", round, got/mib, most/mib)
		}
		if surveys == same {
			changed++
		}
	}
	if changed == 0 {
		t.Error("a survey ran between all walks; want few surveys")
	}
}

// removedCaches returns a cgroup with 16 MiB in a child, and file cache of three files of removed children. Other programs on
// the machine may have the cache reclaimed: then it returns false.
func removedCaches(t *testing.T, s *Sampler) (top cgroup, files []string, ok bool) {
	t.Helper()
	top = makeCgroup(t)
	alive := startHog(t, top.child(t, "alive"))
	alive.run("grow %d", 16*mib)
	for i := range 3 {
		child := top.child(t, strconv.Itoa(i))
		hog := startHog(t, child)
		files = append(files, cacheFile(t))
		hog.run("cache %s", files[i])
		hog.stop()
		eventually(t, "remove", func() bool { return os.Remove(child.dir) == nil })
	}
	setPods(t, s, top)
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if rows, _ := walk(t, s); rows[top.id(t)].InactiveFile > 3*(cachedBytes-mib) {
			return top, files, true
		}
	}
	rows, _ := walk(t, s)
	t.Logf("%d MiB of inactive file cache of removed cgroups after 10 s; want %d", rows[top.id(t)].InactiveFile/mib, 3*cachedBytes/mib)
	return top, files, false
}

// Walks notice that the cache of removed cgroups shrinks, although they do not visit them.
func TestWalkSeesRemovedCgroupsShrink(t *testing.T) {
	_, s := openSampler(t, Options{})
	var top cgroup
	var files []string
	found := false
	for range 3 {
		if top, files, found = removedCaches(t, s); found {
			break
		}
	}
	if !found {
		t.Fatal("no file cache of removed cgroups")
	}
	atOnce := 0
	for i, file := range files {
		_, surveys := walk(t, s)
		dropCache(t, file)
		left := uint64(2-i) * cachedBytes
		var got Row
		var same uint64
		eventually(t, "less file cache of removed cgroups", func() bool {
			var rows map[uint64]Row
			rows, same = walk(t, s)
			got = rows[top.id(t)]
			return got.InactiveFile < left+mib
		})
		// The kernel's own memory for the cache is freed, too, and looks like more cache.
		if got.InactiveFile+cachedBytes/8 < left {
			t.Errorf("%d files dropped: %d MiB of inactive file cache; want %d", i+1, got.InactiveFile/mib, left/mib)
		}
		if got.WorkingSet() < 16*mib || got.WorkingSet() > 64*mib {
			t.Errorf("%d files dropped: a working set of %d MiB; want that of the living cgroup", i+1, got.WorkingSet()/mib)
		}
		if same == surveys {
			atOnce++
		}
	}
	if atOnce == 0 {
		t.Error("only surveys noticed that the cache shrank; want walks to notice it")
	}
}

// A crossing that a survey may refute waits for the survey, for a short time.
func TestUncertainCrossingWaitsForSurvey(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	child := top.child(t, "removed")
	hog := startHog(t, child)
	file := cacheFile(t)
	hog.run("cache %s", file)
	for range 2 { // makes it active with the classic LRU
		if _, err := os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	hog.stop()
	eventually(t, "remove", func() bool { return os.Remove(child.dir) == nil })
	alive := startHog(t, top.child(t, "alive"))
	setPods(t, s, top)
	used := pods(t, s)
	if used.InactiveFile+used.ActiveFile < cachedBytes/2 {
		t.Fatalf("Pods = %+v; want the file cache of the removed cgroup", used)
	}
	// Far from the threshold there is a survey every ten seconds, and what was active may
	// have become inactive since.
	time.Sleep(1200 * time.Millisecond)
	before, err := s.Stats()
	if err != nil {
		t.Fatal(err)
	}
	arm(t, s, Threshold{Key: 5, Source: SourcePods, Capacity: used.WorkingSet() + gib, Available: gib - 4*mib})
	alive.run("grow %d", 16*mib)
	if c := nextRecord(t, ring).Crossing; c.Key != 5 || !c.Sample.Pods.Valid || c.Sample.Pods.Uncertain {
		t.Errorf("crossing = %+v; want one with certain figures", c)
	}
	after, err := s.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if n := after.Surveys - before.Surveys; n == 0 || n > 3 {
		t.Errorf("%d surveys until the crossing; want one or two", n)
	}
}

// A survey runs even if a walk is due in each tick.
func TestSurveyDuringWalks(t *testing.T) {
	_, s := openSampler(t, Options{})
	top := makeCgroup(t)
	top.child(t, "pod")
	setPods(t, s, top)
	if err := s.SetWalk(time.Microsecond); err != nil { // in each tick
		t.Fatal(err)
	}
	_, before := walk(t, s)
	eventually(t, "another survey", func() bool {
		stats, err := s.Stats()
		return err == nil && stats.Surveys > before
	})
}

// dropCache makes the kernel drop the page cache of a file.
func dropCache(t *testing.T, file string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}

// A survey of many removed cgroups runs in short slices, and walks do not visit them.
func TestSurveyInSlices(t *testing.T) {
	_, s := openSampler(t, Options{WalkLimit: time.Nanosecond}) // a slice is 32 cgroups
	top := makeCgroup(t)
	dir := t.TempDir()
	last := top.child(t, "last")
	hog := startHog(t, last)
	const removed = 150
	for i := range removed {
		child := top.child(t, strconv.Itoa(i))
		hog.move(child)
		hog.run("write %s", filepath.Join(dir, strconv.Itoa(i)))
		hog.move(last)
		eventually(t, "remove", func() bool { return os.Remove(child.dir) == nil })
	}
	for i := range 5 {
		top.child(t, fmt.Sprint("alive", i))
	}
	setPods(t, s, top)
	var pods Pods
	eventually(t, "figures of the pods", func() bool {
		var sample Sample
		err := s.Sample(&sample)
		pods = sample.Pods
		return err == nil && pods.Valid
	})
	if want := uint64(removed * writtenBytes * 9 / 10); pods.InactiveFile+pods.ActiveFile < want {
		t.Errorf("Pods = %+v; want at least %d bytes of file cache of removed cgroups", pods, want)
	}
	if rows, _ := walk(t, s); len(rows) != 7 {
		t.Errorf("%d rows; want 7", len(rows))
	}
	stats, err := s.Stats()
	if err != nil || stats.Surveys == 0 || stats.SurveySlices < removed/32 || stats.Truncated != 0 {
		t.Errorf("Stats() = %+v, %v; want a survey in at least %d slices, and nothing truncated", stats, err, removed/32)
	}
	t.Logf("the survey took %v in slices, a walk %v, the longest tick %v", stats.SurveyTime, stats.WalkTime, stats.LongestTick)
}
