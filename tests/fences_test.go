package tests

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/podfence"
	"github.com/evictd/evictd/agent/state"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/kernel/process"
)

// TestFencesSurviveACrash: the fence of a pod whose eviction has not been reported stays across crashes of evictd. A clean
// stop lifts it.
func TestFencesSurviveACrash(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to run evictd on this host")
	}
	binary, dir := buildEvictd(t), t.TempDir()
	limit := fencePod(t, dir)
	for _, end := range []syscall.Signal{syscall.SIGKILL, syscall.SIGKILL, syscall.SIGTERM} {
		cmd := startFencing(t, binary, dir)
		wantLimit(t, limit, "0")
		if err := cmd.Process.Signal(end); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); end == syscall.SIGTERM && err != nil {
			t.Errorf("evictd ended with %v", err)
		}
	}
	wantLimit(t, limit, "max")
	if saved, err := os.ReadFile(filepath.Join(dir, "state", "state.json")); err != nil || strings.Contains(string(saved), "ORDER1") {
		t.Errorf("saved state %s, %v; want no order", saved, err)
	}
}

// fencePod makes the cgroup of a pod, fences it, and saves its order, as an evictd that has crashed. It returns the file of
// the limit.
func fencePod(t *testing.T, dir string) (limit string) {
	t.Helper()
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	root := h.Memory
	if h.Version != cgroup.V2 {
		root = h.Pids
	}
	at := kerneltest.Cgroup(t, root)
	for _, name := range []string{"kubepods", "podu1", "ctr"} {
		if h.Version == cgroup.V2 {
			if err := kerneltest.EnableControllers(root.Path(at), "pids"); err != nil {
				t.Fatal(err)
			}
		}
		at = filepath.Join(at, name)
		kerneltest.MakeCgroup(t, root.Path(at))
	}
	boot, err := process.BootID("/proc")
	if err != nil {
		t.Fatal(err)
	}
	table, _, err := podfence.Open(podfence.Options{File: filepath.Join(dir, "fences"), BootID: boot, Hierarchy: h})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	fence, err := table.Prepare("u1", []string{at})
	if err == nil {
		err = fence.Set("ORDER1", "")
	}
	if err != nil {
		t.Fatal(err)
	}
	store, err := state.Open(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	uptime, err := process.Uptime()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	order := kube.Order{ID: "ORDER1", UID: "u1", Namespace: "default", Name: "web", Stage: kube.StageEnded, Reason: evict.ReasonEvicted, Message: "a test", Decided: now}
	saved := state.Saved{Orders: []kube.SavedOrder{{Order: order, Began: now, Killed: now, Ended: true}}}
	if err := store.Save(saved, state.Clock{BootID: boot, Uptime: uptime, Now: now}); err != nil {
		t.Fatal(err)
	}
	return root.Path(filepath.Dir(at), "pids.max")
}

// startFencing runs an evictd that may set fences, without a runtime, and returns when it is ready and has saved its state.
func startFencing(t *testing.T, binary, dir string) *exec.Cmd {
	t.Helper()
	config := filepath.Join(dir, "config.yaml")
	content := "apiVersion: evictd.io/v1alpha1\nkind: AgentConfiguration\nruntimeEndpoint: none\nkube: {uid: 61119}\n"
	if err := os.WriteFile(config, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "--config", config, "--state-dir", filepath.Join(dir, "state"), "--control-socket", filepath.Join(dir, "s"),
		"--kube-socket", filepath.Join(dir, "k"), "--fence-file", filepath.Join(dir, "fences"), "--web.listen-address", "")
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	ready, log := make(chan bool, 1), &strings.Builder{}
	go func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(log, lines.Text())
			if strings.Contains(lines.Text(), "msg=ready") {
				ready <- true
			}
		}
		close(ready)
	}()
	select {
	case ok := <-ready:
		if !ok {
			t.Fatalf("evictd has ended: %s", log)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("evictd is not ready after 30s")
	}
	return cmd
}

func wantLimit(t *testing.T, file, want string) {
	t.Helper()
	if got, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(got)) != want {
		t.Errorf("%s is %q, %v; want %s", file, got, err, want)
	}
}
