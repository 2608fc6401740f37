package native_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/tests/node"
)

// TestRuntimeRestart: without the runtime evictd kills by its last list of pods, and it reconnects when the runtime is
// back. The sandbox of a pod that was killed without the runtime is not checked: only the runtime could stop it.
func TestRuntimeRestart(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: oneContainer(holdArgs(32 * mebibyte))}).waitUsage(32 * mebibyte)
	first := runPod(t, n, node.PodSpec{Name: "first", Containers: oneContainer(growArgs(600 * mebibyte))})
	second := runPod(t, n, node.PodSpec{Name: "second", Containers: oneContainer(growArgs(600 * mebibyte))})
	d := startDaemon(t, n, hardThreshold("512Mi"), other, first, second)

	n.KillRuntime()
	d.waitStatus("lost runtime", func(s *control.Status) bool {
		return !s.Runtime.Connected && s.Runtime.Error != "" && s.Pods.Count == 3
	})
	first.grow()
	first.containersMustDie()
	d.waitReadings(3)
	mustLive(t, other, second)

	if err := n.RestartRuntime(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.waitStatus("reconnected runtime", func(s *control.Status) bool { return s.Runtime.Connected && s.Pods.Count == 2 })
	second.grow()
	second.mustDie()
	d.checkVictims(first, second)
	mustLive(t, other)
	rec := d.waitRecord(first)
	checkRecord(t, &rec, first)
	if rec.Result != evict.ResultKilled || rec.LastGone.IsZero() {
		t.Errorf("record of the pod that was killed without a runtime: result %s, last gone %v; want killed, a time", rec.Result, rec.LastGone)
	}
	rec = d.waitRecord(second)
	checkKilled(t, &rec, second)
}

// TestRuntimeAbsentAtStart: evictd waits for a runtime that does not run yet.
func TestRuntimeAbsentAtStart(t *testing.T) {
	n := startNode(t, gibibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(600 * mebibyte))})
	n.KillRuntime()
	d := newDaemon(t, n, hardThreshold("512Mi"))
	d.start()
	d.waitReadings(2)
	if s, _ := d.status(); s.Runtime.Connected || s.Runtime.Error == "" {
		t.Errorf("runtime = %+v; want it not connected, with an error", s.Runtime)
	}
	if err := n.RestartRuntime(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.waitPods(1)
	hog.grow()
	hog.mustDie()
	d.checkVictims(hog)
}

// TestKilledDuringGrace: evictd is killed during a victim's grace period. The next evictd restores the victim, chooses
// no second one for the same crossing, and finishes the eviction: the runtime has dropped the stop request.
func TestKilledDuringGrace(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: oneContainer(holdArgs(64 * mebibyte))}).waitUsage(64 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(560*mebibyte, "-ignore-term"))})
	grace := graceAtLeast(20 * time.Second)
	d := startDaemon(t, n, softSettings("1s", fmt.Sprintf("evictionMaxPodGracePeriod: %d", grace/time.Second)), other, hog)
	hog.grow()
	s := d.waitStatus("soft victim", func(s *control.Status) bool { return len(s.Victims) == 1 && s.Victims[0].Soft })
	due := s.Victims[0].Due
	d.waitState("victims")

	d.kill(syscall.SIGKILL)
	d.start()
	d.waitPods(2)
	s = d.waitReadings(2)
	if len(s.Records) != 1 || s.Records[0].UID != hog.UID || s.Records[0].Result != evict.ResultPending {
		t.Errorf("records after the restart = %+v; want only the hog's, pending", s.Records)
	}
	if len(s.Victims) != 1 || s.Victims[0].UID != hog.UID {
		t.Fatalf("victims after the restart = %+v; want the hog", s.Victims)
	}
	if moved := s.Victims[0].Due.Sub(due).Abs(); moved > 100*time.Millisecond {
		t.Errorf("the hog's deadline moved by %v in the restart; want no change", moved)
	}
	mustLive(t, other, hog)

	hog.mustDie()
	d.checkVictims(hog)
	mustLive(t, other)
	rec := d.waitRecord(hog)
	checkRecord(t, &rec, hog)
	if late := rec.LastGone.Sub(due); rec.Result != evict.ResultStopped || late < -time.Second || late > promptLimit {
		t.Errorf("record of the hog: result %s, last exit %v after its deadline; want stopped, about 0", rec.Result, late)
	}
}

// TestKilledAfterKill: evictd is killed right after it has killed a pod. The next evictd evicts no second pod for the
// same crossing, and has the record.
func TestKilledAfterKill(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: oneContainer(holdArgs(64 * mebibyte))}).waitUsage(64 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(560 * mebibyte))})
	d := startDaemon(t, n, hardThreshold("512Mi"), other, hog)
	hog.grow()
	d.waitState(hog.UID)
	d.kill(syscall.SIGKILL)
	hog.containersMustDie()
	d.start()
	d.waitReadings(3)
	d.checkVictims(hog)
	// The result is unknown if the runtime no longer lists the container when evictd starts.
	if rec := d.waitRecord(hog); rec.Result != evict.ResultKilled && rec.Result != evict.ResultUnknown {
		t.Errorf("record of the hog: result %s; want killed or unknown", rec.Result)
	}
	mustLive(t, other)
}

// TestGraceOverRestart: a soft threshold's grace period continues over a restart of evictd.
func TestGraceOverRestart(t *testing.T) {
	n := startNode(t, gibibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(560 * mebibyte))})
	grace := graceAtLeast(6 * time.Second)
	d := startDaemon(t, n, softSettings(grace.String(), "evictionMaxPodGracePeriod: 20"), hog)
	hog.grow()
	s := d.waitStatus("met soft threshold", func(s *control.Status) bool { return softThreshold(t, s).Met })
	since := softThreshold(t, &s).Since
	d.waitState("timers")
	d.kill(syscall.SIGKILL)
	d.start()
	s = d.waitStatus("met soft threshold", func(s *control.Status) bool { return softThreshold(t, s).Met })
	if moved := softThreshold(t, &s).Since.Sub(since).Abs(); moved > 100*time.Millisecond {
		t.Errorf("the time since which the threshold is met moved by %v in the restart; want no change", moved)
	}
	hog.mustDie()
	d.checkVictims(hog)
	rec := d.waitRecord(hog)
	if waited := rec.Decided.Sub(since); waited < grace || waited > grace+promptLimit {
		t.Errorf("the hog was evicted %v after the crossing; want %v", waited, grace)
	}
}
