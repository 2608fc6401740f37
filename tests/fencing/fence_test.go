package fencing

import (
	"slices"
	"testing"
	"time"
)

// start starts a cluster of two machines, a and b, whose volumes are not detached by force. The pod runs on a.
func start(t *testing.T) *Cluster {
	t.Helper()
	return startArgs(t, noForceDetach)
}

// startArgs is start with other arguments of kube-controller-manager.
func startArgs(t *testing.T, args ...string) *Cluster {
	t.Helper()
	if err := Check(); err != nil {
		t.Skipf("needs %v", err)
	}
	began := time.Now()
	c, err := startWith(t.Context(), args, "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Report())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if left := c.Leftovers(); len(left) > 0 {
			t.Errorf("left of the cluster: %v", left)
		}
	})
	t.Logf("cluster ready after %v", time.Since(began).Round(time.Millisecond))
	return c
}

// check fails the test if something was released from a machine that was on.
func check(t *testing.T, c *Cluster, began time.Time) []Event {
	t.Helper()
	events, err := c.Timeline.Events()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("events since the loss:\n%s", Print(eventsSince(events, began), began))
	for _, v := range Violations(events) {
		t.Errorf("released too early: %s", v)
	}
	for _, v := range c.Storage.Conflicts() {
		t.Errorf("split brain: %s", v)
	}
	return events
}

// TestByHand: the stand-ins and the controllers of Kubernetes do what a person sees who recovers a lost node. Before
// the taint nothing is released.
func TestByHand(t *testing.T) {
	t.Parallel()
	c := start(t)
	began := time.Now()
	c.Machines["a"].Isolate()
	if err := c.Await(t.Context(), "a to be not ready", func(s *Snapshot) bool { return !s.Ready["a"] }); err != nil {
		t.Fatal(err)
	}
	t.Logf("not ready after %v", time.Since(began).Round(time.Millisecond))
	before, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if before.PodNode != "a" || !slices.Equal(before.Attached, []string{"a"}) {
		t.Errorf("released without a taint: pod on %q, volume on %v", before.PodNode, before.Attached)
	}
	boot := c.Machines["a"].BootID()
	if err := c.RecoverByHand(t.Context(), "a", "b"); err != nil {
		t.Fatal(err)
	}
	check(t, c, began)
	if c.Machines["a"].BootID() == boot {
		t.Error("a has its old boot ID")
	}
}

// TestViolations: the checks of the other tests see a release that comes too early.
func TestViolations(t *testing.T) {
	t.Parallel()
	c := start(t)
	c.Machines["a"].Isolate()
	if err := c.Await(t.Context(), "a to be not ready", func(s *Snapshot) bool { return !s.Ready["a"] }); err != nil {
		t.Fatal(err)
	}
	if err := c.TaintByHand(t.Context(), "a", true); err != nil {
		t.Fatal(err)
	}
	if err := c.Await(t.Context(), "the pod to run on b", func(s *Snapshot) bool { return s.PodNode == "b" && s.PodRunning }); err != nil {
		t.Fatal(err)
	}
	events, err := c.Timeline.Events()
	if err != nil {
		t.Fatal(err)
	}
	if got := Violations(events); len(got) != 3 {
		t.Errorf("Violations() = %q; want those of the taint, the pod and the volume", got)
	}
	if err := c.poll(t.Context(), "a conflict", func() (bool, error) { return len(c.Storage.Conflicts()) == 2, nil }); err != nil {
		t.Errorf("Conflicts() = %q; want those of the pod and the volume", c.Storage.Conflicts())
	}
}
