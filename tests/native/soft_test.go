package native_test

import (
	"testing"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/tests/node"
)

// softSettings returns settings with the soft threshold allocatableMemory.available<512Mi and its grace period.
func softSettings(grace, more string) string {
	return "evictionHard: {allocatableMemory.available: 200Mi}\n" +
		"evictionSoft: {allocatableMemory.available: 512Mi}\n" +
		"evictionSoftGracePeriod: {allocatableMemory.available: " + grace + "}\n" + more
}

// graceAtLeast returns a grace period that is long enough for the steps of a test on a slow machine.
func graceAtLeast(grace time.Duration) time.Duration {
	return max(grace, node.ScaleTimeout(2*time.Second))
}

// softThreshold returns the status of the soft threshold.
func softThreshold(t *testing.T, s *control.Status) control.ThresholdStatus {
	t.Helper()
	for _, th := range s.Signals[signal.AllocatableMemoryAvailable].Thresholds {
		if th.Soft {
			return th
		}
	}
	t.Fatal("the status has no soft threshold")
	return control.ThresholdStatus{}
}

// TestSoftEviction: after the grace period of a soft threshold, the victim is stopped with SIGTERM.
func TestSoftEviction(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: oneContainer(holdArgs(32 * mebibyte))}).waitUsage(32 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(600 * mebibyte))})
	d := startDaemon(t, n, softSettings("2s", "evictionMaxPodGracePeriod: 20"), other, hog)
	hog.grow()
	s := d.waitStatus("met soft threshold", func(s *control.Status) bool { return softThreshold(t, s).Met })
	since := softThreshold(t, &s).Since
	hog.mustDie()
	d.checkVictims(hog)
	mustLive(t, other)
	rec := d.waitRecord(hog)
	checkRecord(t, &rec, hog)
	if waited := rec.Decided.Sub(since); waited < 2*time.Second || waited > 2*time.Second+promptLimit {
		t.Errorf("the hog was evicted %v after the crossing; want 2s", waited)
	}
	if rec.Hard || rec.Result != evict.ResultStopped || !rec.Escalated.IsZero() || !noErrors(&rec) {
		t.Errorf("record of the hog: hard %t, result %s, escalated %v, error %q; want false, stopped, never, none", rec.Hard, rec.Result, rec.Escalated, rec.Error)
	}
	checkRanksFirst(t, &rec, hog)
	// The hog exits with 143 on SIGTERM.
	if now, err := n.Pod(t.Context(), hog.ID); err != nil || now.Containers[0].ExitCode != 143 {
		t.Errorf("the hog's end = %+v, %v; want exit code 143", now.Containers, err)
	}
}

// TestSoftRecovery: if memory recovers within the grace period, no pod is evicted, and the next crossing starts a new
// grace period.
func TestSoftRecovery(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: oneContainer(holdArgs(32 * mebibyte))}).waitUsage(32 * mebibyte)
	first := runPod(t, n, node.PodSpec{Name: "first", Containers: oneContainer(growArgs(600 * mebibyte))})
	second := runPod(t, n, node.PodSpec{Name: "second", Containers: oneContainer(growArgs(600 * mebibyte))})
	grace := graceAtLeast(10 * time.Second)
	d := startDaemon(t, n, softSettings(grace.String(), ""), other, first, second)
	first.grow()
	s := d.waitStatus("met soft threshold", func(s *control.Status) bool { return softThreshold(t, s).Met })
	since := softThreshold(t, &s).Since
	first.remove()
	d.waitStatus("recovery", func(s *control.Status) bool { return !softThreshold(t, s).Met })
	second.grow()
	s = d.waitStatus("second crossing", func(s *control.Status) bool { return softThreshold(t, s).Met })
	again := softThreshold(t, &s).Since
	if !again.After(since) {
		t.Errorf("the second crossing counts from %v; want later than the first, %v", again, since)
	}
	second.mustDie()
	d.checkVictims(second)
	mustLive(t, other)
	rec := d.waitRecord(second)
	if waited := rec.Decided.Sub(again); waited < grace {
		t.Errorf("the second hog was evicted %v after its crossing; want %v", waited, grace)
	}
}

// TestSoftTurnsHard: when the hard threshold is met, a soft victim that ignores SIGTERM is killed immediately.
func TestSoftTurnsHard(t *testing.T) {
	n := startNode(t, gibibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(560*mebibyte, "-ignore-term"))})
	pusher := runPod(t, n, node.PodSpec{Name: "pusher", Containers: oneContainer(growArgs(320 * mebibyte))})
	d := startDaemon(t, n, softSettings("1s", "evictionMaxPodGracePeriod: 60\nprotect: {names: [default/pusher]}"), hog, pusher)
	hog.grow()
	d.waitStatus("soft victim", func(s *control.Status) bool { return len(s.Victims) == 1 && s.Victims[0].Soft })
	mustLive(t, hog)
	pusher.grow()
	hog.mustDie()
	d.checkVictims(hog)
	mustLive(t, pusher)
	rec := d.waitRecord(hog)
	checkRecord(t, &rec, hog)
	if rec.Hard || rec.Result != evict.ResultKilled || rec.Escalated.Before(rec.SignalSent) || rec.LastGone.Before(rec.Escalated) {
		t.Errorf("record of the hog: hard %t, result %s, signal sent %v, escalated %v, last gone %v; want false, killed, and times in this order",
			rec.Hard, rec.Result, rec.SignalSent, rec.Escalated, rec.LastGone)
	}
	if !noErrors(&rec) {
		t.Errorf("record of the hog: error %q; want none", rec.Error)
	}
}
