package native_test

import (
	"slices"
	"testing"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/pids"
	"github.com/evictd/evictd/tests/node"
)

// TestForkBombThatIsNew: the bomb that has come since the last list is not in the ranking: nobody else dies in its place.
func TestForkBombThatIsNew(t *testing.T) {
	n := startNodeWith(t, node.Options{MemoryLimit: 2 * gibibyte, PIDLimit: 4000})
	kernelKillsNobody(t, n)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: []node.ContainerSpec{{}}})
	d := startDaemon(t, n, "evictionHard: {pid.available: 3000}", calm)
	d.until("reading of pid.available", func(s *control.Status) bool { return s.Signals[signal.PIDAvailable].Capacity != nil })
	hog := runPod(t, n, node.PodSpec{Name: "hog", PIDLimit: 2000, Containers: one([]string{"bomb", "-forks", "-bytes", "4096"})})
	hog.mustDie()
	d.victims(hog)
	mustLive(t, calm)
}

// TestForkBombTakesPIDs: a bomb that would take all the pids that pods may have is ended, and evictd and the others go
// on. How many pids are left by then depends on what else the machine does.
func TestForkBombTakesPIDs(t *testing.T) {
	const most, threshold = 2000, 1000
	n := startNodeWith(t, node.Options{MemoryLimit: 2 * gibibyte, PIDLimit: most})
	kernelKillsNobody(t, n)
	h, err := cgroup.Find(kernel.FS("/sys/fs/cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	tree := h.Memory
	if h.Version != cgroup.V2 {
		tree = h.Pids
	}
	if tree == "" {
		t.Skip("needs the pids controller")
	}
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: []node.ContainerSpec{{}}})
	hog := runPod(t, n, node.PodSpec{Name: "hog", PIDLimit: 10_000, Containers: one([]string{"bomb", "-forks", "-delay", "1h", "-bytes", "4096"})})
	d := startDaemon(t, n, "evictionHard: {pid.available: 1000}", calm, hog)
	if o := d.until("reading of pid.available", func(s *control.Status) bool { return s.Signals[signal.PIDAvailable].Capacity != nil }).Signals[signal.PIDAvailable]; *o.Capacity != most {
		t.Errorf("pid.available is of %d; want the pods' limit of %d", *o.Capacity, most)
	}
	d.laneIsUp(lanes.Forks)
	hog.press()
	hog.mustDie()
	rec := d.ended(hog)
	d.until("alarm of the lane", func(s *control.Status) bool {
		return slices.ContainsFunc(s.Lanes, func(l control.Lane) bool { return l.Name == lanes.Forks && l.Raised > 0 })
	})
	if rec.Cause != "pid.available" || rec.Result != evict.ResultKilled || rec.Available >= threshold {
		t.Errorf("record %+v; want the hog killed for pid.available", rec)
	}
	t.Logf("%d pids were left when it was decided, %d processes were killed, the last gone %v after the signal, crossing to signal %v",
		rec.Available, rec.Processes, rec.LastGone.Sub(rec.SignalSent), rec.SignalSent.Sub(rec.CrossingSeen))
	if c, err := pids.ReadCgroup(tree, n.Kubepods()); err != nil || c.Tasks > 200 {
		t.Errorf("%+v tasks are left, %v", c, err)
	}
	mustLive(t, calm)
	if s := d.looks(2); len(s.Records) != 1 {
		t.Errorf("records %+v; want the hog's alone", s.Records)
	}
}
