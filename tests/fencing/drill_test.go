package fencing

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
