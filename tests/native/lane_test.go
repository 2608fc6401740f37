package native_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/tests/node"
)

// onlyLane returns settings with all lanes off except one with the mode, and polling, which can't be off.
func onlyLane(name, mode string) string {
	var modes []string
	for _, lane := range lanes.Names() {
		switch lane {
		case lanes.Polling:
		case name:
			modes = append(modes, lane+": "+mode)
		default:
			modes = append(modes, lane+": off")
		}
	}
	return "notification: {" + strings.Join(modes, ", ") + "}"
}

// laneIsUp waits until a lane is up. It skips the test if the lane is unavailable on this machine.
func (d *daemon) laneIsUp(name string) {
	d.t.Helper()
	unavailable := ""
	d.waitStatus(name+" lane up", func(s *control.Status) bool {
		for _, l := range s.Lanes {
			if l.Name == name && strings.HasPrefix(l.State, "unavailable") {
				unavailable = l.Why
			}
			if l.Name == name && l.Up {
				return true
			}
		}
		return unavailable != ""
	})
	if unavailable != "" {
		d.t.Skipf("needs the %s lane: %s", name, unavailable)
	}
}

// TestEachLaneKills: with only one lane, and polling at its long interval, that lane detects the crossing.
func TestEachLaneKills(t *testing.T) {
	n := startNode(t, gibibyte)
	for _, lane := range []string{lanes.BPF, lanes.Memcg} {
		t.Run(lane, func(t *testing.T) {
			bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(100 * mebibyte))}).waitUsage(100 * mebibyte)
			defer bystander.remove() // even if the lane is unavailable
			d := startDaemon(t, n, hardThreshold("512Mi")+"\n"+onlyLane(lane, "auto"), bystander)
			d.laneIsUp(lane)
			// Polling can't be off and may happen to read just after the crossing.
			const tries = 3
			var seen []string
			for i := range tries {
				hog := runPod(t, n, node.PodSpec{Name: fmt.Sprint("hog", i), Containers: oneContainer(growArgs(640 * mebibyte))})
				d.waitPods(2)
				hog.grow()
				hog.mustDie()
				rec := d.waitRecord(hog)
				checkKilled(t, &rec, hog)
				t.Logf("lane %s: signal %v after the last reading above, %v after the crossing was seen", rec.Lane,
					rec.SignalSent.Sub(rec.LastAbove), rec.SignalSent.Sub(rec.CrossingSeen))
				hog.remove()
				d.waitPods(1)
				if seen = append(seen, rec.Lane); rec.Lane == lane {
					break
				}
				if rec.Lane != lanes.Polling {
					t.Fatalf("raised by %s; want %s, or %s by chance", rec.Lane, lane, lanes.Polling)
				}
			}
			if seen[len(seen)-1] != lane {
				t.Errorf("raised by %v; want one by %s", seen, lane)
			}
			mustLive(t, bystander)
		})
	}
}

// TestRequiredLane: evictd exits with an error if a required lane is unavailable.
func TestRequiredLane(t *testing.T) {
	n := startNode(t, gibibyte)
	d := newDaemon(t, n, hardThreshold("512Mi")+"\n"+onlyLane(lanes.Events, "require"))
	if memoryMount(t) == "/sys/fs/cgroup" {
		d.configure(hardThreshold("512Mi") + "\n" + onlyLane(lanes.Memcg, "require"))
	}
	d.start()
	eventually(t, "exit of evictd", func() bool { return !d.running() })
	d.waitLog("is require, but the lane is not available")
	if d.code == 0 {
		t.Error("evictd exited with code 0; want an error")
	}
}

// TestKernelOOM: a process that the kernel's OOM killer kills at a container's own limit is not an eviction, but it is
// recorded and logged with its pod.
func TestKernelOOM(t *testing.T) {
	n := limitedNode(t, gibibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(100 * mebibyte))}).waitUsage(100 * mebibyte)
	limited := []node.ContainerSpec{{Args: growArgs(256 * mebibyte), MemoryLimit: 128 * mebibyte}}
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: limited})
	d := startDaemon(t, n, hardThreshold("256Mi"), bystander, hog)
	d.laneIsUp(lanes.Reclaim)
	hog.grow()
	s := d.waitStatus("record of the kernel's kill", func(s *control.Status) bool { return len(s.Records) > 0 })
	rec := s.Records[0]
	if rec.Pod != hog.key() || rec.UID != hog.UID || rec.Cause != evict.CauseKernelOOM || rec.Result != evict.ResultKernel || rec.Processes != 1 {
		t.Errorf("record %+v; want one process of %s, killed by the kernel", rec, hog.key())
	}
	d.waitLog("kernel OOM killer killed a process", "pod="+hog.key(), "command=hog")
	if s := d.waitReadings(2); len(s.Records) != 1 {
		t.Errorf("records %+v; want only the kernel's kill", s.Records)
	}
	mustLive(t, bystander)
}

// TestStallsEvict: tasks stall on memory although enough is available. evictd reports a condition and, with action:
// evict, evicts a pod.
func TestStallsEvict(t *testing.T) {
	n := startNode(t, gibibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(100 * mebibyte))}).waitUsage(100 * mebibyte)
	// The pod reads a file that is larger than its memory limit.
	thrashing := []node.ContainerSpec{{
		Args: []string{"file", "-path", "/thrash", "-bytes", fmt.Sprint(256 * mebibyte), "-passes", "1000000"}, MemoryLimit: 48 * mebibyte,
	}}
	thrasher := runPod(t, n, node.PodSpec{Name: "thrasher", Containers: thrashing})
	d := startDaemon(t, n, hardThreshold("64Mi")+"\nprotect: {names: [default/bystander]}\n"+
		"pressure: {memory: {full: 1ms/2s, sustained: 4s, action: evict}}", bystander, thrasher)
	d.laneIsUp(lanes.PSI)
	thrasher.mustDie()
	rec := d.waitRecord(thrasher)
	if rec.Cause != string(signal.SystemMemoryContentionPressure) || rec.Lane != lanes.PSI || !rec.Hard || rec.Result != evict.ResultKilled {
		t.Errorf("record %+v; want %s, by lane %s, killed", rec, signal.SystemMemoryContentionPressure, lanes.PSI)
	}
	if want := "The node was low on resource: memory. Tasks have stalled on it for "; !strings.HasPrefix(rec.Message, want) {
		t.Errorf("message %q; want prefix %q", rec.Message, want)
	}
	s := d.waitReadings(1)
	if !slices.Contains(s.Conditions, signal.SystemMemoryContentionPressure) {
		t.Errorf("conditions %v; want %s among them", s.Conditions, signal.SystemMemoryContentionPressure)
	}
	mustLive(t, bystander)
}
