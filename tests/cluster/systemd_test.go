package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evictd/evictd/tests/node"
)

// TestFenceBesideSystemd: systemd, which owns the pod's slice, writes its limit of processes back when it
// reloads its units and when a property of the slice is set, as the kubelet does in a resize of the pod. An evicted
// pod that is not reported yet stays fenced.
func TestFenceBesideSystemd(t *testing.T) {
	if os.Getenv(node.DriverEnv) != string(node.Systemd) {
		t.Skip("needs the systemd driver")
	}
	if !inNamespaces(t) {
		return
	}
	c := startKubeNode(t)
	c.startEnforcing()
	reload := &workload{"reload", "StatefulSet", podSpec("Always", hogContainer("main"))}
	c.create(reload)
	c.whilePaused(reload, func(v *victim) {
		for range 3 {
			systemctl(t, "daemon-reload")
			v.awaitPIDsMax("0")
		}
	})
	property := &workload{"property", "Deployment", podSpec("Always", hogContainer("main"))}
	c.create(property)
	p := c.waitRunning(property)
	signal(t, c.kube, syscall.SIGSTOP)
	v := c.evict(property)
	systemctl(t, "set-property", "--runtime", filepath.Base(c.podCgroup("pids", &p.Pod)), "CPUWeight=50")
	v.awaitPIDsMax("0")
	time.Sleep(restartTime)
	signal(t, c.kube, syscall.SIGCONT)
	v.check()
	for i := range resizeAttempts {
		if c.resizeWhileFenced(fmt.Sprint("resize-", i)) {
			return
		}
	}
	t.Errorf("the kubelet noticed the kill before the resize %d times", resizeAttempts)
}

// resizeAttempts is how many pods are resized until the kubelet does so before it notices the kill: it reads what comes
// from the API server and the list of containers in any order.
const resizeAttempts = 3

// resizeWhileFenced changes the resources of a pod that is killed and fenced, and not reported yet. Its kubelet is
// stopped until then: it does not know of the kill when it sees the resize, and sets the properties of the pod's slice.
// It returns false if the kubelet has noticed the kill first, and so did not.
func (c *kubeNode) resizeWhileFenced(name string) bool {
	c.t.Helper()
	hog := hogContainer("main")
	hog["resources"] = fields{"requests": fields{"cpu": "50m"}, "limits": fields{"cpu": "200m"}}
	w := &workload{name, "StatefulSet", podSpec("Always", hog)}
	c.create(w)
	p := c.waitRunning(w)
	slice := c.podCgroup("pids", &p.Pod)
	read := func(name string) string {
		content, err := os.ReadFile(filepath.Join(slice, name))
		if err != nil {
			c.t.Fatal(err)
		}
		return strings.TrimSpace(string(content))
	}
	before := read("cpu.weight")
	c.until("eligible pod of "+w.name, func() bool { return c.eligible(string(p.UID)) })
	signal(c.t, c.kube, syscall.SIGSTOP)
	signal(c.t, c.kubelet, syscall.SIGSTOP)
	v := c.evict(w)
	c.until("fence of "+w.name, v.isFenced)
	if _, err := c.request("PATCH", podPath(p.Name)+"/resize", "application/strategic-merge-patch+json",
		`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"150m"},"limits":{"cpu":"400m"}}}]}}`); err != nil {
		c.t.Fatal(err)
	}
	signal(c.t, c.kubelet, syscall.SIGCONT)
	resized := false
	for deadline := time.Now().Add(node.ScaleTimeout(10 * time.Second)); !resized && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		resized = read("cpu.weight") != before
	}
	v.awaitPIDsMax("0")
	time.Sleep(restartTime)
	if got := read("cgroup.max.descendants"); got != "0" {
		c.t.Errorf("cgroup.max.descendants = %s after a resize; want 0", got)
	}
	signal(c.t, c.kube, syscall.SIGCONT)
	v.check()
	c.t.Logf("%s: resized while fenced: %t", name, resized)
	return resized
}

// awaitPIDsMax waits until evictd has written its limit again.
func (v *victim) awaitPIDsMax(want string) {
	v.c.t.Helper()
	file := filepath.Join(v.c.podCgroup("pids", &v.pod), "pids.max")
	v.c.until("pids.max of "+v.w.name, func() bool {
		got, err := os.ReadFile(file)
		return err == nil && strings.TrimSpace(string(got)) == want
	})
}

func systemctl(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("systemctl", args...).CombinedOutput(); err != nil {
		t.Fatalf("systemctl %s: %v: %s", strings.Join(args, " "), err, out)
	}
}
