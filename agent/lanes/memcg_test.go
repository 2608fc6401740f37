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

// The armed usage is the capacity less the threshold, plus the inactive file cache, plus the
// active one if CountCache is set.
func TestUsageThreshold(t *testing.T) {
	used := &cgroup.Memory{Usage: 5 * gib, InactiveFile: gib, ActiveFile: gib / 2}
	for _, tc := range []struct {
		name       string
		level      memoryThreshold
		countCache bool
		want       uint64
	}{
		{"as the kubelet counts", memoryThreshold{capacity: 8 * gib, available: gib}, false, 8 * gib},
		{"active cache is available", memoryThreshold{capacity: 8 * gib, available: gib}, true, 8*gib + gib/2},
		{"more than there is", memoryThreshold{capacity: gib, available: 2 * gib}, false, gib},
	} {
		l := &memcgLane{o: memory.Options{CountCache: tc.countCache}}
		if got := l.threshold(tc.level, used); got != tc.want {
			t.Errorf("%s: threshold = %d; want %d", tc.name, got, tc.want)
		}
	}
}

func TestMustMove(t *testing.T) {
	for _, tc := range []struct {
		name      string
		at        uint64 // where it is armed now
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
		{"fired at the right usage", 1000 * mib, 1000 * mib, 990 * mib, true, false},
		{"fired, and crossed", 1000 * mib, 1001 * mib, 1100 * mib, true, false},
	} {
		if got := mustMove(tc.at, tc.to, tc.usage, tc.fired); got != tc.want {
			t.Errorf("%s: mustMove(%d, %d, %d, %t) = %t; want %t", tc.name, tc.at/mib, tc.to/mib, tc.usage/mib, tc.fired, got, tc.want)
		}
	}
}

// The error of a lane that is not available is permanent, and close closes what was opened.
func TestUnavailableLane(t *testing.T) {
	s := &eventsLane{o: memory.Options{Hierarchy: &cgroup.Hierarchy{Version: cgroup.V1}}}
	err := s.open(time.Now(), &laneInput{})
	if !permanent(err) || s.close() != nil {
		t.Errorf("open() on v1 = %v; want a permanent error", err)
	}
	if permanent(errors.New("busy")) || permanent(context.Canceled) {
		t.Error("permanent() of a temporary error = true; want false")
	}
}

// The alarm of a threshold that was armed too low does not count: if the usage is above the
// new position when it is moved, an alarm is raised.
func TestEarlyAlarm(t *testing.T) {
	l, waiter, dir := openMemcg(t)
	at := func(available int64) memoryThreshold {
		return memoryThreshold{id: pods, capacity: 512 * mib, available: available}
	}
	now := time.Now()
	armAt := func(th memoryThreshold) {
		t.Helper()
		if err := l.followPods(); err != nil {
			t.Fatal(err)
		}
		if err := l.arm(&l.pods, []memoryThreshold{th}, now); err != nil {
			t.Fatal(err)
		}
	}
	armAt(at(412 * mib)) // at a usage of 100 MiB
	hog(t, dir, 300*mib)
	eventually(t, "a usage above both", func() bool {
		used, err := l.pods.cgroup.Memory()
		return err == nil && used.Usage > 300*mib
	})
	fired := func() *armedThreshold {
		a := l.pods.armed[0]
		if _, raised := a.Ready(now); !raised {
			t.Fatal("Ready() raised nothing; want an alarm at the lower position")
		}
		return a
	}
	fired()
	armAt(at(256 * mib)) // the right position
	if got := waiter.alarms(); len(got) != 1 || got[0].Threshold != pods {
		t.Fatalf("alarms %+v; want one, as the usage is above", got)
	}
	// After a move down, the earlier alarm still counts.
	armAt(at(300 * mib))
	armAt(at(340 * mib))
	if got := waiter.alarms(); len(got) != 1 {
		t.Errorf("alarms %+v; want only the first", got)
	}
}

// While a hard threshold is crossed, growth that answers the crossing raises an alarm.
// Nothing is armed for that while none is crossed.
func TestGrowthIsArmed(t *testing.T) {
	l, _, dir := openMemcg(t)
	th := memoryThreshold{id: pods, capacity: 512 * mib, available: 412 * mib} // crossed by 100 MiB
	arm := func() *armedCgroup {
		t.Helper()
		if err := l.followPods(); err != nil {
			t.Fatal(err)
		}
		g := &l.pods
		if err := l.arm(g, []memoryThreshold{th}, time.Now()); err != nil {
			t.Fatal(err)
		}
		return g
	}
	if g := arm(); len(g.growth) != 0 {
		t.Fatalf("%d growth thresholds armed without a crossing; want none", len(g.growth))
	}
	uses := func(bytes uint64) {
		t.Helper()
		eventually(t, "usage", func() bool {
			used, err := l.pods.cgroup.Memory()
			return err == nil && used.Usage > bytes
		})
	}
	stop := hog(t, dir, 150*mib)
	uses(150 * mib)
	g := arm()
	if len(g.growth) != 1 || g.growth[0].id != pods {
		t.Fatalf("growth thresholds = %+v; want one of the crossed threshold", g.growth)
	}
	if _, raised := g.growth[0].Ready(time.Now()); raised {
		t.Error("Ready() raised before the usage grew")
	}
	first := g.growth[0]
	hog(t, dir, 8*mib)
	uses(158 * mib)
	if g := arm(); len(g.growth) != 1 || g.growth[0] != first {
		t.Error("the growth threshold moved with the usage; want it to stay, or slow growth never raises an alarm")
	}
	hog(t, dir, 64*mib)
	uses(214 * mib)
	if r, raised := g.growth[0].Ready(time.Now()); !raised || r.Threshold != pods || r.Lane != Memcg {
		t.Errorf("Ready() = %+v, %t after a growth of 64 MiB; want an alarm of the threshold", r, raised)
	}
	stop()
	eventually(t, "less in use", func() bool {
		used, err := g.cgroup.Memory()
		return err == nil && used.Usage < 100*mib
	})
	if g := arm(); len(g.growth) != 0 {
		t.Errorf("%d growth thresholds armed after the crossing; want none", len(g.growth))
	}
}

// The alarm of an earlier crossing does not count for a later one that file cache brings.
func TestAlarmOfEarlierCrossing(t *testing.T) {
	l, waiter, dir := openMemcg(t)
	at := func(available int64) memoryThreshold {
		return memoryThreshold{id: pods, capacity: 512 * mib, available: available}
	}
	now := time.Now()
	armAt := func(th memoryThreshold) {
		t.Helper()
		if err := l.arm(&l.pods, []memoryThreshold{th}, now); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.followPods(); err != nil {
		t.Fatal(err)
	}
	used := func() uint64 {
		used, err := l.pods.cgroup.Memory()
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
	if _, raised := l.pods.armed[0].Ready(now); !raised {
		t.Fatal("Ready() raised nothing; want an alarm")
	}
	stop()
	eventually(t, "memory back", func() bool { return used() < 150*mib })
	l.pods.armed[0].Ready(now) // the kernel notifies of the way down too
	armAt(at(312 * mib))
	armAt(at(462 * mib)) // as if file cache shrank from 200 MiB to 50 MiB
	if got := waiter.alarms(); len(got) != 1 {
		t.Errorf("alarms %+v; want one, for the later crossing", got)
	}
}

// openMemcg opens a memcg lane that only the test reconciles, with a new kubepods.
func openMemcg(t *testing.T) (*memcgLane, *fakeWaiter, string) {
	t.Helper()
	h, root := kubepods(t, 512*mib)
	if h.Version == cgroup.V2 {
		t.Skip("needs memory in a v1 tree")
	}
	waiter := &fakeWaiter{}
	l := &memcgLane{o: memory.Options{Hierarchy: h, CgroupRoot: root}, wait: waiter}
	if err := l.open(time.Now(), &laneInput{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Errorf("close() = %v; want nil", err)
		}
	})
	return l, waiter, h.Memory.Path(root, "kubepods")
}

// podsRefuser is a Waiter that refuses sources of kubepods.
type podsRefuser struct{ *fakeWaiter }

func (d podsRefuser) Add(s Source) error {
	if a, ok := s.(*armedThreshold); ok && a.id == pods {
		return errors.New("no room")
	}
	return d.fakeWaiter.Add(s)
}

// A failure of kubepods leaves the thresholds of the node armed, and is tried again.
func TestMemcgPartialFailure(t *testing.T) {
	l, waiter, _ := openMemcg(t)
	start := time.Now()
	in := &laneInput{thresholds: append(thresholds(t, map[string]time.Duration{"1Mi": 0}), thresholds(t, map[string]time.Duration{"256Mi": 0})...)}
	in.thresholds[1].Signal = signal.AllocatableMemoryAvailable
	in.observed[signal.MemoryAvailable] = signal.Observation{Status: signal.Observed, Capacity: 1 << 40, Available: 1 << 39}
	in.observed[signal.AllocatableMemoryAvailable] = signal.Observation{Status: signal.Observed, Capacity: 512 * mib, Available: 500 * mib}
	l.wait = podsRefuser{waiter}
	if err := l.reconcile(start, in); err != nil {
		t.Fatalf("reconcile() = %v; want nil", err)
	}
	_, ofNode := l.covers(node)
	if _, ok := l.covers(pods); !ofNode || ok || !strings.Contains(l.partialFailure(), "no room") {
		t.Errorf("covers the node %t, kubepods %t, partial failure %q; want the node alone, and the reason", ofNode, ok, l.partialFailure())
	}
	l.wait = waiter
	if err := l.reconcile(start.Add(partialRetryInterval), in); err != nil {
		t.Fatalf("reconcile() = %v; want nil", err)
	}
	if _, ok := l.covers(pods); !ok || l.partialFailure() != "" {
		t.Errorf("covers kubepods %t, partial failure %q; want true, none", ok, l.partialFailure())
	}
}

// While idle, armed thresholds are not moved unless one is missing or broken.
func TestMemcgIdle(t *testing.T) {
	l, _, dir := openMemcg(t)
	in := &laneInput{thresholds: thresholds(t, map[string]time.Duration{"256Mi": 0})}
	in.thresholds[0].Signal = signal.AllocatableMemoryAvailable
	observe := func(capacity int64) {
		in.observed[signal.AllocatableMemoryAvailable] = signal.Observation{Status: signal.Observed, Capacity: capacity, Available: capacity}
	}
	reconcile := func(idle bool) *armedThreshold {
		t.Helper()
		in.idle = idle
		if err := l.reconcile(time.Now(), in); err != nil {
			t.Fatalf("reconcile() = %v; want nil", err)
		}
		if len(l.pods.armed) != 1 {
			return nil
		}
		return l.pods.armed[0]
	}
	observe(512 * mib)
	first := reconcile(true) // nothing was armed yet
	if first == nil {
		t.Fatal("nothing armed while idle; want the missing threshold")
	}
	observe(1024 * mib)
	if got := reconcile(true); got != first {
		t.Errorf("armed at %d while idle; want it left at %d", got.Bytes(), first.Bytes())
	}
	moved := reconcile(false)
	if moved == first || moved.Bytes() != 768*mib {
		t.Errorf("armed at %d; want it moved to %d", moved.Bytes(), 768*mib)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if got := reconcile(true); got != nil {
		t.Errorf("armed at %d of a removed cgroup; want nothing", got.Bytes())
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	again := reconcile(true)
	if again == nil {
		t.Fatal("nothing armed on the new cgroup; want the threshold")
	}
	again.broken.Store(true)
	in.idle = true
	if err := l.reconcile(time.Now(), in); err != nil || !strings.Contains(l.partialFailure(), "can't be read") {
		t.Errorf("reconcile() with a broken eventfd = %v, partial failure %q; want the reason", err, l.partialFailure())
	}
}

// Critical reclaim for the limit of a container raises no alarm of kubepods.
func TestContainerReclaimRaisesNoAlarm(t *testing.T) {
	l, waiter, dir := openMemcg(t)
	in := &laneInput{}
	if err := l.reconcile(time.Now(), in); err != nil {
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
	var notified uint64
	eventually(t, "three notifications of critical reclaim in the container", func() bool {
		n, err := own.Drain()
		if err != nil {
			t.Fatal(err)
		}
		notified += n
		return notified >= 3
	})
	stop()
	// The kernel notifies ancestors directly after the container.
	for _, s := range waiter.sources {
		if c, ok := s.(*pressureNotice); ok {
			if _, raised := c.Ready(time.Now()); raised && c == l.pods.pressure {
				t.Error("an alarm of kubepods; want none, as only the container is at its limit")
			}
		}
	}
}
