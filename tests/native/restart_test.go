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

// TestRuntimeRestart: with the runtime gone evictd goes on with what it knew, and kills; it finds the runtime again.
// The sandbox of who was killed meanwhile is not looked at: nobody could be asked to stop it.
func TestRuntimeRestart(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)
	first := runPod(t, n, node.PodSpec{Name: "first", Containers: one(growing(600 * mebibyte))})
	second := runPod(t, n, node.PodSpec{Name: "second", Containers: one(growing(600 * mebibyte))})
	d := startDaemon(t, n, below("512Mi"), other, first, second)

	n.Kill()
	d.until("lost runtime", func(s *control.Status) bool {
		return !s.Runtime.Connected && s.Runtime.Error != "" && s.Pods.Count == 3
	})
	first.press()
	first.containersMustDie()
	d.looks(3)
	mustLive(t, other, second)

	if err := n.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.until("runtime that is back", func(s *control.Status) bool { return s.Runtime.Connected && s.Pods.Count == 2 })
	second.press()
	second.mustDie()
	d.victims(first, second)
	mustLive(t, other)
	rec := d.ended(first)
	plausible(t, &rec, first)
	if rec.Result != evict.ResultKilled || rec.LastGone.IsZero() {
		t.Errorf("record of the pod that was killed without a runtime: result %s, last gone %v; want killed, and known", rec.Result, rec.LastGone)
	}
	rec = d.ended(second)
	killed(t, &rec, second)
}

// TestRuntimeAbsentAtStart: evictd waits for a runtime that is not there yet.
func TestRuntimeAbsentAtStart(t *testing.T) {
	n := startNode(t, gibibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: one(growing(600 * mebibyte))})
	n.Kill()
	d := newDaemon(t, n, below("512Mi"))
	d.start()
	d.looks(2)
	if s, _ := d.status(); s.Runtime.Connected || s.Runtime.Error == "" {
		t.Errorf("runtime = %+v; want it not connected, with the reason", s.Runtime)
	}
	if err := n.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.knows(1)
	hog.press()
	hog.mustDie()
	d.victims(hog)
}

// TestKilledInTheMiddle: evictd dies while a victim's grace runs. Its successor knows of that one, takes no second
// for the same pressure, and goes on with it: the runtime would let it live.
func TestKilledInTheMiddle(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: one(holding(64 * mebibyte))}).uses(64 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: one(growing(560*mebibyte, "-ignore-term"))})
	grace := outlasting(6 * time.Second)
	d := startDaemon(t, n, soft("1s", fmt.Sprintf("evictionMaxPodGracePeriod: %d", grace/time.Second)), other, hog)
	hog.press()
	s := d.until("soft victim", func(s *control.Status) bool { return len(s.Victims) == 1 && s.Victims[0].Soft })
	due := s.Victims[0].Due
	d.saved("victims")

	d.kill(syscall.SIGKILL)
	d.start()
	d.knows(2)
	s = d.looks(2)
	if len(s.Records) != 1 || s.Records[0].UID != hog.UID || s.Records[0].Result != evict.ResultPending {
		t.Errorf("records after the restart = %+v; want the hog's alone, pending", s.Records)
	}
	if len(s.Victims) != 1 || s.Victims[0].UID != hog.UID {
		t.Fatalf("victims after the restart = %+v; want the hog", s.Victims)
	}
	if moved := s.Victims[0].Due.Sub(due).Abs(); moved > 100*time.Millisecond {
		t.Errorf("the hog is due %v from when it was before the restart; want no change", moved)
	}
	mustLive(t, other, hog)

	hog.mustDie()
	d.victims(hog)
	mustLive(t, other)
	rec := d.ended(hog)
	plausible(t, &rec, hog)
	if late := rec.LastGone.Sub(due); rec.Result != evict.ResultStopped || late < -time.Second || late > soon {
		t.Errorf("record of the hog: result %s, gone %v after it was due; want stopped, then", rec.Result, late)
	}
}

// TestKilledAfterTheKill: evictd dies right after it has killed. Its successor does not take the same pressure for
// another, and remembers.
func TestKilledAfterTheKill(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: one(holding(64 * mebibyte))}).uses(64 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: one(growing(560 * mebibyte))})
	d := startDaemon(t, n, below("512Mi"), other, hog)
	hog.press()
	d.saved(hog.UID)
	d.kill(syscall.SIGKILL)
	hog.containersMustDie()
	d.start()
	d.looks(3)
	d.victims(hog)
	// Whether the runtime still lists the container that was killed decides who sees its end.
	if rec := d.ended(hog); rec.Result != evict.ResultKilled && rec.Result != evict.ResultUnknown {
		t.Errorf("record of the hog: result %s; want killed or unknown", rec.Result)
	}
	mustLive(t, other)
}

// TestGraceOverRestart: a grace period that runs goes on where evictd is away for a moment.
func TestGraceOverRestart(t *testing.T) {
	n := startNode(t, gibibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: one(growing(560 * mebibyte))})
	grace := outlasting(6 * time.Second)
	d := startDaemon(t, n, soft(grace.String(), "evictionMaxPodGracePeriod: 20"), hog)
	hog.press()
	s := d.until("met soft threshold", func(s *control.Status) bool { return softThreshold(t, s).Met })
	since := softThreshold(t, &s).Since
	d.saved("timers")
	d.kill(syscall.SIGKILL)
	d.start()
	s = d.until("met soft threshold", func(s *control.Status) bool { return softThreshold(t, s).Met })
	if moved := softThreshold(t, &s).Since.Sub(since).Abs(); moved > 100*time.Millisecond {
		t.Errorf("after the restart the threshold counts as met %v from when it was before; want no change", moved)
	}
	hog.mustDie()
	d.victims(hog)
	rec := d.ended(hog)
	if waited := rec.Decided.Sub(since); waited < grace || waited > grace+soon {
		t.Errorf("the hog was evicted %v after the crossing; want %v", waited, grace)
	}
}
