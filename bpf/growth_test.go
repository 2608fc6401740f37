package bpf

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// crossPods follows a cgroup of which so many bytes can be used before a threshold is
// crossed, once there is a reference that is a second old.
func crossPods(t *testing.T, s *Sampler, top cgroup, room uint64) Threshold {
	t.Helper()
	follow(t, s, top)
	used := pods(t, s)
	th := Threshold{Key: 3, Source: SourcePods, Capacity: used.WorkingSet() + gib, Available: gib - room, GrowthFloor: 16 * mib}
	arm(t, s, th)
	start := now(t, s).Sample.Time
	eventually(t, "a reference of a second ago", func() bool {
		return now(t, s).Sample.Time > start+uint64(2*time.Second)
	})
	return th
}

// checkRule holds what the sampler found against the same rule in Go.
func checkRule(t *testing.T, th Threshold, c *Crossing) {
	t.Helper()
	reading := func(p MemoryPoint) signal.MemoryReading {
		m := signal.MemoryReading{Source: signal.Sampler, Other: int64(th.Capacity) - int64(p.Other), FileCache: int64(p.FileCache)}
		if p.Time != 0 {
			m.Time = time.Unix(0, int64(p.Time))
		}
		return m
	}
	crossing := signal.Crossing{Reference: reading(c.Reference), At: reading(c.At), Recent: reading(c.Recent), Now: reading(c.Now)}
	want := crossing.Now.Other >= int64(th.Available) && !crossing.Answered(int64(th.GrowthFloor))
	if c.Waiting != want {
		t.Errorf("crossing %+v: waiting = %t; want %t, as signal.Crossing has it", c, c.Waiting, want)
	}
}

// A crossing that other memory brought is answered at once, however much active file
// cache there is.
func TestOtherMemoryCrosses(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	hog := startHog(t, top.child(t, "pod"))
	file := cacheFile(t)
	hog.do("cache %s", file)
	hog.do("activate %s", file)
	th := crossPods(t, s, top, 24*mib)
	hog.do("grow %d", 64*mib)
	c := next(t, ring).Crossing
	if c.Waiting || c.Reference.Time == 0 || c.At.Time-c.Reference.Time < time.Second {
		t.Errorf("crossing = %+v; want it answered, by a reference of a second ago", c)
	}
	checkRule(t, th, &c)
	none(t, ring, s, 20)
}

// A crossing that file cache brought waits, and is raised once more when other memory
// has grown by the floor.
func TestFileCacheCrosses(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	hog := startHog(t, top.child(t, "pod"))
	file := cacheFile(t)
	th := crossPods(t, s, top, 24*mib)
	hog.do("cache %s", file)
	hog.do("activate %s", file)
	if got := pods(t, s); got.ActiveFile < 32*mib {
		t.Fatalf("Pods = %+v; want active file cache", got)
	}
	c := next(t, ring).Crossing
	if !c.Waiting {
		t.Errorf("crossing = %+v; want it to wait", c)
	}
	checkRule(t, th, &c)
	hog.do("grow %d", 8*mib)
	none(t, ring, s, 20)
	hog.do("grow %d", 32*mib)
	answered := next(t, ring).Crossing
	if answered.Waiting || answered.Seen != c.Seen || answered.Key != th.Key {
		t.Errorf("second record = %+v; want the same crossing, answered", answered)
	}
	checkRule(t, th, &answered)
	grown := int64(answered.Now.Other - answered.At.Other)
	if late := grown - int64(th.GrowthFloor); late < 0 || late > 16*mib {
		t.Errorf("answered when other memory had grown by %d KiB; want %d KiB or little more", grown>>10, th.GrowthFloor>>10)
	}
	t.Logf("answered %v after it was sent, at %d KiB more", answered.Sent-c.Sent, grown>>10)
	none(t, ring, s, 20)
}

// The reference of the end of a crossing falls with the victims' memory, of which only
// part is free by then.
func TestCrossesAgainAfterARelease(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	first, second := startHog(t, top.child(t, "first")), startHog(t, top.child(t, "second"))
	third := startHog(t, top.child(t, "third"))
	file := cacheFile(t)
	third.do("cache %s", file)
	third.do("activate %s", file)
	th := crossPods(t, s, top, 24*mib)
	if err := s.SetWalk(time.Microsecond); err != nil { // references are made of walks
		t.Fatal(err)
	}
	first.do("grow %d", 20*mib)
	second.do("grow %d", 20*mib)
	if c := next(t, ring).Crossing; c.Waiting {
		t.Fatalf("crossing = %+v; want it answered", c)
	}
	drain(t, ring)
	pass := func(d time.Duration) {
		start := now(t, s).Sample.Time
		eventually(t, "samples of "+d.String(), func() bool { return now(t, s).Sample.Time > start+uint64(d) })
	}
	pass(400 * time.Millisecond)
	first.do("shrink")
	pass(150 * time.Millisecond)
	second.do("shrink")
	pass(time.Second)
	third.do("grow %d", 48*mib)
	c := next(t, ring).Crossing
	if c.Waiting || c.Reference.Time == 0 {
		t.Errorf("crossing = %+v; want it answered", c)
	}
	checkRule(t, th, &c)
}

// The first reference is taken as soon as the pods are followed.
func TestOtherMemoryCrossesAtOnce(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	hog := startHog(t, top.child(t, "pod"))
	follow(t, s, top)
	used := pods(t, s)
	th := Threshold{Source: SourcePods, Capacity: used.WorkingSet() + gib, Available: gib - 24*mib, GrowthFloor: 16 * mib}
	arm(t, s, th)
	hog.do("grow %d", 64*mib)
	c := next(t, ring).Crossing
	if c.Waiting || c.Reference.Time == 0 {
		t.Errorf("crossing = %+v; want it answered", c)
	}
	checkRule(t, th, &c)
}

// A wait is over as soon as the threshold is no longer met, whatever the margin.
func TestWaitEndsInTheMargin(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	hog, other := startHog(t, top.child(t, "pod")), startHog(t, top.child(t, "other"))
	file := cacheFile(t)
	follow(t, s, top)
	other.do("grow %d", 32*mib)
	used := pods(t, s)
	th := Threshold{Source: SourcePods, Capacity: used.WorkingSet() + gib, Available: gib - 24*mib, GrowthFloor: 16 * mib, Margin: 512 * mib}
	arm(t, s, th)
	start := now(t, s).Sample.Time
	eventually(t, "a reference of a second ago", func() bool { return now(t, s).Sample.Time > start+uint64(2*time.Second) })
	hog.do("cache %s", file)
	hog.do("activate %s", file)
	if c := next(t, ring).Crossing; !c.Waiting {
		t.Fatalf("crossing = %+v; want it to wait", c)
	}
	for _, again := range drain(t, ring) { // available memory may go up and down about the threshold
		if !again.Crossing.Waiting {
			t.Fatalf("record = %+v; want another crossing that waits, if any", again)
		}
	}
	// What the file has is given back: above the threshold, and far below the margin.
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	none(t, ring, s, 20)
	other.do("grow %d", 96*mib)
	c := next(t, ring).Crossing
	if c.Waiting || c.LastAbove == 0 || c.Seen < c.LastAbove {
		t.Errorf("crossing = %+v; want another one, answered", c)
	}
	checkRule(t, th, &c)
}

// A crossing after a time in which the pods could not be read is compared with the latest
// reading before that, however many references of the node were taken meanwhile.
func TestCrossesAfterATimeWithoutFigures(t *testing.T) {
	ring, s := openSampler(t, Options{WalkLimit: time.Nanosecond})
	top := makeCgroup(t)
	hog, other := startHog(t, top.child(t, "pod")), startHog(t, makeCgroup(t))
	file := cacheFile(t)
	hog.do("cache %s", file)
	hog.do("activate %s", file)
	th := crossPods(t, s, top, 24*mib)
	read := func() bool {
		var sample Sample
		return s.Sample(&sample) == nil && sample.Pods.Valid
	}
	var children []cgroup
	for i := range 40 { // more than a walk visits before it looks at the clock
		children = append(children, top.child(t, strconv.Itoa(i)))
	}
	eventually(t, "pods that can't be read", func() bool { return !read() })
	hog.do("grow %d", 48*mib)
	// The end of a crossing of the node's memory takes a reference.
	node := below(t, s, 0, 0)
	node.Key = 4
	node.Available -= 32 * mib
	arm(t, s, th, node)
	for range 20 {
		other.do("grow %d", 96*mib)
		now(t, s)
		other.do("shrink")
		start := now(t, s).Sample.Time
		eventually(t, "the next reference", func() bool { return now(t, s).Sample.Time > start+uint64(110*time.Millisecond) })
	}
	if read() {
		t.Fatal("the pods can be read beside 40 cgroups; want walks that give up")
	}
	for _, c := range children {
		if err := os.Remove(c.dir); err != nil {
			t.Fatal(err)
		}
	}
	var c Crossing
	eventually(t, "a crossing of the pods", func() bool {
		for _, r := range drain(t, ring) {
			if r.Kind == KindCrossing && r.Crossing.Key == th.Key {
				c = r.Crossing
			}
		}
		return c.Key == th.Key
	})
	if c.Waiting || c.Reference.Time == 0 {
		t.Errorf("crossing = %+v; want it answered, by a reference from before the pods could not be read", c)
	}
	checkRule(t, th, &c)
}

// A crossing of one cgroup says nothing of the next one that is followed.
func TestSetPodsEndsACrossing(t *testing.T) {
	ring, s := openSampler(t, Options{})
	first, second := makeCgroup(t), makeCgroup(t)
	startHog(t, first).do("grow %d", 64*mib)
	startHog(t, second).do("grow %d", 64*mib)
	follow(t, s, first)
	arm(t, s, Threshold{Source: SourcePods, Capacity: gib, Available: gib - 32*mib, GrowthFloor: 16 * mib})
	before := next(t, ring).Crossing
	follow(t, s, second)
	if after := next(t, ring).Crossing; after.Seen <= before.Seen || after.LastAbove > after.Seen {
		t.Errorf("crossing = %+v; want one of the second cgroup, after %v", after, before.Seen)
	}
}

// A crossing that file cache brought is answered after ten seconds.
func TestFileCacheCrossingLasts(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds")
	}
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	hog := startHog(t, top.child(t, "pod"))
	file := cacheFile(t)
	th := crossPods(t, s, top, 24*mib)
	hog.do("cache %s", file)
	hog.do("activate %s", file)
	waiting := next(t, ring).Crossing
	var answered Crossing
	eventually(t, "a second record", func() bool {
		for _, r := range drain(t, ring) {
			answered = r.Crossing
		}
		return answered.Sent != 0
	})
	if !waiting.Waiting || answered.Waiting || answered.Seen != waiting.Seen || answered.Sent-answered.Seen < 10*time.Second {
		t.Errorf("records = %+v and %+v; want one that waits, and one that is answered 10 s later", waiting, answered)
	}
	checkRule(t, th, &answered)
}

// A crossing of the node's memory waits and is answered likewise. What other
// processes do meanwhile is part of it.
func TestFileCacheCrossesNode(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	hog := startHog(t, top)
	crossed := func() Threshold { // already: nothing grew that brought it
		th := below(t, s, 0, 0)
		th.Available += 16 * mib
		th.GrowthFloor = 48 * mib
		return th
	}
	th := crossed()
	if used := now(t, s).Sample; used.ActiveFile < 64*mib {
		file := cacheFile(t)
		hog.do("cache %s", file)
		hog.do("activate %s", file)
		th = crossed()
	}
	var c Crossing
	for range 20 {
		arm(t, s, th)
		c = next(t, ring).Crossing
		checkRule(t, th, &c)
		if c.Waiting || c.At.Other-c.Reference.Other < th.GrowthFloor {
			break
		}
		// Processes of the machine took memory just then: their growth answers it.
		arm(t, s)
		th = crossed()
	}
	if !c.Waiting {
		t.Fatalf("crossing = %+v; want it to wait", c)
	}
	hog.do("grow %d", 96*mib)
	answered := next(t, ring).Crossing
	checkRule(t, th, &answered)
	if answered.Waiting || answered.Seen != c.Seen {
		t.Errorf("second record = %+v; want the same crossing, answered", answered)
	}
}
