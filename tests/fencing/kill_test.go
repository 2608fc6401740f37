package fencing

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/tests/controlplane"
)

// killPoint is a point of a fence at which its controller is killed.
type killPoint struct {
	name string
	// before is called before the node is lost, after when the controller was killed. Both may be nil.
	before, after func(*testing.T, *Cluster, string)
	// reached reports whether the point is reached, by the NodeFence of the lost node and the events since its loss.
	reached func(c *Cluster, s *Snapshot, lost string, events []Event) bool
}

// happened reports whether the lost node has an event of a kind, and of a detail if there is one.
func happened(kind Kind, detail string) func(*Cluster, *Snapshot, string, []Event) bool {
	return func(_ *Cluster, _ *Snapshot, lost string, events []Event) bool {
		return checkSteps(events, lost, []recoveryStep{{kind, detail}}) == nil
	}
}

var killPoints = []killPoint{
	{name: "right after the NodeFence was created", reached: happened(FenceCreated, "")},
	{
		name: "with an open intent to switch off",
		// The command has arrived, and takes effect after the death of its sender.
		before: func(t *testing.T, c *Cluster, lost string) { must(t, c.BMCs[lost].Delay(4*time.Second)) },
		after:  func(t *testing.T, c *Cluster, lost string) { must(t, c.BMCs[lost].Delay(0)) },
		reached: func(c *Cluster, s *Snapshot, lost string, events []Event) bool {
			i := s.Fences[lost].State.Intent
			_, late := Find(events, CommandOff)
			return i != nil && i.Action == fence.Off && (switching(c, lost) || late)
		},
	},
	{name: "in Proving", reached: happened(FenceChanged, "Power-Management/Running/Proving")},
	{name: "right after the out-of-service taint", reached: happened(OutOfService, "")},
	{
		name: "after the release, before the taint is removed",
		// Without the right to patch nodes the controller can't remove the taint. It loses the right when it has set it.
		after: func(t *testing.T, c *Cluster, _ string) { nodePatch(t, c, true) },
		reached: func(c *Cluster, s *Snapshot, lost string, events []Event) bool {
			return happened(FenceChanged, "Power-Management/Running/Released")(c, s, lost, events) && slices.Contains(s.Taints[lost], outOfServiceTaint)
		},
	},
	{name: "after on, before the node is back", reached: func(_ *Cluster, s *Snapshot, lost string, events []Event) bool {
		_, on := Find(events, CommandOn)
		return on && !s.Ready[lost]
	}},
}

// switching reports whether the BMC of a machine has a command that has not yet taken effect.
func switching(c *Cluster, name string) bool {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	return err == nil && slices.ContainsFunc(files, func(path string) bool {
		arguments, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(arguments), filepath.Join(c.Dir, "bmc-"+name, "hook.sh")+"\x00"+name+"\x00set\x00")
	})
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

// TestFenceKilledAtEachPoint: a leader that is killed at a point of a fence is followed by the other controller, when the
// lease has expired, which finishes the fence: the machine is switched off once, and its pod runs twice at no time.
func TestFenceKilledAtEachPoint(t *testing.T) {
	t.Parallel()
	c, program := configured(t, policy(map[string]string{"grace": "4s", "untaint_delay": "3s"}))
	r := startReplicas(t, c, program, shortLease...)
	lost, other := "a", "b"
	for _, p := range killPoints {
		began := time.Now()
		boot := c.Machines[lost].BootID()
		if p.before != nil {
			p.before(t, c, lost)
		}
		c.Machines[lost].Isolate()
		events := awaitPoint(t, c, r, &p, lost, began)
		leader, _ := r.leader(t)
		kill(t, c, leader)
		_, switched := Find(events, CommandOff)
		t.Logf("%s: killed %v after the loss of %s; switched off before: %t", p.name, time.Since(began).Round(time.Millisecond), lost, switched)
		if p.after != nil {
			p.after(t, c, lost)
		}
		must(t, c.AwaitRecovery(t.Context(), lost, other))
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
		t.Logf("%s: %v", p.name, time.Since(began).Round(time.Millisecond))
		lost, other = other, lost
	}
}

// answerTime is the time that the API server has to answer the requests of a controller that is stopped, after it has
// carried out a write that came later.
const answerTime = 300 * time.Millisecond

// kill stops a controller, and kills it when its requests are answered. The API server logs a request whose client is
// killed as failed, with 504, even if it has carried it out: the timeline would not have it.
func kill(t *testing.T, c *Cluster, p *Controller) {
	t.Helper()
	must(t, p.Signal(unix.SIGSTOP))
	stopped := fields{"metadata": fields{"annotations": fields{"stopped": time.Now().String()}}}
	must(t, c.Admin.Patch(t.Context(), "/api/v1/namespaces/default", controlplane.MergePatch, stopped))
	time.Sleep(answerTime)
	must(t, p.Kill())
}

// awaitPoint returns when a point is reached, with the events since the loss of the node.
func awaitPoint(t *testing.T, c *Cluster, r *replicas, p *killPoint, lost string, began time.Time) (events []Event) {
	t.Helper()
	refused := false
	for deadline := time.Now().Add(awaitTimeout); ; time.Sleep(2 * time.Millisecond) {
		s, err := c.Snapshot(t.Context())
		must(t, err)
		all, err := c.Timeline.Events()
		must(t, err)
		if events = eventsSince(all, began); p.reached(c, s, lost, events) {
			return events
		}
		if p.name == killPoints[4].name && !refused && slices.Contains(s.Taints[lost], outOfServiceTaint) {
			nodePatch(t, c, false)
			refused = true
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s was not reached: %s\n%s", p.name, Print(events, began), r.logged())
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
