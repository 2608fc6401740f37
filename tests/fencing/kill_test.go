package fencing

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/tests/controlplane"
)

// killPoint is a point of a fence at which its controller is killed.
type killPoint struct {
	name string
	// before is called before the node is lost, after when the controller was killed. Both may be nil.
	before, after func(*testing.T, *Cluster, string)
	// reached reports whether the point is reached, by the NodeFence of the lost node and the events since its loss.
	reached func(*Snapshot, string, []Event) bool
}

// phase reports whether a fence has a phase of its release.
func phase(p fence.Phase) func(*Snapshot, string, []Event) bool {
	return func(s *Snapshot, lost string, _ []Event) bool {
		f := s.Fences[lost]
		return f.Step == fence.PowerManagement && f.State.Phase == p
	}
}

var killPoints = []killPoint{
	{name: "right after the NodeFence was created", reached: func(s *Snapshot, lost string, _ []Event) bool {
		f, known := s.Fences[lost]
		return known && f.State.FinishedAt.IsZero()
	}},
	{
		name: "with an open intent to switch off",
		// The command has arrived, and takes effect after the death of its sender.
		before: func(t *testing.T, c *Cluster, lost string) { must(t, c.BMCs[lost].Delay(2*time.Second)) },
		after:  func(t *testing.T, c *Cluster, lost string) { must(t, c.BMCs[lost].Delay(0)) },
		reached: func(s *Snapshot, lost string, _ []Event) bool {
			i := s.Fences[lost].State.Intent
			return i != nil && i.Action == fence.Off
		},
	},
	{name: "in Proving", reached: phase(fence.Proving)},
	{name: "right after the out-of-service taint", reached: func(s *Snapshot, lost string, _ []Event) bool {
		return slices.Contains(s.Taints[lost], outOfServiceTaint)
	}},
	{
		name: "after the release, before the taint is removed",
		// Without the right to patch nodes the controller can't remove the taint. It loses the right when it has set it.
		after: func(t *testing.T, c *Cluster, _ string) { nodePatch(t, c, true) },
		reached: func(s *Snapshot, lost string, _ []Event) bool {
			return s.Fences[lost].State.Phase == fence.Released && slices.Contains(s.Taints[lost], outOfServiceTaint)
		},
	},
	{name: "after on, before the node is back", reached: func(s *Snapshot, lost string, events []Event) bool {
		_, on := Find(events, CommandOn)
		return on && !s.Ready[lost]
	}},
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// nodePatch gives the controller the right to patch nodes, or takes it.
func nodePatch(t *testing.T, c *Cluster, allowed bool) {
	t.Helper()
	if !allowed {
		patch := []fields{{"op": "replace", "path": "/rules/0/verbs", "value": []string{"get", "list", "watch"}}}
		must(t, c.Admin.Patch(t.Context(), "/apis/rbac.authorization.k8s.io/v1/clusterroles/evictd-controller", controlplane.JSONPatch, patch))
		return
	}
	manifest, err := os.ReadFile(filepath.Join("../..", "deploy/kubernetes/controller", "rbac.yaml"))
	must(t, err)
	must(t, c.Admin.Apply(t.Context(), manifest))
}

// TestFenceKilledAtEachPoint: a controller that is killed at a point of a fence is followed by another, which finishes
// the fence: the machine is switched off once, and its pod runs twice at no time.
func TestFenceKilledAtEachPoint(t *testing.T) {
	t.Parallel()
	c, program := startFencing(t, Enforce)
	lost, other := "a", "b"
	for i, p := range killPoints {
		if i > 0 {
			startController(t, c, program, fmt.Sprint("leader-", i))
		}
		began := time.Now()
		boot := c.Machines[lost].BootID()
		if p.before != nil {
			p.before(t, c, lost)
		}
		c.Machines[lost].Isolate()
		events := awaitPoint(t, c, &p, lost, began)
		must(t, c.controller.Kill())
		_, switched := Find(events, CommandOff)
		t.Logf("%s: killed %v after the loss of %s; switched off before: %t", p.name, time.Since(began).Round(time.Millisecond), lost, switched)
		if p.after != nil {
			p.after(t, c, lost)
		}
		expireLeader(t, c)
		successor := startController(t, c, program, fmt.Sprint("successor-", i))
		if err := c.AwaitRecovery(t.Context(), lost, other); err != nil {
			t.Fatalf("%s: %v\n%s", p.name, err, successor.Log())
		}
		events = eventsSince(check(t, c, began), began)
		if err := CheckRecovery(events, lost); err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
		if n := count(events, CommandOff); n != 1 {
			t.Errorf("%s: %d commands to switch off; want 1", p.name, n)
		}
		if c.Machines[lost].BootID() == boot {
			t.Errorf("%s: %s has its old boot ID", p.name, lost)
		}
		must(t, c.controller.Kill())
		expireLeader(t, c)
		lost, other = other, lost
	}
}

// awaitPoint returns when a point is reached, with the events since the loss of the node.
func awaitPoint(t *testing.T, c *Cluster, p *killPoint, lost string, began time.Time) (events []Event) {
	t.Helper()
	refused := false
	for deadline := time.Now().Add(awaitTimeout); ; time.Sleep(2 * time.Millisecond) {
		s, err := c.Snapshot(t.Context())
		must(t, err)
		all, err := c.Timeline.Events()
		must(t, err)
		if events = eventsSince(all, began); p.reached(s, lost, events) {
			return events
		}
		if p.name == killPoints[4].name && !refused && slices.Contains(s.Taints[lost], outOfServiceTaint) {
			nodePatch(t, c, false)
			refused = true
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s was not reached: %s\n%s", p.name, Print(events, began), c.controller.Log())
		}
	}
}

// eventsSince returns the events that began after a time.
func eventsSince(events []Event, began time.Time) []Event {
	return slices.DeleteFunc(slices.Clone(events), func(e Event) bool { return e.At.Before(began) })
}

// count returns how many events are of a kind.
func count(events []Event, kind Kind) (n int) {
	for _, e := range events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// expireLeader deletes the Lease of a killed leader, so that the next need not wait until it has expired.
func expireLeader(t *testing.T, c *Cluster) {
	t.Helper()
	err := c.Admin.Delete(t.Context(), "/apis/coordination.k8s.io/v1/namespaces/"+Namespace+"/leases/evictd-controller", fields{})
	if e, ok := errors.AsType[*controlplane.StatusError](err); err != nil && (!ok || e.Code != http.StatusNotFound) {
		t.Fatal(err)
	}
}
