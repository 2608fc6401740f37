package native_test

import (
	"testing"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/tests/node"
)

// soft makes allocatableMemory.available<512Mi a soft threshold with a grace period.
func soft(grace, more string) string {
	return "evictionHard: {allocatableMemory.available: 200Mi}\n" +
		"evictionSoft: {allocatableMemory.available: 512Mi}\n" +
		"evictionSoftGracePeriod: {allocatableMemory.available: " + grace + "}\n" + more
}

// outlasting makes a grace period long enough for what a test does meanwhile, on a slow machine too.
func outlasting(grace time.Duration) time.Duration { return max(grace, node.Slow(2*time.Second)) }

// softThreshold is how the soft threshold stands.
func softThreshold(t *testing.T, s *control.Status) control.ThresholdStatus {
	t.Helper()
	for _, th := range s.Signals[signal.AllocatableMemoryAvailable].Thresholds {
		if th.Soft {
			return th
		}
	}
	t.Fatal("the status shows no soft threshold")
	return control.ThresholdStatus{}
}

// TestSoftEviction: a soft threshold waits for its grace period, and the victim is asked to stop.
func TestSoftEviction(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: one(growing(600 * mebibyte))})
	d := startDaemon(t, n, soft("2s", "evictionMaxPodGracePeriod: 20"), other, hog)
	hog.press()
	s := d.until("met soft threshold", func(s *control.Status) bool { return softThreshold(t, s).Met })
	since := softThreshold(t, &s).Since
	hog.mustDie()
	d.victims(hog)
	mustLive(t, other)
	rec := d.ended(hog)
	plausible(t, &rec, hog)
	if waited := rec.Decided.Sub(since); waited < 2*time.Second || waited > 2*time.Second+soon {
		t.Errorf("the hog was evicted %v after the crossing; want 2s", waited)
	}
	if rec.Hard || rec.Result != evict.ResultStopped || !rec.Hardened.IsZero() || !flawless(&rec) {
		t.Errorf("record of the hog: hard %t, result %s, hardened %v, error %q; want false, stopped, never, none", rec.Hard, rec.Result, rec.Hardened, rec.Error)
	}
	ranksFirst(t, &rec, hog)
	// 143 is a hog that heard SIGTERM.
	if now, err := n.Pod(t.Context(), hog.ID); err != nil || now.Containers[0].ExitCode != 143 {
		t.Errorf("the hog's end = %+v, %v; want exit code 143", now.Containers, err)
	}
}

// TestSoftRecovery: memory that is back within the grace period saves everyone, and the next crossing waits anew.
func TestSoftRecovery(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)
	first := runPod(t, n, node.PodSpec{Name: "first", Containers: one(growing(600 * mebibyte))})
	second := runPod(t, n, node.PodSpec{Name: "second", Containers: one(growing(600 * mebibyte))})
	grace := outlasting(3 * time.Second)
	d := startDaemon(t, n, soft(grace.String(), ""), other, first, second)
	first.press()
	s := d.until("met soft threshold", func(s *control.Status) bool { return softThreshold(t, s).Met })
	since := softThreshold(t, &s).Since
	first.remove()
	d.until("recovery", func(s *control.Status) bool { return !softThreshold(t, s).Met })
	second.press()
	s = d.until("second crossing", func(s *control.Status) bool { return softThreshold(t, s).Met })
	again := softThreshold(t, &s).Since
	if !again.After(since) {
		t.Errorf("the second crossing counts from %v; want later than the first, %v", again, since)
	}
	second.mustDie()
	d.victims(second)
	mustLive(t, other)
	rec := d.ended(second)
	if waited := rec.Decided.Sub(again); waited < grace {
		t.Errorf("the second hog was evicted %v after its crossing; want %v", waited, grace)
	}
}

// TestSoftTurnsHard: a victim that does not hear is not waited for once the hard threshold is met.
func TestSoftTurnsHard(t *testing.T) {
	n := startNode(t, gibibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: one(growing(560*mebibyte, "-ignore-term"))})
	pusher := runPod(t, n, node.PodSpec{Name: "pusher", Containers: one(growing(320 * mebibyte))})
	d := startDaemon(t, n, soft("1s", "evictionMaxPodGracePeriod: 60\nprotect: {names: [default/pusher]}"), hog, pusher)
	hog.press()
	d.until("soft victim", func(s *control.Status) bool { return len(s.Victims) == 1 && s.Victims[0].Soft })
	mustLive(t, hog)
	pusher.press()
	hog.mustDie()
	d.victims(hog)
	mustLive(t, pusher)
	rec := d.ended(hog)
	plausible(t, &rec, hog)
	if rec.Hard || rec.Result != evict.ResultKilled || rec.Hardened.Before(rec.SignalSent) || rec.LastGone.Before(rec.Hardened) {
		t.Errorf("record of the hog: hard %t, result %s, signal sent %v, hardened %v, last gone %v; want false, killed, and times in this order",
			rec.Hard, rec.Result, rec.SignalSent, rec.Hardened, rec.LastGone)
	}
	if !flawless(&rec) {
		t.Errorf("record of the hog: error %q; want none", rec.Error)
	}
}
