package native_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/tests/node"
)

// The tests of this file write alarms into the ring buffer of a running evictd, with its own BPF program inject.

// TestAlarmWithoutCause: an alarm without a crossing evicts no pod, whether memory is far from the threshold or close
// to it. Neither does a malformed record.
func TestAlarmWithoutCause(t *testing.T) {
	n := startNode(t, gibibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(500 * mebibyte))}).waitUsage(500 * mebibyte)
	d := startDaemon(t, n, hardThreshold("100Mi"), bystander)
	d.laneIsUp(lanes.BPF)
	for _, threshold := range []string{
		"100Mi",
		"500Mi", // of 1024 MiB, of which a little more than 500 are in use
	} {
		d.configure(hardThreshold(threshold))
		if s := d.reload(); s.Config.LastReloadError != "" {
			t.Fatalf("reload error = %q; want none", s.Config.LastReloadError)
		}
		s := d.sampler()
		before := d.lane(lanes.BPF).Raised
		const alarms = 100
		for i := range alarms {
			if !s.write(bpf.KindCrossing, podsThresholdID) {
				t.Fatalf("the ring is full after %d records; want room for more than %d", i, alarms)
			}
		}
		d.waitStatus("end of the alarms", func(s *control.Status) bool { return alarmsOf(s, lanes.BPF) >= before+alarms })
		if got := d.lane(lanes.BPF).Raised - before; got != alarms {
			t.Errorf("threshold %s: %d alarms raised; want %d, one per record", threshold, got, alarms)
		}
		if s := d.waitReadings(3); len(s.Records) > 0 {
			t.Errorf("threshold %s: records %+v; want none", threshold, s.Records)
		}
		mustLive(t, bystander)
	}
	s := d.sampler()
	for _, kind := range []bpf.Kind{0, bpf.KindPodsRemoved, 99, 1 << 31} {
		s.write(kind, podsThresholdID)
	}
	for _, id := range []signal.ThresholdID{0, signal.ThresholdID(signal.ThresholdIDCount) - 1, signal.ThresholdID(signal.ThresholdIDCount), 255} {
		s.write(bpf.KindCrossing, id)
	}
	if s := d.waitReadings(3); len(s.Records) > 0 {
		t.Errorf("records %+v; want none", s.Records)
	}
	mustLive(t, bystander)

	// The lane still works.
	d.laneIsUp(lanes.BPF)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(400 * mebibyte))})
	bystander.remove()
	d.configure(hardThreshold("700Mi"))
	d.reload()
	d.waitPods(1)
	hog.grow()
	hog.mustDie()
	d.checkVictims(hog)
}

// alarmsOf returns the number of alarms that a lane has raised.
func alarmsOf(s *control.Status, lane string) uint64 {
	for _, l := range s.Lanes {
		if l.Name == lane {
			return l.Raised
		}
	}
	return 0
}

// TestLanesDisagree: all lanes raise an alarm at a crossing, and one lane raises further alarms without a crossing
// before, during and after the kill. Exactly one pod is killed.
func TestLanesDisagree(t *testing.T) {
	n := startNode(t, gibibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(250 * mebibyte))}).waitUsage(250 * mebibyte)
	d := startDaemon(t, n, hardThreshold("400Mi"), bystander)
	d.laneIsUp(lanes.BPF)
	s := d.sampler()
	for _, name := range []string{"first", "second"} {
		hog := runPod(t, n, node.PodSpec{Name: name, Containers: oneContainer(growArgs(700 * mebibyte))})
		d.waitPods(2)
		hog.grow()
		written := 0
		for end := time.Now().Add(waitTimeout); hog.containersLive() && time.Now().Before(end); written++ {
			s.write(bpf.KindCrossing, podsThresholdID)
			s.write(bpf.KindCrossing, signal.IDOf(&signal.Threshold{Signal: signal.MemoryAvailable}))
		}
		hog.mustDie()
		for range 20 {
			s.write(bpf.KindCrossing, podsThresholdID)
		}
		rec := d.waitRecord(hog)
		checkKilled(t, &rec, hog)
		t.Logf("%d false alarms until the kill: raised by %s, %s", 2*written, rec.Lane, rec.Confirm)
		mustLive(t, bystander)
		hog.remove()
		d.waitPods(1)
	}
	if s := d.waitReadings(3); len(s.Records) != 2 {
		t.Errorf("%d records; want 2", len(s.Records))
	}
	mustLive(t, bystander)
}

// TestRingOverrun: evictd is stopped and its ring buffer is full, so that the record of the crossing is dropped. When
// evictd continues, it kills the hog and no other pod.
func TestRingOverrun(t *testing.T) {
	n := startNode(t, gibibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(200 * mebibyte))}).waitUsage(200 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(500 * mebibyte))})
	d := startDaemon(t, n, hardThreshold("400Mi"), bystander, hog)
	d.laneIsUp(lanes.BPF)
	s := d.sampler()
	if err := d.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	d.waitStopped()
	filled := 0
	for s.write(bpf.KindCrossing, podsThresholdID) {
		if filled++; filled > 1<<16 {
			t.Fatalf("the ring of a stopped evictd took %d records; want it full", filled)
		}
	}
	hog.grow()
	hog.waitUsage(500 * mebibyte)
	if s.write(bpf.KindCrossing, podsThresholdID) {
		t.Error("the ring of a stopped evictd has room again")
	}
	mustLive(t, bystander, hog)
	if err := d.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	hog.mustDie()
	d.checkVictims(hog)
	mustLive(t, bystander)
	t.Logf("the ring took %d records", filled)

	// evictd reads the ring again.
	d.laneIsUp(lanes.BPF)
	s = d.sampler()
	before := d.lane(lanes.BPF).Raised
	if !s.write(bpf.KindCrossing, podsThresholdID) {
		t.Fatal("the ring is full; want it drained by evictd")
	}
	d.waitStatus("alarm after the overrun", func(s *control.Status) bool { return alarmsOf(s, lanes.BPF) > before })
	if s := d.waitReadings(3); len(s.Records) != 1 {
		t.Errorf("records %+v; want only the hog's", s.Records)
	}
	mustLive(t, bystander)
}
