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

// onlyLane switches all lanes off but one, and polling, which can't be.
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

// laneIsUp waits until a lane is up, and skips the test where it can't be had here.
func (d *daemon) laneIsUp(name string) {
	d.t.Helper()
	unavailable := ""
	d.until(name+" lane up", func(s *control.Status) bool {
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

// TestEachLaneKills: with one lane alone, and polling at ease, it is that lane that learns of a hog.
func TestEachLaneKills(t *testing.T) {
	n := startNode(t, gibibyte)
	for _, lane := range []string{lanes.BPF, lanes.Memcg} {
		t.Run(lane, func(t *testing.T) {
			calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(100 * mebibyte))}).uses(100 * mebibyte)
			defer calm.remove() // also where the lane can't be had
			d := startDaemon(t, n, below("512Mi")+"\n"+onlyLane(lane, "auto"), calm)
			d.laneIsUp(lane)
			// Polling, which goes on, may happen to look just after the crossing.
			const tries = 3
			var seen []string
			for i := range tries {
				hog := runPod(t, n, node.PodSpec{Name: fmt.Sprint("hog", i), Containers: one(growing(640 * mebibyte))})
				d.knows(2)
				hog.press()
				hog.mustDie()
				rec := d.ended(hog)
				killed(t, &rec, hog)
				t.Logf("lane %s: signal %v after the last reading above, %v after the crossing was seen", rec.Lane,
					rec.SignalSent.Sub(rec.LastAbove), rec.SignalSent.Sub(rec.CrossingSeen))
				hog.remove()
				d.knows(1)
				if seen = append(seen, rec.Lane); rec.Lane == lane {
					break
				}
				if rec.Lane != lanes.Polling {
					t.Fatalf("raised by %s; want %s, or by chance %s", rec.Lane, lane, lanes.Polling)
				}
			}
			if seen[len(seen)-1] != lane {
				t.Errorf("raised by %v; want one by %s", seen, lane)
			}
			mustLive(t, calm)
		})
	}
}

// TestRequiredLane: evictd does not start without a lane that is required, and says why.
func TestRequiredLane(t *testing.T) {
	n := startNode(t, gibibyte)
	d := newDaemon(t, n, below("512Mi")+"\n"+onlyLane(lanes.Events, "require"))
	if memoryMount(t) == "/sys/fs/cgroup" {
		d.configure(below("512Mi") + "\n" + onlyLane(lanes.Memcg, "require"))
	}
	d.start()
	eventually(t, "end of evictd", func() bool { return !d.running() })
	d.logged("is require, but the lane is not available")
	if d.code == 0 {
		t.Error("evictd ended with code 0; want another")
	}
}

// TestKernelOOM: what the kernel's OOM killer takes at a container's own limit is no eviction, and is told all the
// same: which pod and which process.
func TestKernelOOM(t *testing.T) {
	n := limitedNode(t, gibibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(100 * mebibyte))}).uses(100 * mebibyte)
	limited := []node.ContainerSpec{{Args: growing(256 * mebibyte), MemoryLimit: 128 * mebibyte}}
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: limited})
	d := startDaemon(t, n, below("256Mi"), calm, hog)
	d.laneIsUp(lanes.Reclaim)
	hog.press()
	s := d.until("record of the kernel's kill", func(s *control.Status) bool { return len(s.Records) > 0 })
	rec := s.Records[0]
	if rec.Pod != hog.key() || rec.UID != hog.UID || rec.Cause != evict.CauseKernelOOM || rec.Result != evict.ResultKernel || rec.Processes != 1 {
		t.Errorf("record %+v; want one process of %s that the kernel took", rec, hog.key())
	}
	d.logged("kernel OOM killer killed a process", "pod="+hog.key(), "command=hog")
	if s := d.looks(2); len(s.Records) != 1 {
		t.Errorf("records %+v; want the kernel's kill alone", s.Records)
	}
	mustLive(t, calm)
}

// TestStallsEvict: tasks that wait for memory again and again press on a node where plenty is available. It is told as
// a condition and, where that is asked for, a pod goes for it.
func TestStallsEvict(t *testing.T) {
	n := startNode(t, gibibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(100 * mebibyte))}).uses(100 * mebibyte)
	// It reads a file that its limit leaves no room for.
	thrashing := []node.ContainerSpec{{
		Args: []string{"file", "-path", "/thrash", "-bytes", fmt.Sprint(256 * mebibyte), "-passes", "1000000"}, MemoryLimit: 48 * mebibyte,
	}}
	thrasher := runPod(t, n, node.PodSpec{Name: "thrasher", Containers: thrashing})
	d := startDaemon(t, n, below("64Mi")+"\nprotect: {names: [default/calm]}\n"+
		"pressure: {memory: {full: 1ms/2s, sustained: 4s, action: evict}}", calm, thrasher)
	d.laneIsUp(lanes.PSI)
	thrasher.mustDie()
	rec := d.ended(thrasher)
	if rec.Cause != string(signal.SystemMemoryContentionPressure) || rec.Lane != lanes.PSI || !rec.Hard || rec.Result != evict.ResultKilled {
		t.Errorf("record %+v; want %s, by lane %s, killed", rec, signal.SystemMemoryContentionPressure, lanes.PSI)
	}
	if want := "The node was low on resource: memory. Tasks have stalled on it for "; !strings.HasPrefix(rec.Message, want) {
		t.Errorf("message %q; want %q and so on", rec.Message, want)
	}
	s := d.looks(1)
	if !slices.Contains(s.Conditions, signal.SystemMemoryContentionPressure) {
		t.Errorf("conditions %v; want %s among them", s.Conditions, signal.SystemMemoryContentionPressure)
	}
	mustLive(t, calm)
}
