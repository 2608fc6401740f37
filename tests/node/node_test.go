package node_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/hog/stamp"
	"github.com/evictd/evictd/tests/node"
)

const mebibyte = 1 << 20

// start starts a node and closes it at the end of the test, which fails if anything of the node remains.
func start(t *testing.T) *node.Node {
	t.Helper()
	if err := node.Check(""); err != nil {
		t.Skipf("needs %v", err)
	}
	n, err := node.Start(t.Context(), node.Options{Dir: t.TempDir(), Log: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if err := n.Close(); err != nil {
			t.Errorf("second Close() = %v; want nil", err)
		}
		noLeftovers(t, n)
	})
	return n
}

func noLeftovers(t *testing.T, n *node.Node) {
	t.Helper()
	if left := n.Leftovers(); len(left) > 0 {
		t.Errorf("Leftovers() = %d:\n%s", len(left), strings.Join(left, "\n"))
	}
}

func hold(bytes string) []node.ContainerSpec {
	return []node.ContainerSpec{{Args: []string{"hold", "-bytes", bytes}}}
}

func run(t *testing.T, n *node.Node, spec node.PodSpec) node.Pod {
	t.Helper()
	pod, err := n.RunPod(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// eventually polls until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	timeout := node.ScaleTimeout(20 * time.Second)
	for end := time.Now().Add(timeout); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %v: no %s", timeout, what)
		}
	}
}

func uses(t *testing.T, n *node.Node, cgroup string, bytes int64) func() bool {
	return func() bool {
		usage, err := n.MemoryUsage(cgroup)
		if err != nil {
			t.Fatal(err)
		}
		return usage >= bytes
	}
}

func TestPodsOfEachClass(t *testing.T) {
	n := start(t)
	guaranteed, burstable := hold("20971520"), hold("31457280")
	guaranteed[0].MemoryLimit = 64 * mebibyte
	burstable[0].MemoryRequest = 16 * mebibyte
	for _, tt := range []struct {
		spec   node.PodSpec
		cgroup map[node.Driver]string // % is the private root
		usage  int64
	}{
		{node.PodSpec{Name: "guaranteed", UID: "u-1", Containers: guaranteed}, map[node.Driver]string{
			node.Cgroupfs: "/%/kubepods/podu-1",
			node.Systemd:  "/%.slice/%-kubepods.slice/%-kubepods-podu_1.slice",
		}, 20 * mebibyte},
		{node.PodSpec{Name: "burstable", UID: "u-2", Containers: burstable}, map[node.Driver]string{
			node.Cgroupfs: "/%/kubepods/burstable/podu-2",
			node.Systemd:  "/%.slice/%-kubepods.slice/%-kubepods-burstable.slice/%-kubepods-burstable-podu_2.slice",
		}, 30 * mebibyte},
		{node.PodSpec{Name: "besteffort", UID: "u-3", Containers: hold("41943040")}, map[node.Driver]string{
			node.Cgroupfs: "/%/kubepods/besteffort/podu-3",
			node.Systemd:  "/%.slice/%-kubepods.slice/%-kubepods-besteffort.slice/%-kubepods-besteffort-podu_3.slice",
		}, 40 * mebibyte},
	} {
		pod := run(t, n, tt.spec)
		root, container := strings.TrimPrefix(n.CgroupRoot(), "/"), "%"
		if n.Driver() == node.Systemd {
			root, container = strings.ReplaceAll(root, "-", "_"), "cri-containerd-%.scope"
		}
		if want := strings.ReplaceAll(tt.cgroup[n.Driver()], "%", root); pod.Cgroup != want {
			t.Errorf("pod %s: cgroup = %s; want %s", pod.Name, pod.Cgroup, want)
		}
		c := pod.Containers[0]
		if want := pod.Cgroup + "/" + strings.ReplaceAll(container, "%", c.ID); c.Cgroup != want {
			t.Errorf("container of %s: cgroup = %s; want %s", pod.Name, c.Cgroup, want)
		}
		if !pod.Ready || !c.Running || c.PID == 0 || pod.PID == 0 {
			t.Errorf("pod %s = %+v; want it ready with pids", pod.Name, pod)
		}
		eventually(t, "memory in "+c.Cgroup, uses(t, n, c.Cgroup, tt.usage))
	}

	before, err := n.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	old := n.RuntimePID()
	if err := n.RestartRuntime(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n.RuntimePID() == old {
		t.Errorf("RuntimePID() after RestartRuntime = %d; want a new process", old)
	}
	after, err := n.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := describe(after), describe(before); !slices.Equal(got, want) {
		t.Errorf("pods after a restart = %q; want %q", got, want)
	}
	for _, pod := range after {
		if pod.Name == "guaranteed" {
			continue // stays for Close
		}
		if err := n.RemovePod(t.Context(), pod); err != nil {
			t.Error(err)
		}
		if _, err := n.MemoryUsage(pod.Cgroup); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("cgroup of the removed pod %s: %v; want it removed", pod.Name, err)
		}
	}
}

func describe(pods []node.Pod) []string {
	var all []string
	for _, p := range pods {
		all = append(all, strings.Join([]string{p.Name, p.UID, p.Cgroup, p.Containers[0].ID, p.Containers[0].Cgroup}, " "))
	}
	slices.Sort(all)
	return all
}

func TestHogInAPodWritesStamps(t *testing.T) {
	n := start(t)
	volume, err := n.Volume("stamps", mebibyte)
	if err != nil {
		t.Fatal(err)
	}
	pod := run(t, n, node.PodSpec{Name: "hog", Containers: []node.ContainerSpec{{
		Args:   []string{"grow", "-bytes", "67108864", "-delay", "1h", "-stamp", "/stamps/hog"},
		Mounts: []node.Mount{{Host: volume, Container: "/stamps"}},
	}}})
	before := stamp.Now()
	var times stamp.Times
	eventually(t, "64 MiB", func() bool {
		// A signal without a handler has no effect on process 1 of a PID namespace, so send it until the hog grows.
		if err := unix.Kill(pod.Containers[0].PID, unix.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		times, err = stamp.Read(filepath.Join(volume, "hog"))
		return err == nil && len(times) == 65
	})
	if after := stamp.Now(); times[0] < before || times[64] > after {
		t.Errorf("the hog grew from %v to %v; want it between %v and %v", times[0], times[64], before, after)
	}
	eventually(t, "line in the log", func() bool {
		b, err := os.ReadFile(n.ContainerLog(pod, "main"))
		return err == nil && strings.Contains(string(b), "holding 67108864 bytes")
	})
}

func TestCgroupParents(t *testing.T) {
	n := start(t)
	limited := []node.ContainerSpec{{MemoryLimit: 64 * mebibyte}}
	shared := n.ChildCgroup(n.Kubepods(), "shared")
	a := run(t, n, node.PodSpec{Name: "a", CgroupParent: shared, Containers: limited})
	b := run(t, n, node.PodSpec{Name: "b", CgroupParent: shared, Containers: limited})
	if a.Cgroup != shared || b.Cgroup != shared {
		t.Errorf("cgroups of the pods = %s and %s; want %s", a.Cgroup, b.Cgroup, shared)
	}
	if err := n.RemovePod(t.Context(), a); err != nil {
		t.Errorf("RemovePod with another pod in its cgroup = %v; want nil", err)
	}
	if err := n.RemovePod(t.Context(), a); err != nil {
		t.Errorf("second RemovePod = %v; want nil", err)
	}
	if _, err := n.MemoryUsage(b.Containers[0].Cgroup); err != nil {
		t.Errorf("the other pod's cgroup: %v", err)
	}

	if err := n.StopPod(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if pod, err := n.Pod(t.Context(), b.ID); err != nil || pod.Ready || pod.Containers[0].Running || pod.Containers[0].PID != 0 {
		t.Errorf("pod after StopPod = %+v, %v; want it not ready", pod, err)
	}

	unlimited := "needs a memory limit"
	if n.Driver() == node.Systemd {
		unlimited = "without a slice"
	} else {
		none := run(t, n, node.PodSpec{Name: "none", CgroupParent: node.NoCgroupParent, Containers: limited})
		if c := none.Containers[0]; none.Cgroup != "" || c.Cgroup != "/k8s.io/"+c.ID {
			t.Errorf("cgroups without parent = %q and %q; want none and the runtime's own", none.Cgroup, c.Cgroup)
		}
	}
	for parent, want := range map[string]string{
		"/kubepods/pod1":                                 "is not below",
		n.Kubepods() + "/../../x":                        "is not below",
		n.ChildCgroup(path.Dir(n.Kubepods()), "outside"): "needs a memory limit",
		node.NoCgroupParent:                              unlimited,
	} {
		_, err := n.RunPod(t.Context(), node.PodSpec{Name: "refused", CgroupParent: parent, Containers: hold("1")})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("RunPod with cgroup parent %s = %v; want an error with %q", parent, err, want)
		}
	}
}

func TestFailedPodLeavesNothing(t *testing.T) {
	n := start(t)
	before := n.Leftovers()
	spec := node.PodSpec{Name: "bad", UID: "bad", Containers: []node.ContainerSpec{
		{Name: "good"},
		{Name: "bad", Mounts: []node.Mount{{Host: filepath.Join(n.Dir(), "containerd.toml"), Container: "/hog/file"}}},
	}}
	if pod, err := n.RunPod(t.Context(), spec); err == nil {
		t.Fatalf("RunPod with an impossible mount = %+v; want an error", pod)
	}
	pods, err := n.Pods(t.Context())
	if err != nil || len(pods) > 0 {
		t.Errorf("Pods() = %+v, %v; want none", pods, err)
	}
	var left []string
	for _, l := range n.Leftovers() {
		if !slices.Contains(before, l) && (strings.HasPrefix(l, "cgroup ") || strings.HasPrefix(l, "mount ")) {
			left = append(left, l)
		}
	}
	if len(left) > 0 {
		t.Errorf("the failed pod left:\n%s", strings.Join(left, "\n"))
	}
}

func TestSharedMemorySize(t *testing.T) {
	n := start(t)
	const size = 96 * mebibyte
	pod := run(t, n, node.PodSpec{Name: "shm", ShmBytes: 128 * mebibyte, Containers: []node.ContainerSpec{{
		Args: []string{"tmpfs", "-bytes", "100663296"},
	}}})
	eventually(t, "96 MiB in /dev/shm", uses(t, n, pod.Containers[0].Cgroup, size))
}

func TestOneNodeAtATime(t *testing.T) {
	n := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var log strings.Builder
	if second, err := node.Start(ctx, node.Options{Dir: t.TempDir(), Log: &log}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second Start = %+v, %v; want %v", second, err, context.DeadlineExceeded)
	}
	if !strings.Contains(log.String(), "waiting for another node") {
		t.Errorf("log of the second Start = %q; want \"waiting for another node\" in it", log.String())
	}
	if n.RuntimePID() == 0 {
		t.Error("the first node's containerd does not run")
	}
}

func TestCloseAfterKillRuntime(t *testing.T) {
	n := start(t)
	run(t, n, node.PodSpec{Name: "survivor", Containers: hold("1048576")})
	n.KillRuntime()
	if n.RuntimePID() != 0 {
		t.Errorf("RuntimePID() after KillRuntime = %d; want 0", n.RuntimePID())
	}
	if left := strings.Join(n.Leftovers(), "\n"); !strings.Contains(left, "/hog hold") {
		t.Errorf("after KillRuntime the pod does not run:\n%s", left)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	noLeftovers(t, n)
}
