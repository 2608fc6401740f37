package pods

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri/critest"
)

func TestGuard(t *testing.T) {
	n := newNode(t, true)
	n.process(70, 1, "kubelet")
	n.process(60, shim, "pause")
	a := n.addPod(critest.Pod{PID: 60, Containers: []critest.Container{{Name: "a", PID: 100}, {Name: "b", PID: 101}}})
	// A process in the container with the name of a shim.
	n.process(102, 100, "containerd-shim")
	n.cgroup(n.path(a, a.Containers[0]), 100<<20, 60<<20, 100, 102)

	i := n.inventory()
	if diff := cmp.Diff(&evict.Guard{Protected: map[int]string{1: "pid 1", os.Getpid(): "evictd"}, Inits: map[int]string{}, StartTimes: map[int]uint64{}}, i.Guard()); diff != "" {
		t.Errorf("Guard() before the first list (-want +got):\n%s", diff)
	}
	if err := i.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	got := i.Guard()
	// The process of the runtime is the test itself.
	want := map[int]string{1: "pid 1", os.Getpid(): "evictd", 70: "kubelet /usr/bin/kubelet (pid 70)"}
	if !strings.HasPrefix(got.Protected[shim], "the shim of container ") {
		t.Errorf("Protected[%d] = %q; want the shim", shim, got.Protected[shim])
	}
	delete(got.Protected, shim)
	if diff := cmp.Diff(want, got.Protected); diff != "" {
		t.Errorf("Protected (-want +got):\n%s", diff)
	}
	inits := map[int]string{60: a.ID, 100: a.Containers[0].ID, 101: a.Containers[1].ID}
	if diff := cmp.Diff(inits, got.Inits); diff != "" {
		t.Errorf("Inits (-want +got):\n%s", diff)
	}

	// A pid and its start identify a process.
	started := map[int]uint64{60: 1060, 70: 1070, 100: 1100, 101: 1101, shim: 1000 + shim}
	delete(got.StartTimes, os.Getpid()) // the process of the runtime is the test itself
	if diff := cmp.Diff(started, got.StartTimes); diff != "" {
		t.Errorf("StartTimes (-want +got):\n%s", diff)
	}
	if !got.Reused(70, func(int) uint64 { return 4711 }) {
		t.Error("Reused() of a pid with another start = false; want true")
	}

	n.runtime.RemovePod(a.ID)
	if err := i.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := i.Guard(); len(got.Inits) != 0 || got.Protected[shim] != "" {
		t.Errorf("Guard() after the pod was removed = %v; want none of its processes", got)
	}
}

func TestGuardHasRuntime(t *testing.T) {
	i := New(Options{Runtime: &fakeRuntime{}})
	i.runtime.list.PID = 4711
	if got := i.guard(nil, nil).Protected[4711]; got != "the container runtime (fake)" {
		t.Errorf("Protected[4711] = %q; want the container runtime", got)
	}
	// The peer of a socket that systemd has created is pid 1.
	i.runtime.list.PID = 1
	if got := i.guard(nil, nil).Protected[1]; got != "pid 1" {
		t.Errorf("Protected[1] = %q; want pid 1", got)
	}
}

func TestSystemCgroups(t *testing.T) {
	for _, v2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("v2 %t", v2), func(t *testing.T) {
			n := newNode(t, v2)
			p := n.addPod(critest.Pod{UID: "u1", CgroupParent: critest.NoCgroupParent, Containers: []critest.Container{{PID: 100}}})
			n.cgroup("/k8s.io", 100<<20, 60<<20)
			n.cgroup("/kubepods", 2<<30, 2<<30)
			n.cgroup("/kubepods/burstable", 2<<30, 2<<30)
			n.cgroup("/system.slice", 3<<30, 3<<30)
			n.cgroup("/system.slice/db.service", 1<<30, 1<<30, 80)
			n.cgroup("/system.slice/big.service", 1500<<20, 1500<<20, 81)
			n.cgroup("/user.slice", 10<<20, 0)
			got := n.synced().SystemCgroups(3)
			want := []evict.CgroupUsage{
				// The root's own usage is the rest without its children.
				{Cgroup: "/", Memory: 7<<30 - 2<<30 - 3<<30 - 80<<20 - 5<<20},
				{Cgroup: "/system.slice/big.service", Memory: 1500 << 20},
				{Cgroup: "/system.slice/db.service", Memory: 1 << 30},
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("SystemCgroups(3) (-want +got):\n%s", diff)
			}
			for _, o := range n.synced().SystemCgroups(100) {
				if o.Cgroup == n.path(p, p.Containers[0]) || strings.HasPrefix(o.Cgroup, "/kubepods") {
					t.Errorf("SystemCgroups(100) lists %s, which belongs to the pods", o.Cgroup)
				}
			}
		})
	}
}

func TestForeignContainers(t *testing.T) {
	const id = "4f1f7f0a5e0b6a1f0c6ba3a0f0a0a6e34f1f7f0a5e0b6a1f0c6ba3a0f0a0a6e3"
	n := newNode(t, true)
	n.addPod(critest.Pod{CgroupParent: critest.NoCgroupParent, Containers: []critest.Container{{PID: 100}}})
	n.link(100, "ns/pid", "pid:[4026532000]")
	n.cgroup("/k8s.io", 100<<20, 60<<20, 100)
	n.process(80, 1, "dockerd")
	n.process(81, 1, "postgres\x1b[2J")
	n.process(82, 81, "worker")
	n.process(83, 1, "jail")
	n.process(84, 1, "sshd")
	n.link(83, "ns/pid", "pid:[4026532001]")
	n.cgroup("/docker", 1<<30, 1<<30, 81, 82)
	n.cgroup("/docker/"+id, 1<<30, 1<<30, 81, 82)
	n.cgroup("/docker/"+id+"/below", 1<<20, 1<<20, 82)
	n.cgroup("/docker/"+strings.Repeat("a", 64), 1<<20, 1<<20) // empty
	n.cgroup("/system.slice", 1<<20, 1<<20, 80, 83, 84)
	n.cgroup("/system.slice/docker.service", 1<<20, 1<<20, 80)
	n.cgroup("/system.slice/jail.service", 3<<20, 2<<20, 83)
	n.cgroup("/system.slice/ssh.service", 1<<20, 1<<20, 84)
	n.cgroup("/", 8<<30, 6<<30, 80, 81, 82, 83, 84, 100)

	if got := n.inventory().ForeignContainers(); got != nil {
		t.Errorf("ForeignContainers() before the first list = %+v; want nil", got)
	}
	want := []ForeignContainer{
		{Cgroup: "/docker/" + id, Processes: 2, Memory: new(int64(1 << 30)), Command: "postgres?[2J"},
		{Cgroup: "/system.slice/jail.service", Processes: 1, Memory: new(int64(5 << 19)), Command: "jail"},
	}
	if diff := cmp.Diff(want, n.synced().ForeignContainers()); diff != "" {
		t.Errorf("ForeignContainers() (-want +got):\n%s", diff)
	}
}
