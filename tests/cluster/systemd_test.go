package cluster

import (
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
// reloads its units and when a property of the slice is set, as the kubelet does in a resize. An evicted
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
	resize := &workload{"resize", "Deployment", podSpec("Always", hogContainer("main"))}
	c.create(resize)
	p := c.waitRunning(resize)
	signal(t, c.kube, syscall.SIGSTOP)
	v := c.evict(resize)
	systemctl(t, "set-property", "--runtime", filepath.Base(c.podCgroup("pids", &p.Pod)), "CPUWeight=50")
	v.awaitPIDsMax("0")
	time.Sleep(restartTime)
	signal(t, c.kube, syscall.SIGCONT)
	v.check()
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
