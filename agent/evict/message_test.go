package evict

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/signal"
)

// The messages are identical to the kubelet's, because other programs parse them.
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
	summed := aPod("summed", using(300*mi), withRootfs(mi), func(p *Pod) {
		p.Resources.Requests, p.SummedRequests = Amounts{Memory: qty("1Gi"), EphemeralStorage: qty("1Gi")}, true
	})
	deduced := aPod("deduced", using(300*mi), withRootfs(mi), requesting("75829506", ""), func(p *Pod) {
		p.Containers[0].MemoryRequestText = "about 72Mi, from oom_score_adj"
	})
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
		{"inodes name no container", two, hard(signal.ImageFsInodesFree, "5%"), signal.Observation{Available: 40_000, Capacity: 1_000_000},
			"The node was low on resource: inodes. Threshold quantity: 50000, available: 40k. ",
			map[string]string{"offending_containers": "", "offending_containers_usage": "", "starved_resource": "inodes"}},
		{"PIDs name no container", two, hard(signal.PIDAvailable, "1000"), signal.Observation{Available: 999},
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
		{"requests of the whole pod only", summed, hard(signal.MemoryAvailable, "1.5Gi"), signal.Observation{Available: 1500 * mi},
			"The node was low on resource: memory. Threshold quantity: 1536Mi, available: 1500Mi. " +
				"Pod summed was using 300Mi, request is 1Gi, has larger consumption of memory. ",
			map[string]string{
				"offending_containers": "", "offending_containers_usage": "", "starved_resource": "memory",
				"offending_pod": "summed", "offending_pod_usage": "300Mi",
			}},
		{"requests of the whole pod only, not of memory", summed, hard(signal.NodeFsAvailable, "100Gi"), signal.Observation{},
			"The node was low on resource: ephemeral-storage. Threshold quantity: 100Gi, available: 0. ",
			map[string]string{"offending_containers": "", "offending_containers_usage": "", "starved_resource": "ephemeral-storage"}},
		{"deduced request", deduced, hard(signal.MemoryAvailable, "1Gi"), signal.Observation{Available: 700 * mi},
			"The node was low on resource: memory. Threshold quantity: 1Gi, available: 700Mi. " +
				"Container c was using 300Mi, request is about 72Mi, from oom_score_adj, has larger consumption of memory. ",
			map[string]string{"offending_containers": "c", "offending_containers_usage": "300Mi", "starved_resource": "memory"}},
		{"deduced request, not of memory", deduced, hard(signal.NodeFsAvailable, "1Gi"), signal.Observation{Available: 700 * mi},
			"The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 700Mi. " +
				"Container c was using 1Mi, request is 0, has larger consumption of ephemeral-storage. ",
			map[string]string{"offending_containers": "c", "offending_containers_usage": "1Mi", "starved_resource": "ephemeral-storage"}},
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
