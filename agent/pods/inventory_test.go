package pods

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/cri/critest"
	"github.com/evictd/evictd/kernel/kerneltest"
)

var quantities = cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })

// A kubelet's Burstable pod with two containers, for both cgroup drivers and versions.
//
// Complexity: checks all properties of one pod.
//
//gocyclo:ignore
func TestMeasure(t *testing.T) {
	const uid = "8f2a4b1c-0d3e-4f5a-9b6c-7d8e9f0a1b2c"
	underscored := strings.ReplaceAll(uid, "-", "_")
	for _, tt := range []struct {
		name, parent, podCgroup string
		v2                      bool
	}{
		{"v1 cgroupfs", "/kubepods/burstable/pod" + uid, "/kubepods/burstable/pod" + uid, false},
		{"v2 cgroupfs", "/kubepods/burstable/pod" + uid, "/kubepods/burstable/pod" + uid, true},
		{"v1 systemd", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + underscored + ".slice",
			"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + underscored + ".slice", false},
		{"v2 systemd", "kubepods-burstable-pod" + underscored + ".slice",
			"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + underscored + ".slice", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, tt.v2)
			young := time.Unix(1_700_000_100, 5)
			p := n.addPod(critest.Pod{
				Name: "metadata", UID: "metadata", Namespace: "metadata", CgroupParent: tt.parent, PID: 60,
				Labels: map[string]string{
					labelName: "web", labelNamespace: "shop", labelUID: uid, "app": "web", "pod-template-generation": "3",
				},
				Annotations: map[string]string{evict.ConfigSourceAnnotation: "api"},
				Created:     time.Unix(1_700_000_000, 0),
				Containers: []critest.Container{
					{Name: "main", PID: 100, OOMScoreAdj: 990, MemoryLimit: 1 << 30, Annotations: map[string]string{annotationGrace: "30"}},
					{Name: "side", PID: 101, OOMScoreAdj: 999, MemoryLimit: 64 << 20, Created: young, Annotations: map[string]string{annotationGrace: "30"}},
					{Name: "past", State: cri.StateExited},
				},
			})
			n.cgroup(tt.podCgroup, 250<<20, 120<<20, 60, 100, 101)
			i := n.synced()
			now := time.Now()
			got := i.Measure(now)

			request := int64(118_111_600) // just below 11 thousandths of 10 GiB
			want := []evict.Pod{{
				UID: uid, Namespace: "shop", Name: "web", Labels: p.Labels, Kubelet: true, QoS: evict.Burstable,
				TerminationGraceSeconds: new(int64(30)), LastStart: young.UnixNano(),
				Containers: []evict.Container{
					{Name: "main", MemoryRequestText: "about 112Mi, from oom_score_adj", Resources: evict.Resources{
						Requests: evict.Amounts{Memory: resource.NewQuantity(request, resource.BinarySI)},
						Limits:   evict.Amounts{Memory: resource.NewQuantity(1<<30, resource.BinarySI)},
					}, Usage: evict.ContainerUsage{Memory: 80 << 20}},
					{Name: "side", MemoryRequestText: "not known, its limit is 64Mi", Resources: evict.Resources{
						Requests: evict.Amounts{Memory: resource.NewQuantity(64<<20, resource.BinarySI)},
						Limits:   evict.Amounts{Memory: resource.NewQuantity(64<<20, resource.BinarySI)},
					}, Usage: evict.ContainerUsage{Memory: 80 << 20}},
				},
				HasStats: true,
				Usage:    evict.PodUsage{Memory: 185 << 20, Freeable: 120 << 20, PIDs: 6},
			}}
			// Containers are listed by ID.
			if got.Pods[0].Containers[0].Name == "side" {
				c := got.Pods[0].Containers
				c[0], c[1] = c[1], c[0]
			}
			if diff := cmp.Diff(want, got.Pods, quantities); diff != "" {
				t.Errorf("Measure().Pods (-want +got):\n%s", diff)
			}
			if !got.Taken.Equal(now) || got.Listed.IsZero() || !got.Kubelet.HasSandboxes {
				t.Errorf("Measure() = taken %v, listed %v, kubelet pods %t; want %v, a time, true", got.Taken, got.Listed, got.Kubelet.HasSandboxes, now)
			}
			h := got.Handles[uid]
			if h.SandboxID != p.ID || h.Owned || len(h.Containers) != 2 {
				t.Fatalf("handle = %+v; want sandbox %s, not owned, two containers", h, p.ID)
			}
			for _, c := range h.Containers {
				if want := map[string]int{"main": 990, "side": 999}[c.Name]; c.OOMScoreAdj == nil || *c.OOMScoreAdj != want || c.OOMScoreFrom != "the runtime" {
					t.Errorf("%s: oom_score_adj by %q = %v; want %d by the runtime", c.Name, c.OOMScoreFrom, c.OOMScoreAdj, want)
				}
				if c.Cgroup == "" || c.CgroupID == 0 || c.Unproven != "" || c.InitPID < 100 || c.InitStart != uint64(1000+c.InitPID) {
					t.Errorf("container handle = %+v; want it proven", c)
				}
			}
			explanation := i.Describe(uid)
			if !strings.Contains(explanation.RequestOrigin, "main: estimated from oom_score_adj 990: 102Mi-112Mi") || !strings.Contains(explanation.RequestOrigin, "side: limit") {
				t.Errorf("Describe().RequestOrigin = %q", explanation.RequestOrigin)
			}
		})
	}
}

// The handle has the sandbox's process with its start time, the OCI runtime, and the containers that have not
// started.
func TestHandleOfSandbox(t *testing.T) {
	n := newNode(t, true)
	p := n.addPod(critest.Pod{PID: 90, BinaryName: "/usr/bin/crun", Containers: []critest.Container{{PID: 100}, {State: cri.StateCreated}, {State: cri.StateExited}}})
	n.process(90, shim, "pause")
	h := n.synced().Measure(time.Now()).Handles[p.UID]
	if h.SandboxPID != 90 || h.SandboxStart != 1090 || h.OCIRuntime != "crun" || !slices.Equal(h.OtherContainers, []string{p.Containers[1].ID}) || len(h.Containers) != 1 {
		t.Errorf("handle = %+v; want process 90 of the sandbox, crun, and the created container", h)
	}
}

func TestMeasureFollowsUsage(t *testing.T) {
	n := newNode(t, true)
	p := n.addPod(critest.Pod{Containers: []critest.Container{{PID: 100}}})
	i := n.synced()
	if got := i.Measure(time.Now()).Pods[0].Usage; got.Freeable != 60<<20 {
		t.Errorf("freeable = %d; want 60Mi", got.Freeable)
	}
	n.cgroup(n.path(p, p.Containers[0]), 3<<30, 2<<30, 100)
	if got := i.Measure(time.Now()).Pods[0].Usage; got.Freeable != 2<<30 || got.Memory != 2<<30+512<<20 {
		t.Errorf("usage = %+v; want 2Gi freeable, 2.5Gi used", got)
	}
}

// Without a cgroup of its own, a pod's usage is the sum of its containers and sandbox.
func TestMeasureSum(t *testing.T) {
	n := newNode(t, false)
	p := n.addPod(critest.Pod{CgroupParent: critest.NoCgroupParent, Containers: []critest.Container{
		{Name: "a", PID: 100, CgroupsPath: "/k8s.io/a1", ID: "a1"}, {Name: "b", PID: 101, CgroupsPath: "/k8s.io/b1", ID: "b1"},
	}})
	n.addPod(critest.Pod{CgroupParent: critest.NoCgroupParent, Containers: []critest.Container{{PID: 102, CgroupsPath: "/k8s.io/c1", ID: "c1"}}})
	n.cgroup("/k8s.io/"+p.ID, 1<<20, 1<<20, 60)
	n.cgroup("/k8s.io", 400<<20, 200<<20)
	i := n.synced()
	for _, pod := range i.Measure(time.Now()).Pods {
		if pod.UID != p.UID {
			continue
		}
		if want := (evict.PodUsage{Memory: 161 << 20, Freeable: 120 << 20, PIDs: 6}); pod.Usage != want {
			t.Errorf("usage = %+v; want %+v", pod.Usage, want)
		}
		for _, c := range i.Measure(time.Now()).Handles[pod.UID].Containers {
			if c.Unproven != "" {
				t.Errorf("container %s: %s; want it proven", c.Name, c.Unproven)
			}
		}
	}
}

// An unreadable value is absent and not 0.
func TestAbsentIsNotZero(t *testing.T) {
	n := newNode(t, true)
	p := n.addPod(critest.Pod{Containers: []critest.Container{{Name: "good", PID: 100}, {Name: "bad", PID: 101}}})
	i := n.synced()
	bad := p.Containers[1]
	n.cgroup(n.path(p, bad), 1, 1, 101)
	kerneltest.Write(t, n.memory()+n.path(p, bad), map[string]string{"memory.stat": "anon -1\n"})
	pod := i.Measure(time.Now()).Pods[0]
	if pod.HasStats || pod.Usage != (evict.PodUsage{}) {
		t.Errorf("pod with an unreadable container: HasStats %t, usage %+v; want none", pod.HasStats, pod.Usage)
	}
	found := false
	for _, c := range i.Describe(p.UID).Containers {
		found = found || c.Name == "bad" && strings.Contains(c.Unmeasured, "memory.stat")
	}
	if !found {
		t.Errorf("Describe() = %+v; want it to say that memory.stat of bad can't be read", i.Describe(p.UID).Containers)
	}
	n.cgroup(n.path(p, bad), 1<<20, 1<<20, 101)
	if pod := i.Measure(time.Now()).Pods[0]; !pod.HasStats {
		t.Error("no statistics of a pod whose cgroups are readable again")
	}
}

func TestRunningPods(t *testing.T) {
	n := newNode(t, false)
	add := func(p critest.Pod) { n.addPod(p) }
	add(critest.Pod{Name: "runs", Containers: []critest.Container{{PID: 100}}})
	add(critest.Pod{Name: "not-ready-runs", NotReady: true, Containers: []critest.Container{{PID: 101}}})
	add(critest.Pod{Name: "empty"})
	add(critest.Pod{Name: "exited", Containers: []critest.Container{{State: cri.StateExited}}})
	add(critest.Pod{Name: "created", Containers: []critest.Container{{State: cri.StateCreated}}})
	add(critest.Pod{Name: "dead", NotReady: true, Annotations: map[string]string{evict.ConfigSourceAnnotation: "api"}})
	s := n.synced().Measure(time.Now())
	var got []string
	for _, p := range s.Pods {
		got = append(got, p.Name)
	}
	if diff := cmp.Diff([]string{"not-ready-runs", "runs"}, got); diff != "" {
		t.Errorf("running pods (-want +got):\n%s", diff)
	}
	if !s.Kubelet.HasSandboxes {
		t.Error("Kubelet.HasSandboxes = false with a dead sandbox of a kubelet; want true")
	}
}

func TestOwner(t *testing.T) {
	for _, tt := range []struct {
		name           string
		source, mirror string // annotations; "-" is none
		namespace      string
		absent         bool
		kubelet        bool
		static         bool
		protected      string
		ignored        int
	}{
		{name: "of the operator", source: "-", mirror: "-"},
		{name: "from the API", source: "api", mirror: "-", kubelet: true},
		{name: "from a file", source: "file", mirror: "-", kubelet: true, static: true},
		{name: "from a URL", source: "http", mirror: "-", kubelet: true, static: true},
		{name: "empty source", source: "", mirror: "-", kubelet: true, static: true},
		{name: "forged mirror", source: "api", mirror: "deadbeef", kubelet: true, ignored: 1},
		{name: "forged mirror, of the operator", source: "-", mirror: "deadbeef", ignored: 1},
		{name: "left behind", source: "file", mirror: "-", absent: true},
		{name: "of the cluster", source: "api", mirror: "-", namespace: "kube-system", kubelet: true, protected: "a kubelet's pod in kube-system"},
		{name: "of the operator in kube-system", source: "-", mirror: "-", namespace: "kube-system"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, false)
			a := map[string]string{}
			if tt.source != "-" {
				a[evict.ConfigSourceAnnotation] = tt.source
			}
			if tt.mirror != "-" {
				a[configMirror] = tt.mirror
			}
			p := n.addPod(critest.Pod{Namespace: tt.namespace, Annotations: a, Containers: []critest.Container{{PID: 100}}})
			i := n.synced(func(o *Options) { o.KubeletAbsent = tt.absent })
			s := i.Measure(time.Now())
			pod := s.Pods[0]
			if pod.Kubelet != tt.kubelet || pod.Static != tt.static || pod.Mirror || pod.Essential || pod.ProtectedReason != tt.protected {
				t.Errorf("pod: kubelet %t, static %t, mirror %t, essential %t, protected %q; want %t, %t, false, false, %q",
					pod.Kubelet, pod.Static, pod.Mirror, pod.Essential, pod.ProtectedReason, tt.kubelet, tt.static, tt.protected)
			}
			if got := s.Handles[p.UID].Owned; got == tt.kubelet {
				t.Errorf("owned = %t; want %t", got, !tt.kubelet)
			}
			if s.Kubelet.HasSandboxes != (tt.source != "-") {
				t.Errorf("Kubelet.HasSandboxes = %t; want %t", s.Kubelet.HasSandboxes, tt.source != "-")
			}
			if got := i.Describe(p.UID).Ignored; len(got) != tt.ignored {
				t.Errorf("ignored = %q; want %d", got, tt.ignored)
			}
		})
	}
}

// Without a kubelet, UIDs and names are any text.
func TestHostileIdentity(t *testing.T) {
	n := newNode(t, true)
	var first critest.Pod
	for k, name := range []string{"one", "two\n{}", "../../three"} {
		p := n.addPod(critest.Pod{
			Name: name, UID: "typed", Created: time.Unix(int64(1000+k), 0), CgroupParent: fmt.Sprintf("/own/%d", k),
			Labels: map[string]string{labelUID: "typed"}, Containers: []critest.Container{{PID: 100 + k}},
		})
		if k == 0 {
			first = p
		}
	}
	s := n.synced().Measure(time.Now())
	if len(s.Pods) != 3 || len(s.Handles) != 3 {
		t.Fatalf("%d pods, %d handles of three pods with one UID; want 3 and 3", len(s.Pods), len(s.Handles))
	}
	if got := s.Handles["typed"].SandboxID; got != first.ID {
		t.Errorf("the UID identifies sandbox %s; want the oldest, %s", got, first.ID)
	}
	for _, p := range s.Pods {
		if h := s.Handles[p.UID]; len(h.Containers) != 1 {
			t.Errorf("pod %q has %d containers; want 1", p.Name, len(h.Containers))
		}
	}
}

// A pod of a sandbox without an ID can't be stopped, nor told from another without a UID. It
// is left out.
func TestSandboxWithoutID(t *testing.T) {
	n := newNode(t, true)
	running := []Container{{ContainerDetail: cri.ContainerDetail{Container: cri.Container{ID: "c", State: cri.StateRunning}}}}
	known := Sandbox{SandboxDetail: cri.SandboxDetail{Sandbox: cri.Sandbox{ID: "s"}}}
	list := List{Pods: []Pod{{Name: "a", Containers: running}, {Name: "b", Sandbox: known, Containers: running}}}
	s := n.synced(func(o *Options) { o.Runtime = &fakeRuntime{list: list} }).Measure(time.Now())
	if len(s.Pods) != 1 || s.Pods[0].UID != "s" {
		t.Errorf("pods = %+v; want one, with the ID of its sandbox for a UID", s.Pods)
	}
}

// A pod without labels is named by the metadata of its sandbox.
func TestMetadataNames(t *testing.T) {
	n := newNode(t, true)
	n.addPod(critest.Pod{Name: "web", Namespace: "shop", UID: "u1", Containers: []critest.Container{{PID: 100}}})
	p := n.synced().Measure(time.Now()).Pods[0]
	if p.Key() != "shop/web" || p.UID != "u1" {
		t.Errorf("pod %s, UID %s; want shop/web, u1", p.Key(), p.UID)
	}
}
