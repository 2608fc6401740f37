package evict

import (
	"testing"
)

func withResources(requestCPU, requestMemory, limitCPU, limitMemory string) Resources {
	amounts := func(cpu, memory string) (a Amounts) {
		if cpu != "" {
			a.CPU = qty(cpu)
		}
		if memory != "" {
			a.Memory = qty(memory)
		}
		return a
	}
	return Resources{Requests: amounts(requestCPU, requestMemory), Limits: amounts(limitCPU, limitMemory)}
}

func TestQoSClass(t *testing.T) {
	of := func(rs ...Resources) (cs []Container) {
		for _, r := range rs {
			cs = append(cs, Container{Resources: r})
		}
		return cs
	}
	none := Resources{}
	full := withResources("1", "1Gi", "1", "1Gi")
	for _, tt := range []struct {
		name string
		pod  Pod
		want QoS
	}{
		{"stated", Pod{QoS: Burstable, Containers: of(full)}, Burstable},
		{"no requests and limits", Pod{Containers: of(none, none)}, BestEffort},
		{"no containers", Pod{}, BestEffort},
		{"zeros", Pod{Containers: of(withResources("0", "0", "0", "0"))}, BestEffort},
		{"ephemeral storage only", Pod{Containers: []Container{{Resources: Resources{Requests: Amounts{EphemeralStorage: qty("1Gi")}}}}}, BestEffort},
		{"limits equal requests", Pod{Containers: of(full)}, Guaranteed},
		{"equal in another notation", Pod{Containers: of(withResources("1000m", "1024Mi", "1", "1Gi"))}, Guaranteed},
		{"limits only, requests defaulted", Pod{Containers: of(withResources("", "", "1", "1Gi"))}, Guaranteed},
		{"memory only", Pod{Containers: of(withResources("", "1Gi", "", "1Gi"))}, Burstable},
		{"CPU only", Pod{Containers: of(withResources("1", "", "1", ""))}, Burstable},
		{"requests only", Pod{Containers: of(withResources("1", "1Gi", "", ""))}, Burstable},
		{"limits above requests", Pod{Containers: of(withResources("1", "1Gi", "1", "2Gi"))}, Burstable},
		{"one container without resources", Pod{Containers: of(full, none)}, Burstable},
		{"an init container without resources", Pod{Containers: of(full), InitContainers: of(none)}, Burstable},
		{"an init container with resources", Pod{Containers: of(full), InitContainers: of(full)}, Guaranteed},
		{"one limit of 0", Pod{Containers: of(withResources("1", "1Gi", "1", "1Gi"), withResources("0", "1Gi", "0", "1Gi"))}, Burstable},
		{"pod-level, whatever the containers request", Pod{Resources: full, Containers: of(none, withResources("", "1Mi", "", ""))}, Guaranteed},
		{"pod-level memory only", Pod{Resources: withResources("", "1Gi", "", "1Gi"), Containers: of(full)}, Burstable},
		{"pod-level requests only", Pod{Resources: withResources("1", "1Gi", "", ""), Containers: of(full)}, Burstable},
	} {
		tt.pod.SetDefaults()
		if got := tt.pod.QoSClass(); got != tt.want {
			t.Errorf("%s: QoSClass() = %s; want %s", tt.name, got, tt.want)
		}
	}
}

func TestOOMScoreAdj(t *testing.T) {
	const capacity = 10 * gi
	burstable := func(requests ...string) Pod {
		p := Pod{}
		for _, r := range requests {
			p.Containers = append(p.Containers, Container{Resources: withResources("", r, "", "")})
		}
		return p
	}
	sidecar := func(p Pod, request string) Pod {
		p.InitContainers = []Container{{Sidecar: true, Resources: withResources("", request, "", "")}}
		return p
	}
	pod := func(p Pod, f func(*Pod)) Pod { f(&p); return p }
	whole := func(memory string) func(*Pod) {
		return func(p *Pod) { p.Resources.Requests.Memory = qty(memory) }
	}
	for _, tt := range []struct {
		name string
		pod  Pod
		init bool // score the first init container instead of the first regular one
		want int
	}{
		{"best effort", Pod{Containers: []Container{{}}}, false, 1000},
		{"guaranteed", Pod{Containers: []Container{{Resources: withResources("1", "1Gi", "1", "1Gi")}}}, false, -997},
		{"a tenth", burstable("1Gi"), false, 900},
		{"100Mi of 10Gi", burstable("100Mi"), false, 991},         // 1000 − 9.77
		{"less than a thousandth", burstable("10Mi"), false, 999}, // not best effort's 1000
		{"CPU only", Pod{Containers: []Container{{Resources: withResources("1", "", "", "")}}}, false, 999},
		{"all memory", burstable("10Gi"), false, 3},
		{"more than the node's memory", burstable("1Ti"), false, 3},
		{"request whose product overflows", burstable("8Ei"), false, 3},
		{"node-critical", pod(burstable("1Gi"), func(p *Pod) { withPriority(2_000_001_000)(p); p.PriorityClassName = "system-node-critical" }), false, -997},
		{"node-critical static pod", pod(Pod{Containers: []Container{{}}}, func(p *Pod) { p.Static, p.PriorityClassName = true, "system-node-critical" }), false, -997},
		{"class name without the priority", pod(burstable("1Gi"), func(p *Pod) { p.PriorityClassName = "system-node-critical" }), false, 900},
		{"cluster-critical", pod(Pod{Containers: []Container{{}}}, func(p *Pod) { withPriority(2_000_000_000)(p); p.PriorityClassName = "system-cluster-critical" }), false, 1000},
		{"sidecar like the smallest regular container", sidecar(burstable("3Gi", "2Gi"), "1Gi"), true, 800},
		{"sidecar with a larger request", sidecar(burstable("1Gi"), "4Gi"), true, 600},
		{"sidecar of a pod with a container without request", sidecar(burstable("1Gi", "0"), "1Gi"), true, 900},
		{"an init container has its own score", pod(burstable("3Gi"), func(p *Pod) {
			p.InitContainers = []Container{{Resources: withResources("", "1Gi", "", "")}}
		}), true, 900},
		{"pod-level, divided", pod(burstable("1Gi", "1Gi"), whole("4Gi")), false, 800},
		{"pod-level, divided among init containers too", pod(sidecar(burstable("1Gi"), "1Gi"), whole("4Gi")), false, 800},
		{"pod-level, equal to the containers' sum", pod(burstable("1Gi", "1Gi"), whole("2Gi")), false, 900},
		{"pod-level, containers without requests", pod(burstable("0", "0"), whole("2Gi")), false, 900},
		{"pod-level, sidecar like the smallest regular container", pod(sidecar(burstable("2Gi"), "0"), whole("4Gi")), true, 700},
		{"pod-level, sum overflows", pod(burstable("1Ei", "7Ei"), whole("8Ei")), false, 3},
	} {
		c := &[]Container{{}}[0]
		if tt.init {
			c = &tt.pod.InitContainers[0]
		} else if len(tt.pod.Containers) > 0 {
			c = &tt.pod.Containers[0]
		}
		if got := tt.pod.OOMScoreAdj(c, capacity); got != tt.want {
			t.Errorf("%s: OOMScoreAdj() = %d; want %d", tt.name, got, tt.want)
		}
	}
	p := burstable("1Gi")
	if got := p.OOMScoreAdj(&p.Containers[0], 0); got != 999 {
		t.Errorf("OOMScoreAdj() with capacity 0 = %d; want 999", got)
	}
}

func TestCritical(t *testing.T) {
	for _, tt := range []struct {
		name string
		pod  Pod
		want bool
	}{
		{"ordinary", aPod("p"), false},
		{"static", aPod("p", func(p *Pod) { p.Static = true }), true},
		{"mirror", aPod("p", func(p *Pod) { p.Mirror = true }), true},
		{"priority", aPod("p", withPriority(2_000_000_000)), true},
		{"priority just below", aPod("p", withPriority(1_999_999_999)), false},
	} {
		if got := tt.pod.Critical(); got != tt.want {
			t.Errorf("%s: Critical() = %t; want %t", tt.name, got, tt.want)
		}
	}
}
