package main

import (
	"testing"
	"time"

	"github.com/evictd/evictd/agent/control"
)

func TestKubernetesLine(t *testing.T) {
	for _, tt := range []struct {
		want string
		k    control.Kubernetes
	}{
		{"evictd-kube v1 watches the pods of node n1; facts about 30 pods, 28 of them in use, 12s old",
			control.Kubernetes{Connected: true, Watching: true, Software: "v1", Node: "n1", Pods: 30, Used: 28, AgeSeconds: new(12.0)}},
		{"evictd-kube v1 does not watch the pods of node n1: connection refused; facts about 0 pods, 0 of them in use, of unknown age",
			control.Kubernetes{Connected: true, Software: "v1", Node: "n1", Error: "connection refused"}},
		{"evictd-kube is not connected: evictd-kube has disconnected; facts about 3 pods, 3 of them in use, 1h old; 2 refused since the start",
			control.Kubernetes{Error: "evictd-kube has disconnected", Pods: 3, Used: 3, AgeSeconds: new(3600.0), Refusals: 2}},
	} {
		if got := kubernetesLine(&tt.k); got != tt.want {
			t.Errorf("kubernetesLine(%+v) = %q; want %q", tt.k, got, tt.want)
		}
	}
}

func TestReportsLine(t *testing.T) {
	for _, tt := range []struct {
		want string
		k    control.Kubernetes
	}{
		{"evictions are not reported: evictd-kube has never connected", control.Kubernetes{CannotReport: "evictd-kube has never connected"}},
		{"evictions are not reported: evictd-kube has never connected", control.Kubernetes{CannotReport: "evictd-kube has never connected", Orders: &control.Orders{}}},
		{"0 since the start, 0 pending; fences: 0 set", control.Kubernetes{Orders: &control.Orders{}}},
		{"3 since the start, 1 pending, 1 without a final answer for up to 12s; fences: 1 set; evictd-kube can't report: no right to patch pods/status",
			control.Kubernetes{CannotReport: "no right to patch pods/status", Orders: &control.Orders{Pending: 1, Unanswered: 1, UnansweredSeconds: new(12.0), Fences: 1, Begun: 3}}},
	} {
		if got := reportsLine(&tt.k); got != tt.want {
			t.Errorf("reportsLine(%+v) = %q; want %q", tt.k, got, tt.want)
		}
	}
}

func TestNodeObjectLine(t *testing.T) {
	now := time.Date(2026, 11, 23, 5, 1, 0, 0, time.UTC)
	memory := control.NodeCondition{Type: "EvictdMemoryPressure", Status: "True", Since: now.Add(-90 * time.Second), Written: "True"}
	disk := control.NodeCondition{Type: "EvictdDiskPressure", Status: "False", Written: "False"}
	list := func(list ...control.NodeCondition) control.List[control.NodeCondition] { return list }
	wrong := memory
	wrong.Status, wrong.Written = "Unknown", "True"
	for _, tt := range []struct {
		want string
		n    *control.NodeObject
	}{
		{"no conditions are maintained", nil},
		{"not decided yet; conditions and taints stay as they are", &control.NodeObject{}},
		{"no conditions are maintained", &control.NodeObject{Decided: true}},
		{"no condition is true", &control.NodeObject{Decided: true, Conditions: list(disk)}},
		{"EvictdMemoryPressure for 1m30s", &control.NodeObject{Decided: true, Conditions: list(memory, disk)}},
		{"EvictdMemoryPressure for 1m30s, not written for 1m30s: no right to patch nodes",
			&control.NodeObject{Decided: true, Conditions: list(memory), UnwrittenSeconds: new(90.0), Why: "no right to patch nodes"}},
		{"no conditions are maintained, not written for 2s (there EvictdMemoryPressure is True): connection refused",
			&control.NodeObject{Decided: true, Conditions: list(wrong), UnwrittenSeconds: new(2.0), Why: "connection refused"}},
	} {
		if got := nodeObjectLine(tt.n, now); got != tt.want {
			t.Errorf("nodeObjectLine(%+v) = %q; want %q", tt.n, got, tt.want)
		}
	}
}

func TestModeReporting(t *testing.T) {
	if got, want := mode(control.Mode{Reporting: true}), "enforce; evictions of the kubelet's pods are reported to the API server"; got != want {
		t.Errorf("mode() = %q; want %q", got, want)
	}
}

func TestFactsText(t *testing.T) {
	for _, tt := range []struct {
		want string
		f    *control.Facts
	}{
		{"", nil},
		{"facts of the API server are refused: its QoS class is Burstable", &control.Facts{Owner: "Job/a", Refused: "its QoS class is Burstable"}},
		{"facts of the API server, 2s old; owner ReplicaSet/web", &control.Facts{Owner: "ReplicaSet/web", AgeSeconds: new(2.0)}},
		{"facts of the API server, of unknown age; owner none; the pod is no longer in the API", &control.Facts{Owner: "none", Note: "the pod is no longer in the API"}},
	} {
		if got := factsText(tt.f); got != tt.want {
			t.Errorf("factsText(%+v) = %q; want %q", tt.f, got, tt.want)
		}
	}
}

func TestAffinityLine(t *testing.T) {
	for _, tt := range []struct {
		results map[string]uint64
		want    string
	}{
		{map[string]uint64{}, "no pods with a node affinity during execution have come to the node"},
		{map[string]uint64{"rejected": 2, "matched": 30}, "pods that came to the node: 30 matched, 2 rejected"},
	} {
		if got := affinityLine(tt.results); got != tt.want {
			t.Errorf("affinityLine(%v) = %q; want %q", tt.results, got, tt.want)
		}
	}
}
