package lanes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/memcg"
)

// What is available is the capacity without the usage but for the inactive file
// pages, and without the active ones where they count as available.
func TestUsageThreshold(t *testing.T) {
	used := &cgroup.Memory{Usage: 5 * gib, InactiveFile: gib, ActiveFile: gib / 2}
	for _, tc := range []struct {
		name       string
		level      level
		countCache bool
		want       uint64
	}{
		{"as the kubelet counts", level{capacity: 8 * gib, available: gib}, false, 8 * gib},
		{"active cache is available", level{capacity: 8 * gib, available: gib}, true, 8*gib + gib/2},
		{"more than there is", level{capacity: gib, available: 2 * gib}, false, gib},
	} {
		l := &usage{o: memory.Options{CountCache: tc.countCache}}
		if got := l.threshold(tc.level, used); got != tc.want {
			t.Errorf("%s: threshold = %d; want %d", tc.name, got, tc.want)
		}
	}
}

func TestRearmStep(t *testing.T) {
	for _, tc := range []struct {
		name      string
		at        uint64 // where it is armed
		to, usage uint64
		fired     bool
		want      bool
	}{
		{"near, by little", 1000 * mib, 1003 * mib, 990 * mib, false, false},
		{"near, by enough", 1000 * mib, 1004 * mib, 990 * mib, false, true},
		{"down", 1000 * mib, 990 * mib, 950 * mib, false, true},
		{"far, by a sixteenth", 2000 * mib, 2100 * mib, 500 * mib, false, true},
		{"far, by less", 2000 * mib, 2090 * mib, 500 * mib, false, false},
		{"very far, by the most", 64 * gib, 64*gib + 256*mib, gib, false, true},
		{"fired too early", 1000 * mib, 1001 * mib, 1000 * mib, true, true},
		{"fired, and where it should be", 1000 * mib, 1000 * mib, 990 * mib, true, false},
		{"fired, and crossed", 1000 * mib, 1001 * mib, 1100 * mib, true, false},
	} {
		if got := moved(tc.at, tc.to, tc.usage, tc.fired); got != tc.want {
			t.Errorf("%s: moved(%d, %d, %d, %t) = %t; want %t", tc.name, tc.at/mib, tc.to/mib, tc.usage/mib, tc.fired, got, tc.want)
		}
	}
}

// A lane that can't be had is said to be so, and Close closes what was opened.
func TestUnavailableLanes(t *testing.T) {
	s := &events{o: memory.Options{Hierarchy: &cgroup.Hierarchy{Version: cgroup.V1}}}
	err := s.open(time.Now(), &watched{})
	if !never(err) || s.close() != nil {
		t.Errorf("open() on v1 = %v; want an error that says never", err)
	}
	if never(errors.New("busy")) || never(context.Canceled) {
		t.Error("never() of an error that may pass = true; want false")
	}
}

// TestAlarmThatCameEarly: a threshold that stood too low has told of less than its
// mark; what has been passed when it is moved up is told.
func TestAlarmThatCameEarly(t *testing.T) {
	l, heard, dir := usageHere(t)
	at := func(available int64) level { return level{mark: pods, capacity: 512 * mib, available: available} }
	now := time.Now()
	armAt := func(lv level) {
		t.Helper()
		if err := l.follow(); err != nil {
			t.Fatal(err)
		}
		if err := l.arm(&l.groups[1], []level{lv}, now); err != nil {
			t.Fatal(err)
		}
	}
	armAt(at(412 * mib)) // at a usage of 100 MiB
	hog(t, dir, 300*mib)
	eventually(t, "a usage above both", func() bool {
		used, err := l.groups[1].cgroup.Memory()
		return err == nil && used.Usage > 300*mib
	})
	fired := func() *armed {
		a := l.groups[1].armed[0]
		if _, raised := a.Ready(now); !raised {
			t.Fatal("Ready() raised nothing; want the alarm of the lower threshold")
		}
		return a
	}
	fired()
	armAt(at(256 * mib)) // where it should have stood
	if got := heard.alarms(); len(got) != 1 || got[0].Mark != pods {
		t.Fatalf("alarms %+v; want one, as the usage is above", got)
	}
	// One that moves down has told, and goes on to have told.
	armAt(at(300 * mib))
	armAt(at(340 * mib))
	if got := heard.alarms(); len(got) != 1 {
		t.Errorf("alarms %+v; want no more than the one", got)
	}
}

// TestGrowthIsArmed: while a hard mark is crossed, growth by what answers a crossing
// is told of; nothing is armed for that while none is crossed.
func TestGrowthIsArmed(t *testing.T) {
	l, _, dir := usageHere(t)
	th := level{mark: pods, capacity: 512 * mib, available: 412 * mib} // crossed by 100 MiB
	arm := func() *group {
		t.Helper()
		if err := l.follow(); err != nil {
			t.Fatal(err)
		}
		g := &l.groups[1]
		if err := l.arm(g, []level{th}, time.Now()); err != nil {
			t.Fatal(err)
		}
		return g
	}
	if g := arm(); len(g.growth) != 0 {
		t.Fatalf("%d thresholds of growth are armed and no mark is crossed; want none", len(g.growth))
	}
	uses := func(bytes uint64) {
		t.Helper()
		eventually(t, "usage", func() bool {
			used, err := l.groups[1].cgroup.Memory()
			return err == nil && used.Usage > bytes
		})
	}
	stop := hog(t, dir, 150*mib)
	uses(150 * mib)
	g := arm()
	if len(g.growth) != 1 || g.growth[0].mark != pods {
		t.Fatalf("thresholds of growth = %+v; want one of the mark that is crossed", g.growth)
	}
	if _, raised := g.growth[0].Ready(time.Now()); raised {
		t.Error("Ready() raised before the usage grew")
	}
	stands := g.growth[0]
	hog(t, dir, 8*mib)
	uses(158 * mib)
	if g := arm(); len(g.growth) != 1 || g.growth[0] != stands {
		t.Error("what is armed moved on with the usage; want it to stay, or slow growth is never told of")
	}
	hog(t, dir, 64*mib)
	uses(214 * mib)
	if r, raised := g.growth[0].Ready(time.Now()); !raised || r.Mark != pods || r.Lane != Memcg {
		t.Errorf("Ready() = %+v, %t after a growth of 64 MiB; want an alarm of the mark", r, raised)
	}
	stop()
	eventually(t, "less in use", func() bool {
		used, err := g.cgroup.Memory()
		return err == nil && used.Usage < 100*mib
	})
	if g := arm(); len(g.growth) != 0 {
		t.Errorf("%d thresholds of growth are armed after the crossing; want none", len(g.growth))
	}
}

// TestAlarmThatIsOver: a threshold that told of an earlier crossing has not told of
// one that file cache brings about.
func TestAlarmThatIsOver(t *testing.T) {
	l, heard, dir := usageHere(t)
	at := func(available int64) level { return level{mark: pods, capacity: 512 * mib, available: available} }
	now := time.Now()
	armAt := func(lv level) {
		t.Helper()
		if err := l.arm(&l.groups[1], []level{lv}, now); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.follow(); err != nil {
		t.Fatal(err)
	}
	used := func() uint64 {
		used, err := l.groups[1].cgroup.Memory()
		if err != nil {
			t.Fatal(err)
		}
		return used.Usage
	}
	hog(t, dir, 100*mib)
	eventually(t, "100 MiB in use", func() bool { return used() > 100*mib })
	armAt(at(312 * mib)) // at a usage of 200 MiB
	stop := hog(t, dir, 200*mib)
	eventually(t, "300 MiB in use", func() bool { return used() > 300*mib })
	if _, raised := l.groups[1].armed[0].Ready(now); !raised {
		t.Fatal("Ready() raised nothing; want an alarm")
	}
	stop()
	eventually(t, "memory back", func() bool { return used() < 150*mib })
	l.groups[1].armed[0].Ready(now) // the way back is told, too
	armAt(at(312 * mib))
	armAt(at(462 * mib)) // as if the cache that allowed for 200 MiB went: 50 MiB now
	if got := heard.alarms(); len(got) != 1 {
		t.Errorf("alarms %+v; want one, as this crossing is another", got)
	}
}

// usageHere is a lane of usage that is not tended by itself, with kubepods.
func usageHere(t *testing.T) (*usage, *ear, string) {
	t.Helper()
	h, root := kubepods(t, 512*mib)
	if h.Version == cgroup.V2 {
		t.Skip("needs memory in a v1 tree")
	}
	heard := &ear{}
	l := &usage{o: memory.Options{Hierarchy: h, CgroupRoot: root}, wait: heard}
	if err := l.open(time.Now(), &watched{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Errorf("close() = %v; want nil", err)
		}
	})
	return l, heard, h.Memory.Path(root, "kubepods")
}

// deafToPods is a Waiter that does not take the pods' sources.
type deafToPods struct{ *ear }

func (d deafToPods) Add(s Source) error {
	if a, ok := s.(*armed); ok && a.mark == pods {
		return errors.New("no room")
	}
	return d.ear.Add(s)
}

// TestUsageInTrouble: what is amiss with kubepods leaves the node's thresholds
// armed, and is tried again.
func TestUsageInTrouble(t *testing.T) {
	l, heard, _ := usageHere(t)
	start := time.Now()
	w := &watched{thresholds: append(thresholds(t, map[string]time.Duration{"1Mi": 0}), thresholds(t, map[string]time.Duration{"256Mi": 0})...)}
	w.thresholds[1].Signal = signal.AllocatableMemoryAvailable
	w.observed[signal.MemoryAvailable] = signal.Observation{Status: signal.Observed, Capacity: 1 << 40, Available: 1 << 39}
	w.observed[signal.AllocatableMemoryAvailable] = signal.Observation{Status: signal.Observed, Capacity: 512 * mib, Available: 500 * mib}
	l.wait = deafToPods{heard}
	if err := l.tend(start, w); err != nil {
		t.Fatalf("tend() = %v; want nil", err)
	}
	_, ofNode := l.covers(node)
	if _, ok := l.covers(pods); !ofNode || ok || !strings.Contains(l.note(), "no room") {
		t.Errorf("covers the node %t, the pods %t, note %q; want the node alone, and why", ofNode, ok, l.note())
	}
	l.wait = heard
	if err := l.tend(start.Add(troubleLasts), w); err != nil {
		t.Fatalf("tend() = %v; want nil", err)
	}
	if _, ok := l.covers(pods); !ok || l.note() != "" {
		t.Errorf("covers the pods %t, note %q; want them covered, and no note", ok, l.note())
	}
}

// TestUsageInCalm: in calm what is armed stays where it is, unless something is
// amiss with it.
func TestUsageInCalm(t *testing.T) {
	l, _, dir := usageHere(t)
	w := &watched{thresholds: thresholds(t, map[string]time.Duration{"256Mi": 0})}
	w.thresholds[0].Signal = signal.AllocatableMemoryAvailable
	observe := func(capacity int64) {
		w.observed[signal.AllocatableMemoryAvailable] = signal.Observation{Status: signal.Observed, Capacity: capacity, Available: capacity}
	}
	tend := func(calm bool) *armed {
		t.Helper()
		w.calm = calm
		if err := l.tend(time.Now(), w); err != nil {
			t.Fatalf("tend() = %v; want nil", err)
		}
		if len(l.groups[1].armed) != 1 {
			return nil
		}
		return l.groups[1].armed[0]
	}
	observe(512 * mib)
	first := tend(true) // nothing was armed yet
	if first == nil {
		t.Fatal("nothing armed in calm; want the mark that was not")
	}
	observe(1024 * mib)
	if got := tend(true); got != first {
		t.Errorf("armed at %d in calm; want it left at %d", got.Bytes(), first.Bytes())
	}
	moved := tend(false)
	if moved == first || moved.Bytes() != 768*mib {
		t.Errorf("armed at %d; want it moved to %d", moved.Bytes(), 768*mib)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if got := tend(true); got != nil {
		t.Errorf("armed at %d of a cgroup that is gone; want nothing", got.Bytes())
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	again := tend(true)
	if again == nil {
		t.Fatal("nothing armed on the cgroup that came; want the mark")
	}
	again.broken.Store(true)
	w.calm = true
	if err := l.tend(time.Now(), w); err != nil || !strings.Contains(l.note(), "can't be read") {
		t.Errorf("tend() with a broken eventfd = %v, note %q; want it noted", err, l.note())
	}
}

// TestReclaimOfAContainerIsNoAlarm: a container that has to reclaim for its own
// limit is not the pods' want of memory.
func TestReclaimOfAContainerIsNoAlarm(t *testing.T) {
	l, heard, dir := usageHere(t)
	w := &watched{}
	if err := l.tend(time.Now(), w); err != nil {
		t.Fatal(err)
	}
	child := filepath.Join(dir, "container")
	if err := os.Mkdir(child, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eventually(t, "the container removed", func() bool { return os.Remove(child) == nil }) })
	write(t, filepath.Join(child, "memory.limit_in_bytes"), fmt.Sprint(32*mib))
	h := l.o.Hierarchy
	group, err := h.Open(strings.TrimPrefix(child, string(h.Memory)))
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	own, err := memcg.ArmPressure(h, group, memcg.Critical, memcg.Local)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	stop := shell(t, child, `while :; do dd if=/dev/zero of=/dev/null bs="$2" count=1; done`, fmt.Sprint(100*mib))
	var told uint64
	eventually(t, "critical reclaim in the container, again and again", func() bool {
		n, err := own.Take()
		if err != nil {
			t.Fatal(err)
		}
		told += n
		return told >= 3
	})
	stop()
	// The kernel tells those above right after the container.
	for _, s := range heard.sources {
		if c, ok := s.(*critical); ok {
			if _, raised := c.Ready(time.Now()); raised && c == l.groups[1].pressure {
				t.Error("an alarm of the pods; want none, as only the container is at its limit")
			}
		}
	}
}
