package lanes

import (
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

const zeroCounts = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n"

// v2Events opens an events lane on a v2 tree with two containers below kubepods.
func v2Events(t *testing.T) (l *eventsLane, tree string, waiter *fakeWaiter) {
	t.Helper()
	files := map[string]string{"cgroup.controllers": "cpu memory pids\n"}
	for _, dir := range []string{"kubepods/", "kubepods/a/", "kubepods/b/"} {
		for name, content := range map[string]string{
			"memory.stat": "anon 0\nfile 0\ninactive_file 0\nactive_file 0\n", "memory.current": "0\n", "memory.max": "max\n",
			"memory.events": zeroCounts, "memory.events.local": zeroCounts,
		} {
			files[dir+name] = content
		}
	}
	tree = kerneltest.Tree(t, files)
	h, err := cgroup.Find(kernel.FS(tree))
	if err != nil {
		t.Fatal(err)
	}
	waiter = &fakeWaiter{}
	l = &eventsLane{o: memory.Options{Hierarchy: h, CgroupRoot: "/"}, wait: waiter}
	l.wanted.Store(&map[string]bool{"/kubepods/a": true, "/kubepods/b": true})
	if err := l.open(time.Now(), &laneInput{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Errorf("close() = %v; want nil", err)
		}
	})
	return l, tree, waiter
}

// ready calls Ready of all sources and returns the alarms.
func (e *fakeWaiter) ready(now time.Time) (alarms []Alarm) {
	for _, s := range e.sources {
		if r, raised := s.Ready(now); raised {
			alarms = append(alarms, r)
		}
	}
	return alarms
}

// A container at its own limit is counted and raises no alarm, although memory.events of
// kubepods counts it too. Kubepods at its limit raises one.
func TestContainerLimitRaisesNoAlarm(t *testing.T) {
	l, tree, waiter := v2Events(t)
	if len(waiter.sources) != 3 {
		t.Fatalf("%d sources; want those of kubepods and of two containers", len(waiter.sources))
	}
	now := time.Now()
	atLimit := strings.Replace(zeroCounts, "max 0", "max 7", 1)
	kerneltest.Write(t, tree, map[string]string{"kubepods/memory.events": atLimit, "kubepods/a/memory.events.local": atLimit})
	if got := waiter.ready(now); len(got) != 0 {
		t.Errorf("alarms of a container at its limit: %+v; want none", got)
	}
	if err := l.reconcile(now, &laneInput{}); err != nil || l.totals.Max != 7 {
		t.Errorf("reconcile() = %v, %d times at a limit; want 7", err, l.totals.Max)
	}
	kerneltest.Write(t, tree, map[string]string{"kubepods/memory.events.local": atLimit})
	if got := waiter.ready(now); len(got) != 1 || got[0] != (Alarm{Lane: Events, Seen: now}) {
		t.Errorf("alarms of kubepods at its limit: %+v; want one", got)
	}
}

// The failure of one container, or of kubepods, is described and tried again. The other
// cgroups are still counted.
func TestEventsPartialFailure(t *testing.T) {
	l, tree, _ := v2Events(t)
	start := time.Now()
	kerneltest.Write(t, tree, map[string]string{
		"kubepods/memory.events.local":   "low\n",
		"kubepods/a/memory.events.local": "low\n",
		"kubepods/b/memory.events.local": strings.Replace(zeroCounts, "oom_kill 0", "oom_kill 2", 1),
	})
	reconcile := func(after time.Duration) {
		t.Helper()
		l.lastFullCheck = time.Time{}
		if err := l.reconcile(start.Add(after), &laneInput{}); err != nil {
			t.Errorf("reconcile() = %v; want nil", err)
		}
	}
	reconcile(0)
	if l.totals.OOMKills != 2 || !strings.Contains(l.partialFailure(), podsPart) {
		t.Errorf("%d kills, partial failure %q; want 2, and one about %s", l.totals.OOMKills, l.partialFailure(), podsPart)
	}
	kerneltest.Write(t, tree, map[string]string{"kubepods/memory.events.local": zeroCounts})
	reconcile(partialRetryInterval)
	if got := l.partialFailure(); l.pods == nil || !strings.Contains(got, "/kubepods/a") || strings.Contains(got, podsPart) {
		t.Errorf("partial failure %q; want one about /kubepods/a alone", got)
	}
	kerneltest.Write(t, tree, map[string]string{"kubepods/a/memory.events.local": zeroCounts})
	reconcile(2*partialRetryInterval - 1) // too early
	if l.partialFailure() == "" {
		t.Error("no partial failure; want the same until the next attempt")
	}
	reconcile(2 * partialRetryInterval)
	if got := l.partialFailure(); got != "" || len(l.containers) != 2 {
		t.Errorf("partial failure %q, %d containers; want none, and two", got, len(l.containers))
	}
}
