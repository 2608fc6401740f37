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

const calmCounts = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n"

// v2Events is a v2 tree with two containers below kubepods, and a lane on it.
func v2Events(t *testing.T) (l *events, tree string, heard *ear) {
	t.Helper()
	files := map[string]string{"cgroup.controllers": "cpu memory pids\n"}
	for _, dir := range []string{"kubepods/", "kubepods/a/", "kubepods/b/"} {
		for name, content := range map[string]string{
			"memory.stat": "anon 0\nfile 0\ninactive_file 0\nactive_file 0\n", "memory.current": "0\n", "memory.max": "max\n",
			"memory.events": calmCounts, "memory.events.local": calmCounts,
		} {
			files[dir+name] = content
		}
	}
	tree = kerneltest.Tree(t, files)
	h, err := cgroup.Find(kernel.FS(tree))
	if err != nil {
		t.Fatal(err)
	}
	heard = &ear{}
	l = &events{o: memory.Options{Hierarchy: h, CgroupRoot: "/"}, wait: heard}
	l.wanted.Store(&map[string]bool{"/kubepods/a": true, "/kubepods/b": true})
	if err := l.open(time.Now(), &watched{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Errorf("close() = %v; want nil", err)
		}
	})
	return l, tree, heard
}

// ready asks all sources as the thread that waits does, and returns the alarms.
func (e *ear) ready(now time.Time) (alarms []Raise) {
	for _, s := range e.sources {
		if r, raised := s.Ready(now); raised {
			alarms = append(alarms, r)
		}
	}
	return alarms
}

// A container that meets its own limit, again and again, is a fact and no alarm,
// although memory.events of kubepods counts it, too. The pods' own limit is one.
func TestLimitOfAContainerIsNoAlarm(t *testing.T) {
	l, tree, heard := v2Events(t)
	if len(heard.sources) != 3 {
		t.Fatalf("%d sources; want those of kubepods and of two containers", len(heard.sources))
	}
	now := time.Now()
	atLimit := strings.Replace(calmCounts, "max 0", "max 7", 1)
	kerneltest.Write(t, tree, map[string]string{"kubepods/memory.events": atLimit, "kubepods/a/memory.events.local": atLimit})
	if got := heard.ready(now); len(got) != 0 {
		t.Errorf("alarms of a container at its limit: %+v; want none", got)
	}
	if err := l.tend(now, &watched{}); err != nil || l.totals.Max != 7 {
		t.Errorf("tend() = %v, %d times at a limit; want 7", err, l.totals.Max)
	}
	kerneltest.Write(t, tree, map[string]string{"kubepods/memory.events.local": atLimit})
	if got := heard.ready(now); len(got) != 1 || got[0] != (Raise{Lane: Events, Seen: now}) {
		t.Errorf("alarms of the pods at their limit: %+v; want one", got)
	}
}

// What is amiss with one container, or with kubepods, is said, and the others are
// counted all the same. It is tried again.
func TestEventsInTrouble(t *testing.T) {
	l, tree, _ := v2Events(t)
	start := time.Now()
	kerneltest.Write(t, tree, map[string]string{
		"kubepods/memory.events.local":   "low\n",
		"kubepods/a/memory.events.local": "low\n",
		"kubepods/b/memory.events.local": strings.Replace(calmCounts, "oom_kill 0", "oom_kill 2", 1),
	})
	turn := func(after time.Duration) {
		t.Helper()
		l.swept = time.Time{}
		if err := l.tend(start.Add(after), &watched{}); err != nil {
			t.Errorf("tend() = %v; want nil", err)
		}
	}
	turn(0)
	if l.totals.OOMKills != 2 || !strings.Contains(l.note(), ofPods) {
		t.Errorf("%d kills, note %q; want 2, and one about %s", l.totals.OOMKills, l.note(), ofPods)
	}
	kerneltest.Write(t, tree, map[string]string{"kubepods/memory.events.local": calmCounts})
	turn(troubleLasts)
	if note := l.note(); l.pods == nil || !strings.Contains(note, "/kubepods/a") || strings.Contains(note, ofPods) {
		t.Errorf("note %q; want one about /kubepods/a alone", note)
	}
	kerneltest.Write(t, tree, map[string]string{"kubepods/a/memory.events.local": calmCounts})
	turn(2*troubleLasts - 1) // too early
	if l.note() == "" {
		t.Error("no note; want the one there was, until it is tried again")
	}
	turn(2 * troubleLasts)
	if note := l.note(); note != "" || len(l.containers) != 2 {
		t.Errorf("note %q, %d containers; want none, and two", note, len(l.containers))
	}
}
