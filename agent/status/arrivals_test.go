package status

import (
	"fmt"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

func TestExplainArrivalsAndEndingPods(t *testing.T) {
	n := newNode(t)
	ending := pod("going", gib)
	ending.Ending, ending.EndsBy = true, time.Now().Add(time.Hour)
	late := pod("late", gib)
	late.Ending, late.EndsBy = true, time.Now().Add(-time.Hour)
	gone := pod("gone", gib)
	gone.Ending = true
	pods := []evict.Pod{ending, late, gone}
	for i := range maxEndingNotes {
		other := pod(fmt.Sprint("x", i), gib)
		other.Ending = true
		pods = append(pods, other)
	}
	v := n.step(t, "evictionHard: {memory.available: 1Gi}\nkube: {uid: 7}\nadmission: evict\n")
	v.Snapshot.Pods = pods
	now := time.Now()
	v.Mode.Reporting = true
	v.State.Conditions = []evict.ConditionTimer{{Condition: signal.MemoryPressure, Since: now.Add(-time.Minute), LastSeen: now}}
	v.State.Ending = nil
	for i := range pods {
		v.State.Ending = append(v.State.Ending, evict.EndingPod{UID: pods[i].UID, Seen: now, EndsBy: pods[i].EndsBy})
	}
	e, err := n.Explain(signal.MemoryAvailable)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"BestEffort pods that come are refused; the node has had MemoryPressure for 1m0s",
		"default/going is being deleted, with a grace period of another 1h0m0s; for soft thresholds it is evicted only if that takes longer than an eviction",
		"default/late is being deleted, and its grace period ended 1h0m0s ago",
		"default/gone is no longer in the API", "and 3 other pods are being deleted",
	} {
		if !contains(e.Notes, want) {
			t.Errorf("notes %q; want %q", e.Notes, want)
		}
	}
	v.Mode.Reporting = false
	if e, err := n.Explain(signal.MemoryAvailable); err != nil || contains(e.Notes, "are refused") {
		t.Errorf("notes %q without evictd-kube, %v; want nothing about refusals", e.Notes, err)
	}
}
