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
)

// What may be killed directly, and why not.
func TestProof(t *testing.T) {
	const id, other = "c0ffee", "bad1dea"
	for _, tt := range []struct {
		name string
		pod  critest.Pod
		// besides changes the node after the pod is there.
		besides  func(n *node)
		unproven string // "" where it is proven
		measured bool
		spared   string
	}{
		{name: "its own", pod: critest.Pod{}, measured: true},
		{name: "a process below it",
			besides: func(n *node) {
				at := "/kubepods/besteffort/podu1/" + id
				n.cgroup(at, 100<<20, 60<<20)
				n.cgroup(at+"/init.scope", 1<<20, 1<<20, 100)
			}, measured: true},
		{name: "a runtime handler, but its own all the same", pod: critest.Pod{RuntimeHandler: "crun"}, measured: true},
		{name: "no such cgroup", pod: critest.Pod{Containers: []critest.Container{{ID: id, PID: critest.NoProcess}}},
			unproven: "cgroup is gone"},
		{name: "a virtual machine", pod: critest.Pod{RuntimeHandler: "kata", Containers: []critest.Container{{ID: id, PID: critest.NoProcess}}},
			besides:  func(n *node) { n.cgroup("/kubepods/besteffort/podu1/"+id, 1<<20, 0) },
			unproven: "is not in cgroup"},
		{name: "the process is elsewhere",
			besides:  func(n *node) { n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20, 101) },
			unproven: "its first process, 100, is not in cgroup"},
		{name: "the process has gone", besides: func(n *node) {
			if err := os.Remove(n.proc + "/100/stat"); err != nil {
				n.t.Fatal(err)
			}
		}, unproven: "process 100", measured: true},
		{name: "the pod's parent", pod: critest.Pod{Containers: []critest.Container{{ID: id, PID: 100, CgroupsPath: "/kubepods/besteffort/podu1"}}},
			unproven: "also holds"},
		{name: "the class's", pod: critest.Pod{Containers: []critest.Container{{ID: id, PID: 100, CgroupsPath: "/kubepods/besteffort"}}},
			unproven: "also holds"},
		{name: "of another name", pod: critest.Pod{Containers: []critest.Container{{ID: id, PID: 100, CgroupsPath: "/user.slice"}}},
			unproven: "not named after the container", measured: true},
		{name: "shared by two", pod: critest.Pod{Containers: []critest.Container{
			{ID: id, PID: 100, CgroupsPath: "/shared/" + id + "-" + other}, {ID: other, Name: "b", PID: 101, CgroupsPath: "/shared/" + id + "-" + other},
		}}, besides: func(n *node) { n.cgroup("/shared/"+id+"-"+other, 1<<20, 0, 100, 101) },
			unproven: "also holds " + other},
		{name: "above another", pod: critest.Pod{Containers: []critest.Container{
			{ID: id, PID: 100, CgroupsPath: "/own/" + id}, {ID: other, Name: "b", PID: 101, CgroupsPath: "/own/" + id + "/" + other},
		}}, unproven: "also holds " + other},
		{name: "above a container that is not started yet", pod: critest.Pod{Containers: []critest.Container{
			{ID: id, PID: 100, CgroupsPath: "/own/" + id}, {ID: other, Name: "b", State: cri.StateCreated, CgroupsPath: "/own/" + id + "/" + other},
		}}, unproven: "also holds " + other},
		{name: "above a sandbox", pod: critest.Pod{ID: "5a4d", CgroupParent: "/own/" + id, Containers: []critest.Container{{ID: id, PID: 100, CgroupsPath: "/own/" + id}}},
			unproven: "also holds 5a4d"},
		{name: "all in one parent, each its own", pod: critest.Pod{CgroupParent: critest.NoCgroupParent}, measured: true},
		{name: "the root", pod: critest.Pod{Containers: []critest.Container{{ID: id, PID: critest.NoProcess, CgroupsPath: "/"}}},
			unproven: "is the root cgroup"},
		{name: "relative", pod: critest.Pod{Containers: []critest.Container{{ID: id, PID: critest.NoProcess, CgroupsPath: "../" + id}}},
			unproven: "neither absolute nor"},
		{name: "outside", pod: critest.Pod{Containers: []critest.Container{{ID: id, PID: critest.NoProcess, CgroupsPath: "/a/../../" + id}}},
			unproven: "not a clean path"},
		{name: "a process of two", pod: critest.Pod{Containers: []critest.Container{
			{ID: id, PID: 100}, {ID: other, Name: "b", PID: 100},
		}}, unproven: "process 100 for another container too", measured: true},
		{name: "is evictd's own", besides: func(n *node) {
			n.process(os.Getpid(), 100, "evictd")
			n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20, 100, os.Getpid())
		}, unproven: "holds", measured: true, spared: "holds"},
		{name: "evictd was moved into it", besides: func(n *node) {
			n.process(os.Getpid(), 1, "evictd")
			n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20, 100, os.Getpid())
		}, measured: true},
		{name: "evictd was moved into it, and its first process away", besides: func(n *node) {
			n.process(os.Getpid(), 1, "evictd")
			n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20, 101, os.Getpid())
		}, unproven: "is not in cgroup", spared: "holds"},
		{name: "holds pid 1", besides: func(n *node) {
			n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20, 1, 100)
		}, unproven: "holds pid 1", measured: true, spared: "holds pid 1"},
		{name: "its shim was moved into it", besides: func(n *node) {
			n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20, shim, 100)
		}, measured: true},
		{name: "the runtime names a child of its first process", besides: func(n *node) {
			n.process(51, shim, "init")
			n.process(100, 51, "child")
			n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20, 51, 100)
		}, unproven: "holds the parent of its first process, 51", measured: true},
		{name: "a kubelet was moved into it", besides: func(n *node) {
			n.process(70, 1, "kubelet")
			n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20, 70, 100)
		}, measured: true},
		{name: "started a kubelet", besides: func(n *node) {
			n.process(70, 100, "kubelet")
			n.cgroup("/kubepods/besteffort/podu1/"+id, 100<<20, 60<<20, 70, 100)
		}, unproven: "holds kubelet", measured: true, spared: "holds kubelet /usr/bin/kubelet (pid 70)"},
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
				if tt.besides != nil {
					tt.besides(n)
				}
				i := n.synced()
				s := i.Measure(time.Now())
				var got evict.ContainerHandle
				for _, c := range s.Handles["u1"].Containers {
					if c.ID == id {
						got = c
					}
				}
				if (got.Unproven == "") != (tt.unproven == "") || !strings.Contains(got.Unproven, tt.unproven) {
					t.Errorf("unproven = %q; want %q", got.Unproven, tt.unproven)
				}
				if (got.Cgroup == "") != (tt.unproven != "") || (got.CgroupID == 0) != (tt.unproven != "") {
					t.Errorf("cgroup = %q, id %d; want them exactly where it is proven", got.Cgroup, got.CgroupID)
				}
				var about ContainerAbout
				for _, c := range i.Describe("u1").Containers {
					if c.ID == id {
						about = c
					}
				}
				if (about.Unmeasured == "") != tt.measured {
					t.Errorf("unmeasured = %q; want measured %t", about.Unmeasured, tt.measured)
				}
				if got := s.Pods[0].Spared; (got == "") != (tt.spared == "") || !strings.Contains(got, tt.spared) {
					t.Errorf("spared = %q; want %q", got, tt.spared)
				}
			})
		}
	}
}

// What cri-dockerd tells is enough to measure, not to kill directly.
func TestNoCgroupTold(t *testing.T) {
	n := newNode(t, false)
	n.runtime.Imitate(critest.CRIDockerd)
	p := n.addPod(critest.Pod{CgroupParent: "/kubepods/burstable/podu1", UID: "u1", Containers: []critest.Container{{PID: 100}}})
	n.member(100, n.path(p, p.Containers[0])+"/init.scope")
	s := n.synced().Measure(time.Now())
	pod := s.Pods[0]
	if !pod.HasStats || pod.Usage.Freeable != 60<<20 || pod.QoSClass() != "Burstable" {
		t.Errorf("stats %t, usage %+v, QoS %s; want 60Mi freeable of a Burstable pod", pod.HasStats, pod.Usage, pod.QoSClass())
	}
	if c := s.Handles["u1"].Containers[0]; c.Unproven != "the runtime names no cgroup" || c.Cgroup != "" {
		t.Errorf("container = %+v; want it unproven", c)
	}
}

// A proof does not outlive its grounds.
func TestProofIsTakenBack(t *testing.T) {
	n := newNode(t, true)
	p := n.addPod(critest.Pod{UID: "u1", Containers: []critest.Container{{ID: "c0ffee", PID: 100}}})
	i := n.synced()
	proven := func() string { return i.Measure(time.Now()).Handles["u1"].Containers[0].Unproven }
	if got := proven(); got != "" {
		t.Fatalf("unproven = %q; want it proven", got)
	}
	n.addPod(critest.Pod{Containers: []critest.Container{{PID: 101, CgroupsPath: n.path(p, p.Containers[0]) + "/below"}}})
	i.Sync(context.Background())
	if got := proven(); !strings.Contains(got, "also holds") {
		t.Errorf("unproven after another container moved in = %q; want it to be", got)
	}
}

// CRI-O's names, and a cgroup that is there only after a while.
func TestProofComesLater(t *testing.T) {
	n := newNode(t, true)
	n.runtime.Imitate(critest.CRIO)
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
		t.Errorf("stats %t, unproven %q; want both good", s.Pods[0].HasStats, c.Unproven)
	}
}

// A virtual machine's memory is the pod's, if not a container's.
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

// Another cgroup that takes a path is not the old one.
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
