package pods

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/cri/critest"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// box is the ID of the sandbox of pod u1.
const box = "5a9d"

// runsSandbox starts the process of the sandbox of pod u1 in its cgroup.
func runsSandbox(n *node) {
	n.process(90, shim, "pause")
	n.cgroup("/kubepods/besteffort/podu1/"+box, 1<<20, 0, 90)
}

// A cgroup is killed only if it is proven to be the container's alone.
func TestProof(t *testing.T) {
	const id, other = "c0ffee", "bad1dea"
	endProcess := func(n *node) {
		n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20)
		if err := os.RemoveAll(n.proc + "/100"); err != nil {
			n.t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		pod  critest.Pod
		// change is applied to the node after the pod was added.
		change    func(n *node)
		unproven  string // "" if proven
		measured  bool
		protected string
	}{
		{name: "own cgroup", pod: critest.Pod{}, measured: true},
		{name: "a process below it",
			change: func(n *node) {
				at := "/kubepods/besteffort/podu1/" + id
				n.cgroup(at, 100<<20, 60<<20)
				n.cgroup(at+"/init.scope", 1<<20, 1<<20, 100)
			}, measured: true},
		{name: "own cgroup with a runtime handler", pod: critest.Pod{RuntimeHandler: "crun"}, measured: true},
		{name: "no such cgroup", pod: critest.Pod{Containers: []critest.Container{{ID: id, PID: critest.UnusedPID}}},
			unproven: "cgroup is gone"},
		{name: "a virtual machine", pod: critest.Pod{RuntimeHandler: "kata", Containers: []critest.Container{{ID: id, PID: critest.UnusedPID}}},
			change:   func(n *node) { n.cgroup("/kubepods/besteffort/podu1/"+id, 1<<20, 0) },
			unproven: "is not in cgroup"},
		{name: "process in another cgroup",
			change:   func(n *node) { n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20, 101) },
			unproven: "its first process, 100, is not in cgroup"},
		{name: "process ended", change: func(n *node) {
			if err := os.Remove(n.proc + "/100/stat"); err != nil {
				n.t.Fatal(err)
			}
		}, unproven: "process 100", measured: true},
		{name: "its first process ended, and the runtime has not noticed", pod: critest.Pod{ID: box, PID: 90}, change: func(n *node) {
			runsSandbox(n)
			endProcess(n)
		}, measured: true},
		{name: "its first process is a zombie", pod: critest.Pod{ID: box, PID: 90}, change: func(n *node) {
			runsSandbox(n)
			endProcess(n)
			kerneltest.Write(n.t, n.proc, map[string]string{"100/stat": "100 (main) Z 50 1 1 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 1 0 1100 1 1 0\n"})
		}, measured: true},
		{name: "its first process is a zombie with another thread", pod: critest.Pod{ID: box, PID: 90}, change: func(n *node) {
			runsSandbox(n)
			endProcess(n)
			kerneltest.Write(n.t, n.proc, map[string]string{"100/stat": "100 (main) Z 50 1 1 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 2 0 1100 1 1 0\n"})
		}, unproven: "its first process, 100, is not in cgroup"},
		{name: "its first process ended, and the sandbox is elsewhere", pod: critest.Pod{ID: box, PID: 90}, change: func(n *node) {
			n.process(90, shim, "vmm")
			n.cgroup("/kubepods/besteffort/podu1/"+box, 1<<20, 0)
			endProcess(n)
		}, unproven: "its first process, 100, is not in cgroup"},
		{name: "its first process ended, and a kubelet runs there", pod: critest.Pod{ID: box, PID: 90}, change: func(n *node) {
			runsSandbox(n)
			endProcess(n)
			n.process(70, shim, "kubelet")
			n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20, 70)
		}, unproven: "contains kubelet", measured: true, protected: "contains kubelet /usr/bin/kubelet (pid 70)"},
		{name: "cgroup of the pod", pod: critest.Pod{Containers: []critest.Container{{ID: id, PID: 100, CgroupsPath: "/kubepods/besteffort/podu1"}}},
			unproven: "also contains"},
		{name: "cgroup of the QoS class", pod: critest.Pod{Containers: []critest.Container{{ID: id, PID: 100, CgroupsPath: "/kubepods/besteffort"}}},
			unproven: "also contains"},
		{name: "other name", pod: critest.Pod{Containers: []critest.Container{{ID: id, PID: 100, CgroupsPath: "/user.slice"}}},
			unproven: "not named after the container", measured: true},
		{name: "shared by two", pod: critest.Pod{Containers: []critest.Container{
			{ID: id, PID: 100, CgroupsPath: "/shared/" + id + "-" + other}, {ID: other, Name: "b", PID: 101, CgroupsPath: "/shared/" + id + "-" + other},
		}}, change: func(n *node) { n.cgroup("/shared/"+id+"-"+other, 1<<20, 0, 100, 101) },
			unproven: "also contains " + other},
		{name: "above another", pod: critest.Pod{Containers: []critest.Container{
			{ID: id, PID: 100, CgroupsPath: "/own/" + id}, {ID: other, Name: "b", PID: 101, CgroupsPath: "/own/" + id + "/" + other},
		}}, unproven: "also contains " + other},
		{name: "above a container that is not started yet", pod: critest.Pod{Containers: []critest.Container{
			{ID: id, PID: 100, CgroupsPath: "/own/" + id}, {ID: other, Name: "b", State: cri.StateCreated, CgroupsPath: "/own/" + id + "/" + other},
		}}, unproven: "also contains " + other},
		{name: "above a sandbox", pod: critest.Pod{ID: "5a4d", CgroupParent: "/own/" + id, Containers: []critest.Container{{ID: id, PID: 100, CgroupsPath: "/own/" + id}}},
			unproven: "also contains 5a4d"},
		{name: "same parent, own cgroups", pod: critest.Pod{CgroupParent: critest.NoCgroupParent}, measured: true},
		{name: "the root", pod: critest.Pod{Containers: []critest.Container{{ID: id, PID: critest.UnusedPID, CgroupsPath: "/"}}},
			unproven: "is the root cgroup"},
		{name: "relative", pod: critest.Pod{Containers: []critest.Container{{ID: id, PID: critest.UnusedPID, CgroupsPath: "../" + id}}},
			unproven: "neither absolute nor"},
		{name: "not clean", pod: critest.Pod{Containers: []critest.Container{{ID: id, PID: critest.UnusedPID, CgroupsPath: "/a/../../" + id}}},
			unproven: "not a clean path"},
		{name: "one process for two containers", pod: critest.Pod{Containers: []critest.Container{
			{ID: id, PID: 100}, {ID: other, Name: "b", PID: 100},
		}}, unproven: "process 100 for another container too", measured: true},
		{name: "evictd's own container", change: func(n *node) {
			n.process(os.Getpid(), 100, "evictd")
			n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20, 100, os.Getpid())
		}, unproven: "contains", measured: true, protected: "contains"},
		{name: "evictd was moved into it", change: func(n *node) {
			n.process(os.Getpid(), 1, "evictd")
			n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20, 100, os.Getpid())
		}, measured: true},
		{name: "evictd was moved into it, and its first process away", change: func(n *node) {
			n.process(os.Getpid(), 1, "evictd")
			n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20, 101, os.Getpid())
		}, unproven: "is not in cgroup", protected: "contains"},
		{name: "contains pid 1", change: func(n *node) {
			n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20, 1, 100)
		}, unproven: "contains pid 1", measured: true, protected: "contains pid 1"},
		{name: "its shim was moved into it", change: func(n *node) {
			n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20, shim, 100)
		}, measured: true},
		{name: "runtime reports a child of the first process", change: func(n *node) {
			n.process(51, shim, "init")
			n.process(100, 51, "child")
			n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20, 51, 100)
		}, unproven: "contains the parent of its first process, 51", measured: true},
		{name: "a kubelet was moved into it", change: func(n *node) {
			n.process(70, 1, "kubelet")
			n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20, 70, 100)
		}, measured: true},
		{name: "started a kubelet", change: func(n *node) {
			n.process(70, 100, "kubelet")
			n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20, 70, 100)
		}, unproven: "contains kubelet", measured: true, protected: "contains kubelet /usr/bin/kubelet (pid 70)"},
	} {
		for _, v2 := range []bool{false, true} {
			name := tt.name + " v1"
			if v2 {
				name = tt.name + " v2"
			}
			t.Run(name, func(t *testing.T) {
				n := newNode(t, v2)
				p := tt.pod
				p.UID = "u1"
				if p.Containers == nil {
					p.Containers = []critest.Container{{ID: id, PID: 100}}
				}
				p = n.addPod(p)
				if tt.change != nil {
					tt.change(n)
				}
				i := n.synced()
				s := i.Measure(time.Now())
				var got evict.RunningContainer
				for _, c := range s.Handles["u1"].Containers {
					if c.ID == id {
						got = c
					}
				}
				if (got.Unproven == "") != (tt.unproven == "") || !strings.Contains(got.Unproven, tt.unproven) {
					t.Errorf("unproven = %q; want %q", got.Unproven, tt.unproven)
				}
				if (got.Cgroup == "") != (tt.unproven != "") || (got.CgroupID == 0) != (tt.unproven != "") {
					t.Errorf("cgroup = %q, id %d; want both only if proven", got.Cgroup, got.CgroupID)
				}
				var explanation ContainerExplanation
				for _, c := range i.Describe("u1").Containers {
					if c.ID == id {
						explanation = c
					}
				}
				if (explanation.Unmeasured == "") != tt.measured {
					t.Errorf("unmeasured = %q; want measured %t", explanation.Unmeasured, tt.measured)
				}
				if got := s.Pods[0].ProtectedReason; (got == "") != (tt.protected == "") || !strings.Contains(got, tt.protected) {
					t.Errorf("protected = %q; want %q", got, tt.protected)
				}
				if got, want := s.Pods[0].Essential, tt.protected != ""; got != want {
					t.Errorf("essential = %t; want %t", got, want)
				}
			})
		}
	}
}

// The data of cri-dockerd are sufficient to measure, but not to prove a cgroup.
func TestRuntimeNamesNoCgroup(t *testing.T) {
	n := newNode(t, false)
	n.runtime.SetFlavor(critest.CRIDockerd)
	p := n.addPod(critest.Pod{CgroupParent: "/kubepods/burstable/podu1", UID: "u1", Containers: []critest.Container{{PID: 100}}})
	n.setCgroup(100, n.path(p, p.Containers[0])+"/init.scope")
	s := n.synced().Measure(time.Now())
	pod := s.Pods[0]
	if !pod.HasStats || pod.Usage.Freeable != 60<<20 || pod.QoSClass() != "Burstable" {
		t.Errorf("stats %t, usage %+v, QoS %s; want 60Mi freeable of a Burstable pod", pod.HasStats, pod.Usage, pod.QoSClass())
	}
	if c := s.Handles["u1"].Containers[0]; c.Unproven != "the runtime names no cgroup" || c.Cgroup != "" {
		t.Errorf("container = %+v; want it unproven", c)
	}
}

// A proven cgroup becomes unproven when another container is created in it.
func TestProofIsWithdrawn(t *testing.T) {
	n := newNode(t, true)
	p := n.addPod(critest.Pod{UID: "u1", Containers: []critest.Container{{ID: "c0ffee", PID: 100}}})
	i := n.synced()
	proven := func() string { return i.Measure(time.Now()).Handles["u1"].Containers[0].Unproven }
	if got := proven(); got != "" {
		t.Fatalf("unproven = %q; want it proven", got)
	}
	n.addPod(critest.Pod{Containers: []critest.Container{{PID: 101, CgroupsPath: n.path(p, p.Containers[0]) + "/below"}}})
	i.Sync(context.Background())
	if got := proven(); !strings.Contains(got, "also contains") {
		t.Errorf("unproven after another container moved in = %q; want the other container named", got)
	}
}

// A cgroup with the name of CRI-O that is created after the first list.
func TestProofLater(t *testing.T) {
	n := newNode(t, true)
	n.runtime.SetFlavor(critest.CRIO)
	n.runtime.AddPod(critest.Pod{UID: "u1", CgroupParent: "kubepods-besteffort-podu1.slice", Containers: []critest.Container{{ID: "c0ffee", PID: 100}}})
	i := n.synced()
	if pod := i.Measure(time.Now()).Pods[0]; pod.HasStats {
		t.Error("a pod without a cgroup has statistics")
	}
	n.process(100, shim, "main")
	n.cgroup("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podu1.slice/crio-c0ffee.scope", 2<<20, 1<<20, 100)
	if err := i.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	s := i.Measure(time.Now())
	if c := s.Handles["u1"].Containers[0]; !s.Pods[0].HasStats || c.Unproven != "" {
		t.Errorf("stats %t, unproven %q; want statistics and a proven cgroup", s.Pods[0].HasStats, c.Unproven)
	}
}

// The memory of a virtual machine counts for the pod, and for no container.
func TestVirtualMachine(t *testing.T) {
	n := newNode(t, true)
	p := n.runtime.AddPod(critest.Pod{UID: "u1", RuntimeHandler: "kata", PID: 60, Containers: []critest.Container{{PID: 60}}})
	n.cgroup(p.CgroupParent, 3<<30, 2<<30, 60)
	s := n.synced().Measure(time.Now())
	pod := s.Pods[0]
	if want := (evict.PodUsage{Memory: 2<<30 + 512<<20, Freeable: 2 << 30, PIDs: 2}); !pod.HasStats || pod.Usage != want {
		t.Errorf("stats %t, usage %+v; want %+v", pod.HasStats, pod.Usage, want)
	}
	if c := s.Handles["u1"].Containers[0]; c.Unproven == "" || c.Cgroup != "" {
		t.Errorf("container = %+v; want it unproven", c)
	}
}

// A container that ended before evictd's first list has neither a cgroup nor a process. While the runtime
// says that it runs, it is left out if its pod is no virtual machine.
func TestEndedBeforeFirstList(t *testing.T) {
	for _, isContainer := range []bool{true, false} {
		n := newNode(t, true)
		n.addPod(critest.Pod{ID: box, UID: "u1", PID: 90, Containers: []critest.Container{{PID: critest.UnusedPID}}})
		if isContainer {
			runsSandbox(n)
		}
		i := n.synced()
		if s := i.Measure(time.Now()); len(s.Handles["u1"].Containers) > 0 == isContainer {
			t.Errorf("sandbox with a process %t: handle %+v", isContainer, s.Handles["u1"])
		}
	}
}

// Another cgroup at the same path is not the old one.
func TestReplacedCgroup(t *testing.T) {
	n := newNode(t, false)
	p := n.addPod(critest.Pod{UID: "u1", Containers: []critest.Container{{PID: 100}}})
	i := n.synced()
	before := i.Measure(time.Now()).Handles["u1"].Containers[0].CgroupID
	at := n.memory() + n.path(p, p.Containers[0])
	if err := os.Rename(at, at+"-gone"); err != nil {
		t.Fatal(err)
	}
	n.cgroup(n.path(p, p.Containers[0]), 5<<20, 5<<20, 100)
	for range 2 {
		if err := i.Sync(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	s := i.Measure(time.Now())
	if len(s.Pods) != 0 && s.Handles["u1"].Containers[0].CgroupID == before {
		t.Error("the handle still names the cgroup that was replaced")
	}
}
