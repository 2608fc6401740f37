package fencing

import (
	"slices"
	"testing"
	"time"
)

const (
	// usualDelay is how late the API server answers in a test of a slow one, and decisiveDelay how late from the reading that
	// follows the proof until the release begins. A look at a node, which has about eight answers one after the other, then
	// takes longer than a reading stays recent. With decisiveDelay all the time a fence takes minutes.
	usualDelay, decisiveDelay = 100 * time.Millisecond, 2 * time.Second
	// hangTime is how long the API server does not answer at all.
	hangTime = 4 * time.Second
)

// TestFenceSlowServer: evictd-controller gets each answer of the API server late, very late while it decides on the
// release, and none for a while when the machine was switched off and is not proven off. Nothing is released before the
// proof, and the fence goes on until the node has recovered.
func TestFenceSlowServer(t *testing.T) {
	t.Parallel()
	c, program := configured(t, policy(map[string]string{
		// A Lease that is listed late may be older than half of this short grace: its node then counts as unhealthy.
		"max_unhealthy": "2", "proof_timeout": "2m", "return_timeout": "2m", "total_timeout": "10m", "untaint_delay": "1s", "healthy_delay": "1s",
	}))
	proxy := startProxy(t, c)
	// With the times that are the default a leader ends that can't renew its lease for 10 s.
	p, err := c.StartController(program, "slow", "--kubeconfig", proxy.kubeconfig(t, c),
		"--leader-elect-lease-duration=60s", "--leader-elect-renew-deadline=50s")
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.Log())
		}
	})
	boot, uid := c.Machines["a"].BootID(), podUID(t, c)
	began := time.Now()
	c.Machines["a"].Isolate()
	_, err = c.AwaitEvent(t.Context(), CommandOff)
	must(t, err)
	proxy.hang()
	hung := time.Now()
	time.Sleep(hangTime)
	wantKept(t, c, check(t, c, began), uid)
	resumed := time.Now()
	proxy.resume()
	off, err := c.AwaitEvent(t.Context(), FenceChanged, Detail("Power-Management/Running/OffProven"))
	must(t, err)
	releasing, err := c.AwaitEvent(t.Context(), FenceChanged, Detail("Power-Management/Running/Releasing"))
	must(t, err)
	proxy.setDelay(usualDelay)
	took := releasing.At.Sub(off.At)
	t.Logf("the release began %v after the proof", took.Round(time.Millisecond))
	must(t, c.AwaitRecovery(t.Context(), "a", "b"))
	wantRecovered(t, c, began, boot, uid)
	events, err := c.Timeline.Events()
	must(t, err)
	if i := slices.IndexFunc(events, func(e Event) bool {
		return e.By == "evictd-controller" && e.At.After(hung) && e.At.Before(resumed)
	}); i >= 0 {
		t.Errorf("%s while the API server could not be reached", events[i])
	}
	if took < 5*decisiveDelay {
		t.Errorf("the release began %v after the proof; want that the answers it needs were late", took)
	}
}
