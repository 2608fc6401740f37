package node

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// abandonEnv is the environment variable with a directory in which this test binary starts a node, with pods that are
// hard to remove, and waits to be killed.
const abandonEnv = "NODE_TEST_ABANDON_IN"

func TestMain(m *testing.M) {
	if root := os.Getenv(chrootEnv); root != "" {
		fmt.Println(enterChroot(root))
		os.Exit(1)
	}
	if dir := os.Getenv(abandonEnv); dir != "" {
		fmt.Println(abandon(context.Background(), dir))
		select {}
	}
	os.Exit(m.Run())
}

// abandon starts the node and its pods and returns "ready" or the text of an error.
func abandon(ctx context.Context, dir string) string {
	n, err := start(ctx, Options{Dir: dir}) // the test has the lock
	if err != nil {
		return err.Error()
	}
	volume, err := n.Volume("memory", 8<<20)
	if err != nil {
		return err.Error()
	}
	for _, spec := range []PodSpec{
		{Name: "forks", HostPID: true, Containers: []ContainerSpec{{
			Args: []string{"forks", "-n", "4", "-relay", "1ms", "-ignore-term"},
		}}},
		{Name: "tmpfs", Containers: []ContainerSpec{{
			Args:   []string{"tmpfs", "-dir", "/volume", "-bytes", "1048576"},
			Mounts: []Mount{{Host: volume, Container: "/volume"}},
		}}},
		{Name: "outside", CgroupParent: NoCgroupParent, Containers: []ContainerSpec{{MemoryLimit: 64 << 20}}},
		{Name: "frozen"},
	} {
		if spec.Containers == nil {
			spec.Containers = []ContainerSpec{{}}
		}
		if spec.CgroupParent == NoCgroupParent && n.Driver() == Systemd {
			spec.CgroupParent = "" // the systemd driver needs a slice
		}
		pod, err := n.RunPod(ctx, spec)
		if err != nil {
			return err.Error()
		}
		if spec.Name != "frozen" {
			continue
		}
		if err := freeze(n.tree, pod.Containers[0].Cgroup); err != nil {
			return err.Error()
		}
		if n.Driver() == Systemd {
			failScope(pod.Cgroup)
		}
	}
	n.KillRuntime()
	return "ready"
}

// failScope leaves a failed scope in a pod's slice, which then stays loaded. systemd kills its process after a second,
// so systemd-run fails.
func failScope(slice string) {
	_, _ = systemd("systemd-run", "--quiet", "--scope", "--slice="+filepath.Base(slice), "--property=RuntimeMaxSec=1s", "sleep", "60")
}

func freeze(t tree, cgroup string) error {
	h, err := t.withController("freezer")
	if err != nil {
		return os.WriteFile(t[0].path(cgroup, "cgroup.freeze"), []byte("1"), 0)
	}
	return os.WriteFile(h.path(cgroup, "freezer.state"), []byte("FROZEN"), 0)
}

// lock acquires the machine's lock for this test, so that no other process sweeps the node that it abandons.
func lock(t *testing.T) {
	t.Helper()
	if err := Check(""); err != nil {
		t.Skipf("needs %v", err)
	}
	lock, err := lockMachine(t.Context(), func() { t.Log("waiting for another node to end") })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Close() })
}

// abandoned starts a node in a child process, kills that process and containerd, and returns the node's record.
func abandoned(t *testing.T, dir string) record {
	t.Helper()
	lock(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), abandonEnv+"="+dir)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sweepAbandoned(); err != nil {
			t.Error(err)
		}
	})
	firstLine, _ := bufio.NewReader(stdout).ReadString('\n')
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if strings.TrimSpace(firstLine) != "ready" {
		t.Fatalf("first line of the process that abandons a node = %q; want ready", firstLine)
	}
	all, err := records()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(r record) bool { return r.Dir == dir })
	if i < 0 {
		t.Fatalf("no record of the node in %s", dir)
	}
	return all[i]
}

func TestSweep(t *testing.T) {
	dir := t.TempDir()
	r := abandoned(t, dir)
	outside, sockets := r.cgroups(), r.sockets()
	want := 3 // the root, and those of the sandbox and the container without a cgroup parent
	if r.Driver == Systemd {
		want = 2 // the root and the slice
	}
	if len(outside) != want {
		t.Errorf("cgroups of the node = %q; want %d", outside, want)
	}
	if len(sockets) != 4*2 { // a pod has one shim and two bundles, each with the shim's address
		t.Errorf("shim sockets = %q; want one for each of 8 bundles", sockets)
	}
	found := strings.Join(r.leftovers(), "\n")
	wanted := []string{"process ", "/hog forks", "containerd-shim", "cgroup ", dir + "/volumes/memory", "record "}
	if r.Driver == Systemd {
		wanted = append(wanted, ".scope failed ")
	}
	for _, want := range wanted {
		if !strings.Contains(found, want) {
			t.Errorf("leftovers of the abandoned node lack %q:\n%s", want, found)
		}
	}

	if err := sweepAbandoned(); err != nil {
		t.Fatal(err)
	}
	if left := r.leftovers(); len(left) > 0 {
		t.Errorf("leftovers after the sweep:\n%s", strings.Join(left, "\n"))
	}
	tree, err := mountedTree()
	if err != nil {
		t.Fatal(err)
	}
	for _, cgroup := range outside {
		if dirs := tree.dirs(cgroup); len(dirs) > 0 {
			t.Errorf("cgroups after the sweep: %q", dirs)
		}
	}
	for _, socket := range sockets {
		if _, err := os.Lstat(socket); err == nil {
			t.Errorf("after the sweep %s exists", socket)
		}
	}
	if err := sweepAbandoned(); err != nil {
		t.Errorf("second sweep = %v; want nil", err)
	}
}

func TestLiveNodeIsNotAbandoned(t *testing.T) {
	lock(t)
	r, err := newRecord(record{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if r.abandoned() {
		t.Error("abandoned() = true for a record that this process has locked")
	}
	if err := r.file.Close(); err != nil {
		t.Fatal(err)
	}
	if !r.abandoned() {
		t.Error("abandoned() = false for a record that is not locked")
	}
	if err := r.removeFile(); err != nil {
		t.Fatal(err)
	}
	if r.abandoned() {
		t.Error("abandoned() = true for a record that does not exist")
	}
}
