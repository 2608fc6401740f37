package bpf

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// armPodsThreshold sets a cgroup as that of the pods, arms a threshold that is crossed
// after room more bytes, and waits until there is a reference that is a second old.
func armPodsThreshold(t *testing.T, s *Sampler, top cgroup, room uint64) Threshold {
	t.Helper()
	setPods(t, s, top)
	used := pods(t, s)
	th := Threshold{Key: 3, Source: SourcePods, Capacity: used.WorkingSet() + gib, Available: gib - room, GrowthFloor: 16 * mib}
	arm(t, s, th)
	start := tickNow(t, s).Sample.Time
	eventually(t, "a reference of a second ago", func() bool {
		return tickNow(t, s).Sample.Time > start+uint64(2*time.Second)
	})
	return th
}

// compareWithRule compares a crossing of the sampler with the same rule in Go.
func compareWithRule(t *testing.T, th Threshold, c *Crossing) {
	t.Helper()
	reading := func(p MemoryPoint) signal.MemoryReading {
		m := signal.MemoryReading{Source: signal.Sampler, Other: int64(th.Capacity) - int64(p.Other), FileCache: int64(p.FileCache)}
		if p.Time != 0 {
			m.Time = time.Unix(0, int64(p.Time))
		}
		return m
	}
	crossing := signal.Crossing{Reference: reading(c.Reference), First: reading(c.First), Previous: reading(c.Previous), Latest: reading(c.Latest)}
	want := crossing.Latest.Other >= int64(th.Available) && !crossing.ActNow(int64(th.GrowthFloor))
	if c.Waiting != want {
		t.Errorf("crossing %+v: waiting = %t; want %t as by signal.Crossing", c, c.Waiting, want)
	}
}

// A crossing that other memory brought is answered at once, however much active file
// cache there is.
func TestOtherMemoryCrosses(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	hog := startHog(t, top.child(t, "pod"))
	file := coldFile(t)
	hog.run("activate %s", file)
	th := armPodsThreshold(t, s, top, 24*mib)
	hog.run("grow %d", 64*mib)
	c := nextRecord(t, ring).Crossing
	if c.Waiting || c.Reference.Time == 0 || c.First.Time-c.Reference.Time < time.Second {
		t.Errorf("crossing = %+v; want it answered, by a reference of a second ago", c)
	}
	compareWithRule(t, th, &c)
	noRecord(t, ring, s, 20)
}

// A crossing that file cache brought waits, and is raised once more when other memory
// has grown by the GrowthFloor.
func TestFileCacheCrosses(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	hog := startHog(t, top.child(t, "pod"))
	file := coldFile(t)
	th := armPodsThreshold(t, s, top, 24*mib)
	hog.run("activate %s", file)
	if got := pods(t, s); got.ActiveFile < 32*mib {
		t.Fatalf("Pods = %+v; want active file cache", got)
	}
	c := nextRecord(t, ring).Crossing
	if !c.Waiting {
		t.Errorf("crossing = %+v; want it to wait", c)
	}
	compareWithRule(t, th, &c)
	hog.run("grow %d", 8*mib)
	noRecord(t, ring, s, 20)
	hog.run("grow %d", 32*mib)
	answered := nextRecord(t, ring).Crossing
	if answered.Waiting || answered.Seen != c.Seen || answered.Key != th.Key {
		t.Errorf("second record = %+v; want the same crossing, answered", answered)
	}
	compareWithRule(t, th, &answered)
	grown := int64(answered.Latest.Other - answered.First.Other)
	if late := grown - int64(th.GrowthFloor); late < 0 || late > 16*mib {
		t.Errorf("answered when other memory had grown by %d KiB; want %d KiB or little more", grown>>10, th.GrowthFloor>>10)
	}
	t.Logf("answered %v after it was sent, at %d KiB more", answered.Sent-c.Sent, grown>>10)
	noRecord(t, ring, s, 20)
}

// The reference taken at the end of a crossing is lowered while the victims' memory falls,
// of which only part is free at that time.
func TestReferenceFallsAfterRelease(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	first, second := startHog(t, top.child(t, "first")), startHog(t, top.child(t, "second"))
	third := startHog(t, top.child(t, "third"))
	file := coldFile(t)
	third.run("activate %s", file)
	th := armPodsThreshold(t, s, top, 24*mib)
	if err := s.SetWalk(time.Microsecond); err != nil { // references are from walks
		t.Fatal(err)
	}
	first.run("grow %d", 20*mib)
	second.run("grow %d", 20*mib)
	if c := nextRecord(t, ring).Crossing; c.Waiting {
		t.Fatalf("crossing = %+v; want it answered", c)
	}
	takeRecords(t, ring)
	pass := func(d time.Duration) {
		start := tickNow(t, s).Sample.Time
		eventually(t, "samples of "+d.String(), func() bool { return tickNow(t, s).Sample.Time > start+uint64(d) })
	}
	pass(400 * time.Millisecond)
	first.run("shrink")
	pass(150 * time.Millisecond)
	second.run("shrink")
	pass(time.Second)
	third.run("grow %d", 48*mib)
	c := nextRecord(t, ring).Crossing
	if c.Waiting || c.Reference.Time == 0 {
		t.Errorf("crossing = %+v; want it answered", c)
	}
	compareWithRule(t, th, &c)
}

// A process that exits within a second does not hide growth after it, although a reference
// was taken while it ran.
func TestReferenceIsLeastOfASecond(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	transient, hog := startHog(t, top.child(t, "transient")), startHog(t, top.child(t, "hog"))
	file := coldFile(t)
	hog.run("activate %s", file)
	if err := s.SetWalk(time.Microsecond); err != nil { // references are from walks
		t.Fatal(err)
	}
	setPods(t, s, top)
	start := tickNow(t, s).Sample.Time // of the first reference
	used := pods(t, s)
	th := Threshold{Key: 3, Source: SourcePods, Capacity: used.WorkingSet() + gib, Available: gib - 24*mib, GrowthFloor: 16 * mib}
	arm(t, s, th)
	until := func(d time.Duration) {
		eventually(t, "samples of "+d.String(), func() bool { return tickNow(t, s).Sample.Time > start+uint64(d) })
	}
	until(850 * time.Millisecond)
	transient.run("grow %d", 20*mib)
	until(1200 * time.Millisecond) // the second reference
	transient.run("shrink")
	until(2400 * time.Millisecond)
	hog.run("grow %d", 48*mib)
	c := nextRecord(t, ring).Crossing
	if c.Waiting || c.Reference.Time == 0 {
		t.Errorf("crossing = %+v; want it answered", c)
	}
	compareWithRule(t, th, &c)
}

// The first reference is taken as soon as the pods' cgroup is set.
func TestOtherMemoryCrossesAtOnce(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	hog := startHog(t, top.child(t, "pod"))
	setPods(t, s, top)
	used := pods(t, s)
	th := Threshold{Source: SourcePods, Capacity: used.WorkingSet() + gib, Available: gib - 24*mib, GrowthFloor: 16 * mib}
	arm(t, s, th)
	hog.run("grow %d", 64*mib)
	c := nextRecord(t, ring).Crossing
	if c.Waiting || c.Reference.Time == 0 {
		t.Errorf("crossing = %+v; want it answered", c)
	}
	compareWithRule(t, th, &c)
}

// A wait ends as soon as the threshold is no longer crossed, within the margin too.
func TestWaitEndsInTheMargin(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	hog, other := startHog(t, top.child(t, "pod")), startHog(t, top.child(t, "other"))
	file := coldFile(t)
	setPods(t, s, top)
	other.run("grow %d", 32*mib)
	used := pods(t, s)
	th := Threshold{Source: SourcePods, Capacity: used.WorkingSet() + gib, Available: gib - 24*mib, GrowthFloor: 16 * mib, Margin: 512 * mib}
	arm(t, s, th)
	start := tickNow(t, s).Sample.Time
	// The latest reference that is a second old has the least use of a second, which on a busy machine begins late.
	eventually(t, "a reference of a second ago", func() bool { return tickNow(t, s).Sample.Time > start+uint64(3*time.Second) })
	hog.run("activate %s", file)
	if c := nextRecord(t, ring).Crossing; !c.Waiting {
		t.Fatalf("crossing = %+v; want it to wait", c)
	}
	for _, again := range takeRecords(t, ring) { // available memory may go up and down around the threshold
		if !again.Crossing.Waiting {
			t.Fatalf("record = %+v; want only crossings that wait", again)
		}
	}
	// Freeing the file's cache brings memory above the threshold, but not by the margin.
	// Pages leave their list before they are uncharged, so they are freed in pieces below the floor.
	for size := int64(cachedBytes - mib); size >= 0; size -= mib {
		if err := os.Truncate(file, size); err != nil {
			t.Fatal(err)
		}
	}
	noRecord(t, ring, s, 20)
	other.run("grow %d", 96*mib)
	c := nextRecord(t, ring).Crossing
	if c.Waiting || c.LastAbove == 0 || c.Seen < c.LastAbove {
		t.Errorf("crossing = %+v; want another one, answered", c)
	}
	compareWithRule(t, th, &c)
}

// A crossing after the pods could not be read for some time is compared with their latest
// reference before that, however many references of the node were taken since.
func TestFiguresMissingBeforeCrossing(t *testing.T) {
	ring, s := openSampler(t, Options{WalkLimit: time.Nanosecond})
	top := makeCgroup(t)
	hog, other := startHog(t, top.child(t, "pod")), startHog(t, makeCgroup(t))
	file := coldFile(t)
	hog.run("activate %s", file)
	th := armPodsThreshold(t, s, top, 24*mib)
	read := func() bool {
		var sample Sample
		return s.Sample(&sample) == nil && sample.Pods.Valid
	}
	var children []cgroup
	for i := range 40 { // more than a walk visits before it reads the clock
		children = append(children, top.child(t, strconv.Itoa(i)))
	}
	eventually(t, "pods that can't be read", func() bool { return !read() })
	hog.run("grow %d", 48*mib)
	// The end of a crossing of the node's memory takes a reference.
	node := thresholdBelow(t, s, 0, 0)
	node.Key = 4
	node.Available -= 32 * mib
	arm(t, s, th, node)
	for range 20 {
		other.run("grow %d", 96*mib)
		tickNow(t, s)
		other.run("shrink")
		start := tickNow(t, s).Sample.Time
		eventually(t, "the next reference", func() bool { return tickNow(t, s).Sample.Time > start+uint64(110*time.Millisecond) })
	}
	if read() {
		t.Fatal("the pods' figures are valid with 40 cgroups; want walks that give up")
	}
	for _, c := range children {
		if err := os.Remove(c.dir); err != nil {
			t.Fatal(err)
		}
	}
	var c Crossing
	eventually(t, "a crossing of the pods", func() bool {
		for _, r := range takeRecords(t, ring) {
			if r.Kind == KindCrossing && r.Crossing.Key == th.Key {
				c = r.Crossing
			}
		}
		return c.Key == th.Key
	})
	if c.Waiting || c.Reference.Time == 0 {
		t.Errorf("crossing = %+v; want it answered, by a reference from before the pods could not be read", c)
	}
	compareWithRule(t, th, &c)
}

// SetPods ends a crossing of the previous cgroup.
func TestSetPodsEndsACrossing(t *testing.T) {
	ring, s := openSampler(t, Options{})
	first, second := makeCgroup(t), makeCgroup(t)
	startHog(t, first).run("grow %d", 64*mib)
	startHog(t, second).run("grow %d", 64*mib)
	setPods(t, s, first)
	arm(t, s, Threshold{Source: SourcePods, Capacity: gib, Available: gib - 32*mib, GrowthFloor: 16 * mib})
	before := nextRecord(t, ring).Crossing
	setPods(t, s, second)
	if after := nextRecord(t, ring).Crossing; after.Seen <= before.Seen || after.LastAbove > after.Seen {
		t.Errorf("crossing = %+v; want one of the second cgroup, after %v", after, before.Seen)
	}
}

// A crossing that file cache brought is answered after ten seconds.
func TestFileCacheCrossingIsAnsweredAfterTimeout(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds")
	}
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	hog := startHog(t, top.child(t, "pod"))
	file := coldFile(t)
	th := armPodsThreshold(t, s, top, 24*mib)
	hog.run("activate %s", file)
	waiting := nextRecord(t, ring).Crossing
	var answered Crossing
	eventually(t, "a second record", func() bool {
		for _, r := range takeRecords(t, ring) {
			answered = r.Crossing
		}
		return answered.Sent != 0
	})
	if !waiting.Waiting || answered.Waiting || answered.Seen != waiting.Seen || answered.Sent-answered.Seen < 10*time.Second {
		t.Errorf("records = %+v and %+v; want one that waits, and one that is answered 10 s later", waiting, answered)
	}
	compareWithRule(t, th, &answered)
}

// A crossing of the node's memory waits and is answered in the same way. Memory that other
// processes of the machine take counts, too.
func TestFileCacheCrossesNode(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	hog := startHog(t, top)
	crossed := func() Threshold { // crossed when it is armed, without growth
		th := thresholdBelow(t, s, 0, 0)
		th.Available += 16 * mib
		th.GrowthFloor = 48 * mib
		return th
	}
	th := crossed()
	if used := tickNow(t, s).Sample; used.ActiveFile < 64*mib {
		file := coldFile(t)
		hog.run("activate %s", file)
		th = crossed()
	}
	// Other processes of the machine use memory, too: their growth may answer the crossing,
	// and what they free may end it. Then the next attempt decides.
	for range 20 {
		arm(t, s, th)
		c := nextRecord(t, ring).Crossing
		compareWithRule(t, th, &c)
		if c.Waiting {
			hog.run("grow %d", 96*mib)
			answered := nextRecord(t, ring).Crossing
			compareWithRule(t, th, &answered)
			if answered.Seen == c.Seen {
				if answered.Waiting {
					t.Errorf("second record = %+v; want the crossing answered", answered)
				}
				return
			}
			hog.run("shrink")
		} else if c.First.Other-c.Reference.Other < th.GrowthFloor {
			t.Fatalf("crossing = %+v; want it to wait", c)
		}
		arm(t, s)
		takeRecords(t, ring)
		th = crossed()
	}
	t.Error("each of 20 crossings was answered or ended by other processes")
}
