package native_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/evictd/evictd/tests/node"
)

// containerProfile is containerd's AppArmor profile for containers.
const containerProfile = "cri-containerd.apparmor.d"

// profileOf returns the AppArmor profile of a process.
func profileOf(t *testing.T, pid int) string {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/attr/current", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(content))
}

// TestAppArmor: a pod that containerd confines is killed as any other. An evictd that is confined by the same profile
// kills pods, too, but has no lane psi: the profile refuses to write below /proc. So the manifests have Unconfined.
func TestAppArmor(t *testing.T) {
	if enabled, err := os.ReadFile("/sys/module/apparmor/parameters/enabled"); err != nil || strings.TrimSpace(string(enabled)) != "Y" {
		t.Skip("needs a kernel with AppArmor")
	}
	if _, err := exec.LookPath("aa-exec"); err != nil {
		t.Skip("needs the package apparmor")
	}
	// evicts evicts a pod with a profile by an evictd that was started in another one.
	evicts := func(t *testing.T, o node.Options, podProfile, profile string) *daemon {
		t.Helper()
		o.MemoryLimit = gibibyte
		n := startNodeWith(t, o)
		failOnKernelOOM(t, n)
		hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(640 * mebibyte))})
		if got := profileOf(t, hog.procs[1].pid); got != podProfile {
			t.Fatalf("profile of the container = %q; want %q", got, podProfile)
		}
		d := newDaemon(t, n, hardThreshold("512Mi"))
		d.profile = profile
		d.start()
		d.waitPods(1)
		hog.grow()
		hog.mustDie()
		rec := d.waitRecord(hog)
		checkKilled(t, &rec, hog)
		return d
	}
	const confined = containerProfile + " (enforce)"
	t.Run("confined pod", func(t *testing.T) { evicts(t, node.Options{AppArmor: true}, confined, "") })
	// The kernel has the profile since then.
	t.Run("confined evictd", func(t *testing.T) {
		d := evicts(t, node.Options{}, "unconfined", containerProfile)
		if got := profileOf(t, d.cmd.Process.Pid); got != confined {
			t.Errorf("profile of evictd = %q; want %q", got, confined)
		}
		eventually(t, "lane psi", func() bool {
			return strings.Contains(d.log.String(), "lane=psi why=\"arm memory pressure trigger: open /proc/pressure/memory: permission denied")
		})
	})
}
