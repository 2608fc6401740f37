package fencing

import (
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/tests/controlplane"
	"github.com/evictd/evictd/tests/node"
)

// executable returns the path of a command as it is released.
func executable(t *testing.T, name string) string {
	t.Helper()
	program, err := node.Program("../..", t.TempDir(), name)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// startFencing is start with evictd-controller.
func startFencing(t *testing.T, policy map[string]string) (c *Cluster, program string) {
	t.Helper()
	c, program = configured(t, policy)
	startController(t, c, program, "first")
	return c, program
}

// configured is start with all that evictd-controller needs.
func configured(t *testing.T, policy map[string]string) (c *Cluster, program string) {
	t.Helper()
	if err := Check(); err != nil {
		t.Skipf("needs %v", err)
	}
	program = executable(t, "evictd-controller")
	c = start(t)
	if err := c.Install(t.Context(), "../.."); err != nil {
		t.Fatal(err)
	}
	if err := c.Configure(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	return c, program
}

func startController(t *testing.T, c *Cluster, program, identity string) *Controller {
	t.Helper()
	p, err := c.StartController(program, identity)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("evictd-controller %s:\n%s", identity, p.Log())
		}
	})
	return p
}

// policy returns Enforce with other values.
func policy(changes map[string]string) map[string]string {
	p := maps.Clone(Enforce)
	maps.Copy(p, changes)
	return p
}

// awaitFence returns the NodeFence of a for which ok returns true.
func awaitFence(t *testing.T, c *Cluster, what string, ok func(*fence.Progress, *fence.Detail) bool) (fence.Progress, fence.Detail) {
	t.Helper()
	var p fence.Progress
	var d fence.Detail
	if err := c.Await(t.Context(), what, func(s *Snapshot) bool {
		f, known := s.Fences["a"]
		p, d = f.Progress, f.State
		return known && ok(&p, &d)
	}); err != nil {
		t.Fatal(err)
	}
	return p, d
}

// wantKept fails the test if anything of a was released, or one of its taints was added.
func wantKept(t *testing.T, c *Cluster, events []Event, uid string) {
	t.Helper()
	if e, found := Find(events, OutOfService); found {
		t.Errorf("%s: want no taint", e)
	}
	s, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.PodUID != uid || s.PodNode != "a" || s.PodTerminating || !slices.Equal(s.Attached, []string{"a"}) {
		t.Errorf("pod %s on %q, terminating: %t, volume on %v; want pod %s and volume on a", s.PodUID, s.PodNode, s.PodTerminating, s.Attached, uid)
	}
}

// podUID returns the UID of the pod.
func podUID(t *testing.T, c *Cluster) string {
	t.Helper()
	s, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.PodUID
}

// TestFence: a lost node whose machine is on is switched off, proven off, released, switched on, and is back. The
// replacement of its pod runs on the other node.
func TestFence(t *testing.T) {
	t.Parallel()
	c, program := startFencing(t, Enforce)
	secrets := searchSecret(t, program, password)
	boot, uid := c.Machines["a"].BootID(), podUID(t, c)
	began := time.Now()
	c.Machines["a"].Isolate()
	if err := c.AwaitRecovery(t.Context(), "a", "b"); err != nil {
		t.Fatal(err)
	}
	wantRecovered(t, c, began, boot, uid)
	secrets.check(t, c)
}

// wantRecovered fails the test unless a has a new boot, its pod a replacement, and all happened in order.
func wantRecovered(t *testing.T, c *Cluster, began time.Time, boot, uid string) {
	t.Helper()
	events := check(t, c, began)
	if err := CheckRecovery(events, "a"); err != nil {
		t.Error(err)
	}
	off, _ := Find(events, CommandOff)
	if n := len(slices.DeleteFunc(slices.Clone(events), func(e Event) bool { return e.Kind != CommandOff })); n != 1 {
		t.Errorf("%d commands to switch off; want 1", n)
	}
	s, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckProof(s.Fences["a"].State.Proof, off.At, fence.DefaultTimings().ProofInterval.Duration); err != nil {
		t.Error(err)
	}
	if c.Machines["a"].BootID() == boot {
		t.Error("a has its old boot ID")
	}
	if s.PodUID == uid {
		t.Error("the pod was not replaced")
	}
}

// TestFenceIgnored: nothing is released while a BMC ignores commands, also not when all attempts are used up. Once
// somebody has pulled the plug, the node's pods and volumes are released.
func TestFenceIgnored(t *testing.T) {
	t.Parallel()
	c, _ := startFencing(t, policy(map[string]string{"proof_timeout": "6s", "giveup_retries": "2"}))
	uid := podUID(t, c)
	if err := c.BMCs["a"].Ignore(true); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c.Machines["a"].Isolate()
	progress, _ := awaitFence(t, c, "the end of the attempts", func(p *fence.Progress, d *fence.Detail) bool {
		return p.Status == fence.Error && meta.IsStatusConditionTrue(d.Conditions, fence.ConditionGaveUp)
	})
	if progress.Retries != 2 {
		t.Errorf("%d retries; want 2", progress.Retries)
	}
	events := check(t, c, began)
	wantKept(t, c, events, uid)
	var commands []time.Time
	for _, e := range events {
		if e.Kind == CommandOff {
			commands = append(commands, e.At)
		}
	}
	if len(commands) != 3 {
		t.Fatalf("%d commands to switch off; want 3", len(commands))
	}
	if first, second := commands[1].Sub(commands[0]), commands[2].Sub(commands[1]); second < first+time.Second {
		t.Errorf("attempts %v and %v after the ones before; want a longer back-off", first, second)
	}
	if err := c.PullPlug("a"); err != nil {
		t.Fatal(err)
	}
	if err := c.Await(t.Context(), "the pod to run on b", func(s *Snapshot) bool { return s.PodNode == "b" && s.PodRunning }); err != nil {
		t.Error(err)
	}
	check(t, c, began)
}

// TestFenceConfirmed: the BMC is lost together with its machine. Nothing is released until a person confirms with
// evictctl that the machine is off.
func TestFenceConfirmed(t *testing.T) {
	t.Parallel()
	programs, err := controlplane.FindPrograms(controlplane.Kubectl)
	if err != nil {
		t.Skipf("needs %v", err)
	}
	c, _ := startFencing(t, policy(map[string]string{"proof_timeout": "6s", "giveup_retries": "0"}))
	uid := podUID(t, c)
	evictctl, admin := executable(t, "evictctl"), kubeconfig(t, c)
	call := func(args ...string) (string, error) {
		args = append(append([]string{"fence"}, args...), "--kubectl", filepath.Join(programs, controlplane.Kubectl), "--kubeconfig", admin)
		out, err := exec.Command(evictctl, args...).CombinedOutput()
		return string(out), err
	}
	if out, err := call("list"); err != nil || out != "no node is or was fenced\n" {
		t.Errorf("evictctl fence list = %q, %v; want no fence", out, err)
	}
	began := time.Now()
	if err := c.PullPlug("a"); err != nil {
		t.Fatal(err)
	}
	if err := c.BMCs["a"].Freeze(); err != nil {
		t.Fatal(err)
	}
	awaitFence(t, c, "the end of the attempts", func(_ *fence.Progress, d *fence.Detail) bool {
		return meta.IsStatusConditionTrue(d.Conditions, fence.ConditionGaveUp)
	})
	wantKept(t, c, check(t, c, began), uid)
	if out, err := call("list"); err != nil || !strings.Contains(out, "GaveUp") {
		t.Errorf("evictctl fence list = %q, %v; want GaveUp", out, err)
	}
	out, err := call("show", "a")
	found := regexp.MustCompile(`(?m)^fence: ([0-9a-f-]{36}),`).FindStringSubmatch(out)
	if err != nil || found == nil {
		t.Fatalf("evictctl fence show a = %q, %v; want the UID of the fence", out, err)
	}
	if out, err := call("confirm", "a", "--fence", uid); err == nil || !strings.Contains(out, "has the fence "+found[1]) {
		t.Errorf("evictctl fence confirm with another UID = %q, %v; want an error", out, err)
	}
	wantKept(t, c, check(t, c, began), uid)
	if out, err := call("confirm", "a", "--fence", found[1]); err != nil {
		t.Fatalf("evictctl fence confirm = %q, %v", out, err)
	}
	if err := c.Await(t.Context(), "the pod to run on b", func(s *Snapshot) bool { return s.PodNode == "b" && s.PodRunning }); err != nil {
		t.Error(err)
	}
	if _, d := awaitFence(t, c, "the proof", func(*fence.Progress, *fence.Detail) bool { return true }); d.Proof == nil || d.Proof.How != fence.Confirmed {
		t.Errorf("the proof is %+v; want a person's word", d.Proof)
	}
}

// kubeconfig returns the path of the kubeconfig of an administrator.
func kubeconfig(t *testing.T, c *Cluster) string {
	t.Helper()
	path, err := c.Kubeconfig("person", controlplane.AdminToken)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestFenceDryRun: without a mode evictd-controller decides, and switches, taints and deletes nothing.
func TestFenceDryRun(t *testing.T) {
	t.Parallel()
	dry := maps.Clone(Enforce)
	delete(dry, "mode")
	c, _ := startFencing(t, dry)
	uid := podUID(t, c)
	began := time.Now()
	c.Machines["a"].Isolate()
	_, detail := awaitFence(t, c, "the end of the decision", func(p *fence.Progress, d *fence.Detail) bool { return p.Status == fence.Done })
	if !detail.DryRun {
		t.Error("the fence is not one of a dry run")
	}
	events := check(t, c, began)
	wantKept(t, c, events, uid)
	for _, kind := range []Kind{Quarantined, CommandOff, CommandOn} {
		if e, found := Find(events, kind); found {
			t.Errorf("in dry run: %s", e)
		}
	}
}

// TestFenceKilled: a controller that is killed right after it has sent the command to switch off is followed by
// another, which finishes the fence and sends no second command.
func TestFenceKilled(t *testing.T) {
	t.Parallel()
	c, program := startFencing(t, Enforce)
	boot, uid := c.Machines["a"].BootID(), podUID(t, c)
	began := time.Now()
	c.Machines["a"].Isolate()
	awaitFence(t, c, "the fence", func(*fence.Progress, *fence.Detail) bool { return true })
	for deadline := time.Now().Add(awaitTimeout); ; time.Sleep(time.Millisecond) {
		calls, err := c.BMCs["a"].Log()
		if err != nil {
			t.Fatal(err)
		}
		if len(calls) > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a was not switched off")
		}
	}
	if err := c.controller.Kill(); err != nil {
		t.Fatal(err)
	}
	_, detail := awaitFence(t, c, "the fence", func(*fence.Progress, *fence.Detail) bool { return true })
	t.Logf("killed with the intent %+v", detail.Intent)
	startController(t, c, program, "second")
	if err := c.AwaitRecovery(t.Context(), "a", "b"); err != nil {
		t.Fatal(err)
	}
	wantRecovered(t, c, began, boot, uid)
}
