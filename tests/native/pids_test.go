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

// TestUnlistedForkBomb: a fork bomb in a pod that is not listed yet is killed, and no other pod instead of it.
func TestUnlistedForkBomb(t *testing.T) {
	n := startNodeWith(t, node.Options{MemoryLimit: 2 * gibibyte, PIDLimit: 4000})
	failOnKernelOOM(t, n)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: []node.ContainerSpec{{}}})
	d := startDaemon(t, n, "evictionHard: {pid.available: 3000}", bystander)
	d.waitStatus("reading of pid.available", func(s *control.Status) bool { return s.Signals[signal.PIDAvailable].Capacity != nil })
	hog := runPod(t, n, node.PodSpec{Name: "hog", PIDLimit: 2000, Containers: oneContainer([]string{"bomb", "-forks", "-bytes", "4096"})})
	hog.mustDie()
	d.checkVictims(hog)
	mustLive(t, bystander)
}

// TestForkBombTakesPIDs: a fork bomb that would use all PIDs of the pods is killed; evictd and the other pods go on.
// How many PIDs are left at the decision depends on the load of the machine.
func TestForkBombTakesPIDs(t *testing.T) {
	const most, threshold = 2000, 1000
	n := startNodeWith(t, node.Options{MemoryLimit: 2 * gibibyte, PIDLimit: most})
	failOnKernelOOM(t, n)
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
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: []node.ContainerSpec{{}}})
	hog := runPod(t, n, node.PodSpec{Name: "hog", PIDLimit: 10_000, Containers: oneContainer([]string{"bomb", "-forks", "-delay", "1h", "-bytes", "4096"})})
	d := startDaemon(t, n, "evictionHard: {pid.available: 1000}", bystander, hog)
	if o := d.waitStatus("reading of pid.available", func(s *control.Status) bool { return s.Signals[signal.PIDAvailable].Capacity != nil }).Signals[signal.PIDAvailable]; *o.Capacity != most {
		t.Errorf("capacity of pid.available = %d; want the pods' limit of %d", *o.Capacity, most)
	}
	d.laneIsUp(lanes.Forks)
	hog.grow()
	hog.mustDie()
	rec := d.waitRecord(hog)
	d.waitStatus("alarm of the lane", func(s *control.Status) bool {
		return slices.ContainsFunc(s.Lanes, func(l control.Lane) bool { return l.Name == lanes.Forks && l.Raised > 0 })
	})
	if rec.Cause != "pid.available" || rec.Result != evict.ResultKilled || rec.Available >= threshold {
		t.Errorf("record %+v; want the hog killed for pid.available", rec)
	}
	t.Logf("%d PIDs left at the decision, %d processes killed, the last exited %v after the signal, crossing to signal %v",
		rec.Available, rec.Processes, rec.LastGone.Sub(rec.SignalSent), rec.SignalSent.Sub(rec.CrossingSeen))
	// A process counts until its parent has waited for it, which is after its cgroup is empty.
	eventually(t, "release of the PIDs", func() bool {
		c, err := pids.ReadCgroup(tree, n.Kubepods())
		return err == nil && c.Tasks <= 200
	})
	mustLive(t, bystander)
	if s := d.waitReadings(2); len(s.Records) != 1 {
		t.Errorf("records %+v; want only the hog's", s.Records)
	}
}
