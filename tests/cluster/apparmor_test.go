package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// confinedProfile is containerd's AppArmor profile for containers, as the kernel shows it.
const confinedProfile = "cri-containerd.apparmor.d (enforce)"

// missingAppArmor returns what a runtime needs to confine containers and the machine does not have.
func missingAppArmor() string {
	if enabled, err := os.ReadFile("/sys/module/apparmor/parameters/enabled"); err != nil || strings.TrimSpace(string(enabled)) != "Y" {
		return "a kernel with AppArmor"
	}
	if _, err := exec.LookPath("apparmor_parser"); err != nil {
		return "the package apparmor"
	}
	return ""
}

// TestConfinedEviction: of a pod that AppArmor confines all processes are killed, and its kubelet can't start it again
// while the API server is away: it is fenced.
func TestConfinedEviction(t *testing.T) {
	if missing := missingAppArmor(); missing != "" {
		t.Skip("needs " + missing)
	}
	if !inNamespaces(t) {
		return
	}
	c := startKubeNodeWith(t, kubeNodeOptions{appArmor: true})
	c.startEnforcing()
	w := &workload{"confined", "StatefulSet", podSpec("Always", hogContainer("main"))}
	c.create(w)
	p := c.waitRunning(w)
	for _, hog := range c.hogs(&p.Pod) {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/attr/current", hog.pid))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(string(content)); got != confinedProfile {
			t.Fatalf("profile of process %d = %q; want %q", hog.pid, got, confinedProfile)
		}
	}
	c.whilePaused(w, func(v *victim) {
		c.until("fence of "+w.name, v.isFenced)
		time.Sleep(restartTime) // the kubelet tries to start it again
	})
}
