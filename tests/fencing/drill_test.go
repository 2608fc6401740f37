package fencing

import (
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/tests/controlplane"
)

// TestDrill: evictctl has a healthy, empty node fenced. Its machine is switched off once, proven off and switched on,
// and the node is back with a new boot. One that runs pods is refused, and so is one whose fence runs.
func TestDrill(t *testing.T) {
	t.Parallel()
	programs, err := controlplane.FindPrograms(controlplane.Kubectl)
	if err != nil {
		t.Skipf("needs %v", err)
	}
	c, _ := startFencing(t, Enforce)
	evictctl, admin := executable(t, "evictctl"), kubeconfig(t, c)
	drill := func(node string) (string, error) {
		cmd := exec.Command(evictctl, "fence", "drill", node, "--kubectl", filepath.Join(programs, controlplane.Kubectl), "--kubeconfig", admin)
		cmd.Stdin = strings.NewReader(node + "\nswitch off\n")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := drill("a"); err == nil || !strings.Contains(out, "drain it: kubectl drain a") {
		t.Errorf("drill of a node with a pod = %q, %v; want it refused", out, err)
	}
	boot, began := c.Machines["b"].BootID(), time.Now()
	out, err := drill("b")
	t.Logf("evictctl fence drill b:\n%s", out)
	if err != nil {
		t.Fatalf("drill: %v", err)
	}
	for _, want := range []string{"OffProven: ", "proven off ", "Ready again "} {
		if !strings.Contains(out, want) {
			t.Errorf("the drill printed no %q", want)
		}
	}
	events := check(t, c, began)
	for _, kind := range []Kind{CommandOff, CommandOn} {
		if n := len(slices.DeleteFunc(slices.Clone(events), func(e Event) bool { return e.Kind != kind })); n != 1 {
			t.Errorf("%d events %s; want 1", n, kind)
		}
	}
	if c.Machines["b"].BootID() == boot || !c.Machines["a"].On() {
		t.Error("b has its old boot ID, or a is off")
	}
	s, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if f := s.Fences["b"]; !f.State.Drill || f.State.Result != fence.Recovered || !s.Ready["b"] || len(s.Taints["b"]) > 0 {
		t.Errorf("after the drill: NodeFence %+v, Ready %t, taints %v; want a node as before", f, s.Ready["b"], s.Taints["b"])
	}
	// The NodeFence of the first drill asks for the second.
	if err := c.BMCs["b"].Ignore(true); err != nil {
		t.Fatal(err)
	}
	if out, err := drill("b"); err == nil || !strings.Contains(out, "was not proven off") || !c.Machines["b"].On() {
		t.Errorf("drill with a BMC that ignores commands = %q, %v; want it to fail", out, err)
	}
	check(t, c, began)
}

// awaitConfigured waits until the condition EvictdFenceConfigured of a Node has a status and a reason, or is not there.
func awaitConfigured(t *testing.T, c *Cluster, node, want string) {
	t.Helper()
	if err := c.poll(t.Context(), "the condition "+want+" of "+node, func() (bool, error) {
		var n corev1.Node
		err := c.Admin.Get(t.Context(), "/api/v1/nodes/"+node, &n)
		got, ready := "", false
		for _, c := range n.Status.Conditions {
			if c.Type == "EvictdFenceConfigured" {
				got = string(c.Status) + " " + c.Reason
			}
			ready = ready || c.Type == corev1.NodeReady
		}
		return ready && got == want, err
	}); err != nil {
		t.Fatal(err)
	}
}

// notDrilled reports whether b has a fence that has given up because nothing has shown that its device is its own.
func notDrilled(s *Snapshot) bool {
	conditions := s.Fences["b"].State.Conditions
	return meta.IsStatusConditionTrue(conditions, fence.ConditionGaveUp) && meta.IsStatusConditionTrue(conditions, fence.ConditionNotDrilled)
}

// TestDrillOfPlug: a device that is not compared with the node is used for a fence after a drill has shown that it is
// the node's, and no longer when it was changed.
func TestDrillOfPlug(t *testing.T) {
	t.Parallel()
	programs, err := controlplane.FindPrograms(controlplane.Kubectl)
	if err != nil {
		t.Skipf("needs %v", err)
	}
	policy := maps.Clone(Enforce)
	policy["applies_to"] = "all"
	c, _ := startFencing(t, policy)
	template := map[string]string{"agent_name": "ipmi", "username": username, "timeout": "10s", "identity": "none"}
	setTemplate := func() {
		t.Helper()
		path := "/api/v1/namespaces/" + Namespace + "/configmaps/fence-method-template-bmc"
		m := configMap("fence-method-template-bmc", "template.properties", template)
		if err := c.Admin.Patch(t.Context(), path, controlplane.MergePatch, fields{"data": m.Data}); err != nil {
			t.Fatal(err)
		}
	}
	await := func(what string, ok func(*Snapshot) bool) {
		t.Helper()
		if err := c.Await(t.Context(), what, ok); err != nil {
			t.Fatal(err)
		}
	}
	recovered := func(s *Snapshot) bool {
		f := s.Fences["b"]
		return !f.State.Drill && f.State.Result == fence.Recovered && s.Ready["b"] && len(s.Taints["b"]) == 0
	}
	condition := func(want string) { t.Helper(); awaitConfigured(t, c, "b", want) }
	setTemplate()
	condition("False NotDrilled")
	began := time.Now()
	boot := c.Machines["b"].BootID()
	c.Machines["b"].Isolate()
	await("b not to be fenced without a drill", notDrilled)
	if !c.Machines["b"].On() {
		t.Error("b was switched off by a device that no drill has shown to be its own")
	}
	c.Machines["b"].Rejoin()
	await("b to be ready again", recovered)

	cmd := exec.Command(executable(t, "evictctl"), "fence", "drill", "b", "--kubectl", filepath.Join(programs, controlplane.Kubectl), "--kubeconfig", kubeconfig(t, c))
	cmd.Stdin = strings.NewReader("b\nswitch off\n")
	out, err := cmd.CombinedOutput()
	t.Logf("evictctl fence drill b:\n%s", out)
	if err != nil || !strings.Contains(string(out), fence.ReasonDrillShowed+": ") {
		t.Fatalf("drill: %v; want it passed, and what it has shown", err)
	}
	var kept corev1.ConfigMap
	if err := c.Admin.Get(t.Context(), "/api/v1/namespaces/"+Namespace+"/configmaps/evictd-fence-drills", &kept); err != nil || kept.Data["b"] == "" {
		t.Fatalf("ConfigMap evictd-fence-drills has %v, %v; want the drill of b", kept.Data, err)
	}
	condition("True Planned")
	if boot == c.Machines["b"].BootID() {
		t.Error("b has its old boot ID after the drill")
	}
	boot = c.Machines["b"].BootID()
	c.Machines["b"].Isolate()
	await("the fence of b after its drill", func(s *Snapshot) bool { return recovered(s) && c.Machines["b"].BootID() != boot })

	boot = c.Machines["b"].BootID()
	if err := c.setAddress(t.Context(), "b", "localhost"); err != nil {
		t.Fatal(err)
	}
	c.Machines["b"].Isolate()
	await("b not to be fenced by a changed device", notDrilled)
	if !c.Machines["b"].On() || c.Machines["b"].BootID() != boot {
		t.Error("b was switched off by a device that was changed after the drill")
	}
	check(t, c, began)
	if _, err := c.Admin.Request(t.Context(), "DELETE", "/api/v1/namespaces/"+Namespace+"/configmaps/fence-config-b", "", nil); err != nil {
		t.Fatal(err)
	}
	condition("")
}
