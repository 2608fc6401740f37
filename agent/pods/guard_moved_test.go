package pods

import (
	"os/exec"
	"testing"
	"time"
)

// A kubelet that is found no more because a pod has moved it into its own cgroup stays
// guarded until it ends. One that was found for a short time only may have been a
// process of a container that was not listed yet.
func TestMovedKubeletStaysGuarded(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	defer end()
	kubelet := Process{PID: cmd.Process.Pid, Executable: "/usr/bin/kubelet"}
	i := &Inventory{procfs: "/proc"}
	start := time.Now()
	guarded := func(at time.Time) bool {
		i.trustKubelets(at)
		list := i.guardedKubelets(at)
		return len(list) == 1 && list[0] == kubelet
	}
	i.kubelets = []Process{kubelet}
	if !guarded(start) {
		t.Error("a kubelet that was found is not guarded")
	}
	i.kubelets = nil
	if guarded(start.Add(time.Second)) {
		t.Error("a process that was found for a second is guarded although it is found no more")
	}
	i.kubelets = []Process{kubelet}
	i.trustKubelets(start.Add(guardedKubeletAge))
	i.kubelets = nil
	if !guarded(start.Add(guardedKubeletAge)) {
		t.Error("a kubelet that was found for a minute is not guarded after it was moved")
	}
	end()
	if list := i.guardedKubelets(start.Add(guardedKubeletAge)); len(list) != 1 {
		t.Fatalf("guarded before the next look: %v; want the kubelet", list)
	}
	if guarded(start.Add(2 * guardedKubeletAge)) {
		t.Error("a kubelet that has ended is guarded")
	}
}
