package evict

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/signal"
)

// The texts are the kubelet's, which other programs parse: to the letter.
func TestMessage(t *testing.T) {
	two := aPod("web", func(p *Pod) {
		p.Containers = []Container{
			{Name: "b", Resources: Resources{Requests: Amounts{Memory: qty("0.5Gi"), EphemeralStorage: qty("1G")}}, Usage: ContainerUsage{Memory: 700 * mi, Rootfs: 900_000_000, Logs: 200_000_000}},
			{Name: "within", Resources: Resources{Requests: Amounts{Memory: qty("700Mi"), EphemeralStorage: qty("1100M")}}, Usage: ContainerUsage{Memory: 700 * mi, Rootfs: 1_100_000_000}},
			{Name: "a", Usage: ContainerUsage{Memory: 1, Logs: 1}},
		}
		p.InitContainers = []Container{{Name: "setup", Resources: Resources{Requests: Amounts{Memory: qty("1000k")}}, Usage: ContainerUsage{Memory: 1_000_001}}}
		p.EphemeralContainers = []Container{{Name: "debug", Usage: ContainerUsage{Memory: gi, Rootfs: gi}}}
		p.Usage.Memory = 1400*mi + 1
	})
	whole := aPod("whole", using(300*mi), func(p *Pod) { p.Resources.Requests.Memory = qty("1Gi") })
	for _, tt := range []struct {
		name        string
		pod         Pod
		threshold   Threshold
		observed    signal.Observation
		want        string
		annotations map[string]string
	}{
		{"memory", two, hard(signal.MemoryAvailable, "1Gi"), signal.Observation{Available: 700 * mi},
			"The node was low on resource: memory. Threshold quantity: 1Gi, available: 700Mi. " +
				"Container b was using 700Mi, request is 512Mi, has larger consumption of memory. " +
				"Container a was using 1, request is 0, has larger consumption of memory. " +
				"Container setup was using 1000001, request is 1M, has larger consumption of memory. ",
			map[string]string{"offending_containers": "b,a,setup", "offending_containers_usage": "700Mi,1,1000001", "starved_resource": "memory"}},
		{"allocatable memory", two, hard(signal.AllocatableMemoryAvailable, "10%"), signal.Observation{Available: -1, Capacity: 10 * gi},
			// 10% is a 32-bit float, a little above a tenth
			"The node was low on resource: memory. Threshold quantity: 1073741840, available: -1. " +
				"Container b was using 700Mi, request is 512Mi, has larger consumption of memory. " +
				"Container a was using 1, request is 0, has larger consumption of memory. " +
				"Container setup was using 1000001, request is 1M, has larger consumption of memory. ",
			map[string]string{"offending_containers": "b,a,setup", "offending_containers_usage": "700Mi,1,1000001", "starved_resource": "memory"}},
		{"disk", two, hard(signal.NodeFsAvailable, "10%"), signal.Observation{Available: 9 * gi, Capacity: 100 * gi},
			"The node was low on resource: ephemeral-storage. Threshold quantity: 10737418400, available: 9Gi. " +
				"Container b was using 1100000000, request is 1G, has larger consumption of ephemeral-storage. " +
				"Container a was using 1, request is 0, has larger consumption of ephemeral-storage. ",
			map[string]string{"offending_containers": "b,a", "offending_containers_usage": "1100000000,1", "starved_resource": "ephemeral-storage"}},
		{"inodes blame nobody", two, hard(signal.ImageFsInodesFree, "5%"), signal.Observation{Available: 40_000, Capacity: 1_000_000},
			"The node was low on resource: inodes. Threshold quantity: 50000, available: 40k. ",
			map[string]string{"offending_containers": "", "offending_containers_usage": "", "starved_resource": "inodes"}},
		{"PIDs blame nobody", two, hard(signal.PIDAvailable, "1000"), signal.Observation{Available: 999},
			"The node was low on resource: pids. Threshold quantity: 1k, available: 999. ",
			map[string]string{"offending_containers": "", "offending_containers_usage": "", "starved_resource": "pids"}},
		{"pod-level request", whole, hard(signal.MemoryAvailable, "1.5Gi"), signal.Observation{Available: 1500 * mi},
			"The node was low on resource: memory. Threshold quantity: 1536Mi, available: 1500Mi. " +
				"Pod whole was using 300Mi, request is 1Gi, has larger consumption of memory. " +
				"Container c was using 300Mi, request is 0, has larger consumption of memory. ",
			map[string]string{
				"offending_containers": "c", "offending_containers_usage": "300Mi", "starved_resource": "memory",
				"offending_pod": "whole", "offending_pod_usage": "300Mi",
			}},
		{"pod-level request, not of memory", whole, hard(signal.NodeFsAvailable, "100Gi"), signal.Observation{},
			"The node was low on resource: ephemeral-storage. Threshold quantity: 100Gi, available: 0. ",
			map[string]string{"offending_containers": "", "offending_containers_usage": "", "starved_resource": "ephemeral-storage"}},
		{"no statistics", aPod("p", withoutStats, using(gi)), hard(signal.MemoryAvailable, "100M"), signal.Observation{Available: 1000},
			"The node was low on resource: memory. Threshold quantity: 100M, available: 1k. ", nil},
	} {
		got, annotations := message(&tt.pod, tt.threshold.Threshold, tt.observed)
		if got != tt.want {
			t.Errorf("%s: message =\n%q; want\n%q", tt.name, got, tt.want)
		}
		if diff := cmp.Diff(tt.annotations, annotations); diff != "" {
			t.Errorf("%s: annotations (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestOverLimit(t *testing.T) {
	limited := func(container string, pod ...func(*Pod)) Pod {
		p := aPod("p")
		if container != "" {
			p.Containers[0].Resources.Limits.EphemeralStorage = qty(container)
		}
		for _, f := range pod {
			f(&p)
		}
		return p
	}
	rootfs := func(n int64) func(*Pod) { return func(p *Pod) { p.Containers[0].Usage.Rootfs = n } }
	logs := func(n int64) func(*Pod) { return func(p *Pod) { p.Containers[0].Usage.Logs = n } }
	volume := func(v Volume) func(*Pod) { return func(p *Pod) { p.Volumes = append(p.Volumes, v) } }
	another := func(c Container) func(*Pod) { return func(p *Pod) { p.Containers = append(p.Containers, c) } }
	initial := func(c Container) func(*Pod) {
		return func(p *Pod) { p.InitContainers = append(p.InitContainers, c) }
	}
	storage := func(limit string, rootfs int64) Container {
		return Container{Name: "d", Resources: Resources{Limits: Amounts{EphemeralStorage: qty(limit)}}, Usage: ContainerUsage{Rootfs: rootfs}}
	}
	sidecar := storage("100", 101)
	sidecar.Sidecar = true
	const emptyDir = `Usage of EmptyDir volume "v" exceeds the limit "100". `
	for _, tt := range []struct {
		name    string
		layout  Layout
		pod     Pod
		cause   string
		message string
	}{
		{"no limits", SingleFs, limited("", rootfs(gi), volume(Volume{Name: "v", Type: EmptyDir, Used: gi})), "", ""},
		{"emptyDir at its limit", SingleFs, limited("", volume(Volume{Name: "v", Type: EmptyDir, SizeLimit: qty("100"), Used: 100})), "", ""},
		{"emptyDir over it", SingleFs, limited("", volume(Volume{Name: "v", Type: EmptyDir, SizeLimit: qty("100"), Used: 101})), CauseEmptyDirLimit, emptyDir},
		{"emptyDir in memory", SingleFs, limited("", volume(Volume{Name: "v", Type: EmptyDir, Medium: "Memory", SizeLimit: qty("100"), Used: 101})), CauseEmptyDirLimit, emptyDir},
		{"emptyDir with a limit of 0", SingleFs, limited("", volume(Volume{Name: "v", Type: EmptyDir, SizeLimit: qty("0"), Used: 101})), "", ""},
		{"canonical limit", SingleFs, limited("", volume(Volume{Name: "v", Type: EmptyDir, SizeLimit: qty("0.5Gi"), Used: gi})), CauseEmptyDirLimit, `Usage of EmptyDir volume "v" exceeds the limit "512Mi". `},
		{"emptyDir before the pod", SingleFs, limited("1", rootfs(2), volume(Volume{Name: "v", Type: EmptyDir, SizeLimit: qty("100"), Used: 101})), CauseEmptyDirLimit, emptyDir},
		{"pod at its limit", SingleFs, limited("100", rootfs(60), logs(40)), "", ""},
		{"pod over it", SingleFs, limited("100", rootfs(60), logs(41)), CausePodLimit, "Pod ephemeral local storage usage exceeds the total limit of containers 100. "},
		{"volumes are the pod's", SingleFs, limited("100", volume(Volume{Name: "v", Type: EmptyDir, Used: 101})), CausePodLimit, "Pod ephemeral local storage usage exceeds the total limit of containers 100. "},
		{"volumes in memory are not", SingleFs, limited("100", volume(Volume{Name: "v", Type: EmptyDir, Medium: "Memory", Used: 101})), "", ""},
		{"a container without a limit counts against the others'", SingleFs, limited("100", another(Container{Name: "d", Usage: ContainerUsage{Rootfs: 101}})), CausePodLimit, "Pod ephemeral local storage usage exceeds the total limit of containers 100. "},
		{"limits are summed", SingleFs, limited("100", another(storage("1Ki", 0)), rootfs(99), logs(1)), "", ""},
		{"one container over its own", SingleFs, limited("100", another(storage("1Ki", 0)), rootfs(99), logs(2)), CauseContainerLimit, `Container c exceeded its local ephemeral storage limit "100". `},
		{"the second container", SingleFs, limited("1Ki", another(storage("100", 101))), CauseContainerLimit, `Container d exceeded its local ephemeral storage limit "100". `},
		{"a sidecar", SingleFs, limited("1Ki", initial(sidecar)), CauseContainerLimit, `Container d exceeded its local ephemeral storage limit "100". `},
		{"an init container is not looked at alone", SingleFs, limited("1Ki", initial(storage("100", 101))), "", ""},
		{"dedicated imagefs: the writable layer is the pod's alone", ImageFs, limited("100", another(storage("1Ki", 0)), rootfs(101)), "", ""},
		{"dedicated imagefs: logs", ImageFs, limited("100", another(storage("1Ki", 0)), logs(101)), CauseContainerLimit, `Container c exceeded its local ephemeral storage limit "100". `},
		{"dedicated imagefs: the pod", ImageFs, limited("100", rootfs(101)), CausePodLimit, "Pod ephemeral local storage usage exceeds the total limit of containers 100. "},
		{"no statistics", SingleFs, limited("100", rootfs(101), withoutStats), "", ""},
		{"a container's limit of 0", SingleFs, limited("0", another(storage("1Ki", 0)), rootfs(500)), "", ""},
		{"overhead raises the pod's", SingleFs, limited("100", rootfs(101), func(p *Pod) {
			p.Overhead.EphemeralStorage = qty("10")
			p.Containers = append(p.Containers, storage("1", 0))
		}), CauseContainerLimit, `Container c exceeded its local ephemeral storage limit "100". `},
	} {
		cause, message := tt.pod.overLimit(tt.layout)
		if cause != tt.cause || message != tt.message {
			t.Errorf("%s: overLimit() = %q, %q; want %q, %q", tt.name, cause, message, tt.cause, tt.message)
		}
	}
}

// A pod is over its limit exactly when the sum says so, though the sum is
// mostly not computed.
func TestPodLimitIsTheSum(t *testing.T) {
	c := chance{rand.New(rand.NewPCG(1, 2))}
	over := 0
	for range 20_000 {
		p := aPod("p")
		p.Containers = nil
		for _, cs := range []*[]Container{&p.Containers, &p.InitContainers} {
			for range c.IntN(3) {
				one := Container{Sidecar: c.one(2), Usage: ContainerUsage{Rootfs: c.Int64N(5), Logs: c.Int64N(2)}}
				if c.one(2) {
					one.Resources.Limits.EphemeralStorage = c.quantity(8)
				}
				*cs = append(*cs, one)
			}
		}
		if c.one(4) {
			p.Overhead.EphemeralStorage = c.quantity(3)
		}
		limit := p.storageLimit()
		want := limit != nil && exceeds(p.disk(partsAll, false), limit)
		cause, _ := p.overLimit(SingleFs)
		if got := cause == CausePodLimit; got != want {
			t.Fatalf("%+v: over the pod's limit = %t; want %t", p, got, want)
		}
		if want {
			over++
		}
	}
	if over < 1000 {
		t.Errorf("only %d pods were over their limit", over)
	}
}

// Quantities of which the API server makes others print as those.
func TestSetDefaults(t *testing.T) {
	p := Pod{
		Containers: []Container{
			{Resources: Resources{Limits: Amounts{CPU: qty("1"), Memory: qty("1Gi"), EphemeralStorage: qty("5Gi")}, Requests: Amounts{Memory: qty("500M")}}},
			{Resources: Resources{Requests: Amounts{Memory: qty("1M")}}},
		},
		InitContainers: []Container{{Resources: Resources{Limits: Amounts{Memory: qty("2Gi")}}}},
		Resources:      Resources{Limits: Amounts{CPU: qty("3"), Memory: qty("4Gi")}},
	}
	p.SetDefaults()
	texts := func(a Amounts) [3]string {
		var t [3]string
		for i, q := range a.each() {
			if *q != nil {
				t[i] = (*q).String()
			}
		}
		return t
	}
	for _, tt := range []struct {
		name string
		got  Amounts
		want [3]string
	}{
		{"limits where there is no request", p.Containers[0].Resources.Requests, [3]string{"1", "500M", "5Gi"}},
		{"nothing where there is no limit", p.Containers[1].Resources.Requests, [3]string{"", "1M", ""}},
		{"init containers too", p.InitContainers[0].Resources.Requests, [3]string{"", "2Gi", ""}},
		{"the pod: its containers' sum before its limits, no storage", p.Resources.Requests, [3]string{"1", "2Gi", ""}},
	} {
		if got := texts(tt.got); got != tt.want {
			t.Errorf("%s: requests = %v; want %v", tt.name, got, tt.want)
		}
	}

	alone := Pod{Containers: []Container{{}}, Resources: Resources{Limits: Amounts{Memory: qty("4Gi")}}}
	alone.SetDefaults()
	if got, want := texts(alone.Resources.Requests), [3]string{"", "4Gi", ""}; got != want {
		t.Errorf("a pod with limits alone requests %v; want %v", got, want)
	}
	requests := Pod{
		Containers: []Container{{Resources: Resources{Requests: Amounts{Memory: qty("1Gi")}}}},
		Resources:  Resources{Requests: Amounts{CPU: qty("1")}},
	}
	requests.SetDefaults()
	if got, want := texts(requests.Resources.Requests), [3]string{"1", "", ""}; got != want {
		t.Errorf("a pod without limits requests %v; want %v", got, want)
	}
	sum := Pod{Containers: []Container{{Resources: Resources{Requests: Amounts{Memory: qty("1")}}}}}
	before := *sum.Containers[0].Resources.Requests.Memory
	sum.aggregate(func(c *Container) Amounts { return c.Resources.Requests })
	if got := *sum.Containers[0].Resources.Requests.Memory; got != before {
		t.Errorf("a sum changed what was added to %v", got)
	}
}
