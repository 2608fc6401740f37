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

// walked walks and returns the rows by their cgroup, and how many surveys there were.
func walked(t *testing.T, s *Sampler) (map[uint64]Row, uint64) {
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

// A cgroup that was made after the last survey is in the next walk, and so are those
// below it; what a removed one leaves behind is its parent's at once.
func TestKnownAtOnce(t *testing.T) {
	_, s := openSampler(t, Options{})
	top := makeCgroup(t)
	old := top.child(t, "old")
	follow(t, s, top)
	now(t, s)
	changed := 0
	for round := range 5 {
		// Only what comes to be between two surveys tells.
		before, surveys := walked(t, s)
		pod := top.child(t, fmt.Sprint("pod", round))
		container := pod.child(t, "container")
		below := old.child(t, fmt.Sprint("below", round))
		if _, seen := before[pod.id(t)]; seen {
			t.Fatalf("round %d: the pod is known before it was made", round)
		}
		after, same := walked(t, s)
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
		hog.do("cache %s", cacheFile(t))
		hog.stop()
		_, surveys = walked(t, s)
		ids := []uint64{container.id(t), pod.id(t)}
		eventually(t, "remove", func() bool { return os.Remove(container.dir) == nil && os.Remove(pod.dir) == nil })
		after, same = walked(t, s)
		if slices.ContainsFunc(ids, func(id uint64) bool { _, ok := after[id]; return ok }) {
			t.Errorf("round %d: there are rows of removed cgroups", round)
		}
		// What goes with a removed cgroup, but its cache, looks like a loss of that.
		const lost = 4 * mib
		if got, most := after[top.id(t)].InactiveFile, uint64(round+1)*cached; got+uint64(round+1)*lost < most || got > most+mib {
			t.Errorf("round %d: %d MiB of inactive file cache; want %d", round, got/mib, most/mib)
		}
		if surveys == same {
			changed++
		}
	}
	if changed == 0 {
		t.Error("there was a survey between any two walks; want few")
	}
}

// What removed cgroups lose counts at once, although they are not visited.
func TestKnownShrink(t *testing.T) {
	_, s := openSampler(t, Options{})
	top := makeCgroup(t)
	alive := startHog(t, top.child(t, "alive"))
	alive.do("grow %d", 16*mib)
	var files []string
	for i := range 3 {
		child := top.child(t, strconv.Itoa(i))
		hog := startHog(t, child)
		files = append(files, cacheFile(t))
		hog.do("cache %s", files[i])
		hog.stop()
		eventually(t, "remove", func() bool { return os.Remove(child.dir) == nil })
	}
	follow(t, s, top)
	atOnce := 0
	eventually(t, "file cache of removed cgroups", func() bool {
		rows, _ := walked(t, s)
		return rows[top.id(t)].InactiveFile > 3*(cached-mib)
	})
	for i, file := range files {
		_, surveys := walked(t, s)
		dropCache(t, file)
		left := uint64(2-i) * cached
		var got Row
		var same uint64
		eventually(t, "less of it", func() bool {
			var rows map[uint64]Row
			rows, same = walked(t, s)
			got = rows[top.id(t)]
			return got.InactiveFile < left+mib
		})
		// With the cache goes what the kernel had to keep it, which looks like more of it.
		if got.InactiveFile+cached/8 < left {
			t.Errorf("%d files dropped: %d MiB of inactive file cache; want %d", i+1, got.InactiveFile/mib, left/mib)
		}
		if got.WorkingSet() < 16*mib || got.WorkingSet() > 64*mib {
			t.Errorf("%d files dropped: a working set of %d MiB; want that of the one alive", i+1, got.WorkingSet()/mib)
		}
		if same == surveys {
			atOnce++
		}
	}
	if atOnce == 0 {
		t.Error("each loss was seen by a survey alone; want most seen by walks")
	}
}

// A crossing by so little that a survey may tell otherwise waits for one, and not long.
func TestKnownUncertain(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	child := top.child(t, "removed")
	hog := startHog(t, child)
	file := cacheFile(t)
	hog.do("cache %s", file)
	for range 2 { // which makes it active with the classic LRU
		if _, err := os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	hog.stop()
	eventually(t, "remove", func() bool { return os.Remove(child.dir) == nil })
	alive := startHog(t, top.child(t, "alive"))
	follow(t, s, top)
	used := pods(t, s)
	if used.InactiveFile+used.ActiveFile < cached/2 {
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
	alive.do("grow %d", 16*mib)
	if c := next(t, ring).Crossing; c.Key != 5 || !c.Sample.Pods.Valid || c.Sample.Pods.Uncertain {
		t.Errorf("crossing = %+v; want it of figures that are certain", c)
	}
	after, err := s.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if n := after.Surveys - before.Surveys; n == 0 || n > 3 {
		t.Errorf("%d surveys from far off to the crossing; want one or two", n)
	}
}

// A survey makes way for walks, but not for ever.
func TestSurveyAmongWalks(t *testing.T) {
	_, s := openSampler(t, Options{})
	top := makeCgroup(t)
	top.child(t, "pod")
	follow(t, s, top)
	if err := s.SetWalk(time.Microsecond); err != nil { // in each tick
		t.Fatal(err)
	}
	_, before := walked(t, s)
	eventually(t, "another survey", func() bool {
		stats, err := s.Stats()
		return err == nil && stats.Surveys > before
	})
}

// dropCache has the kernel forget what it cached of a file.
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

// A tree with many removed cgroups is surveyed in slices, each of which is short, and
// walks don't visit those.
func TestSurveyInSlices(t *testing.T) {
	_, s := openSampler(t, Options{WalkLimit: time.Nanosecond}) // the clock is looked at every 32 cgroups
	top := makeCgroup(t)
	dir := t.TempDir()
	last := top.child(t, "last")
	hog := startHog(t, last)
	const removed = 150
	for i := range removed {
		child := top.child(t, strconv.Itoa(i))
		hog.move(child)
		hog.do("write %s", filepath.Join(dir, strconv.Itoa(i)))
		hog.move(last)
		eventually(t, "remove", func() bool { return os.Remove(child.dir) == nil })
	}
	for i := range 5 {
		top.child(t, fmt.Sprint("alive", i))
	}
	follow(t, s, top)
	var pods Pods
	eventually(t, "figures of the pods", func() bool {
		var sample Sample
		err := s.Sample(&sample)
		pods = sample.Pods
		return err == nil && pods.Valid
	})
	if want := uint64(removed * written * 9 / 10); pods.InactiveFile+pods.ActiveFile < want {
		t.Errorf("Pods = %+v; want %d of file cache at least, which removed cgroups left", pods, want)
	}
	if rows, _ := walked(t, s); len(rows) != 7 {
		t.Errorf("%d rows; want 7", len(rows))
	}
	stats, err := s.Stats()
	if err != nil || stats.Surveys == 0 || stats.SurveySlices < removed/32 || stats.Truncated != 0 {
		t.Errorf("Stats() = %+v, %v; want a survey in %d slices at least, and nothing truncated", stats, err, removed/32)
	}
	t.Logf("the survey took %v in slices, a walk %v, the longest tick %v", stats.SurveyTime, stats.WalkTime, stats.Longest)
}
