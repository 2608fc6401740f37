package status

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/kube"
)

// The status shows each condition as evictd wants it and as the Node has it. What is not written
// for a minute is a warning, also if nothing is known of orders.
func TestNodeObject(t *testing.T) {
	now := time.Date(2026, 11, 23, 5, 1, 0, 0, time.UTC)
	since := now.Add(-90 * time.Second)
	s := kube.NodeStatus{
		Decided: true, Reported: true,
		Wanted:  []kube.NodeCondition{{Type: "EvictdMemoryPressure", Status: true, Since: since}, {Type: "EvictdDiskPressure", Since: since}},
		Written: []kube.NodeCondition{{Type: "EvictdDiskPressure"}, {Type: "EvictdPIDPressure", Status: true}},
		Why:     "no right to patch nodes", Unwritten: since,
	}
	want := &control.NodeObject{
		Decided: true, UnwrittenSeconds: new(90.0), Why: "no right to patch nodes",
		Conditions: control.List[control.NodeCondition]{
			{Type: "EvictdMemoryPressure", Taint: "evictd.io/memory-pressure", Status: "True", Since: since, Written: "Unknown"},
			{Type: "EvictdDiskPressure", Taint: "evictd.io/disk-pressure", Status: "False", Since: since, Written: "False"},
			{Type: "EvictdPIDPressure", Taint: "evictd.io/pid-pressure", Status: "Unknown", Written: "True"},
		},
	}
	b := &Backend{o: Options{Facts: kube.NewFacts(), NodeObject: func() kube.NodeStatus { return s }}}
	if diff := cmp.Diff(want, b.kubernetesStatus(now).NodeObject); diff != "" {
		t.Errorf("status of the Node (-want +got):\n%s", diff)
	}
	const warning = "conditions and taints of the Node have not been written for 1m30s: no right to patch nodes"
	if got := b.kubernetesWarnings(now); len(got) != 1 || got[0] != warning {
		t.Errorf("warnings %q; want %q", got, warning)
	}
	if got := b.kubernetesWarnings(now.Add(-31 * time.Second)); len(got) != 0 {
		t.Errorf("warnings %q within a minute; want none", got)
	}
	m := b.KubernetesMetrics()
	reported := map[string]bool{"MemoryPressure": false, "DiskPressure": false, "PIDPressure": true, "NodeShutdown": false}
	if diff := cmp.Diff(reported, m.ConditionsReported); diff != "" || m.ConditionsUnwritten == 0 {
		t.Errorf("metrics: unwritten for %v, conditions (-want +got):\n%s", m.ConditionsUnwritten, diff)
	}

	s = kube.NodeStatus{Decided: true, Wanted: s.Wanted, Unwritten: since}
	if got := b.kubernetesStatus(now).NodeObject.Conditions; len(got) != 2 || got[0].Written != "" {
		t.Errorf("conditions %+v before the first report; want none written", got)
	}
	if got := b.kubernetesWarnings(now); len(got) != 1 || !strings.Contains(got[0], "no answer of evictd-kube") {
		t.Errorf("warnings %q; want that there is no answer", got)
	}
	s.Unwritten = time.Time{}
	if got := b.kubernetesStatus(now).NodeObject; got.UnwrittenSeconds != nil || len(b.kubernetesWarnings(now)) != 0 || b.KubernetesMetrics().ConditionsUnwritten != 0 {
		t.Errorf("status %+v; want nothing unwritten", got)
	}
}
