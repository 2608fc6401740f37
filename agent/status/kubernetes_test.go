package status

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/loop"
)

func TestKubernetesStatus(t *testing.T) {
	facts, saved := kube.NewFacts(), `{"format":1,"asOf":"2026-11-22T20:00:00Z","pods":[
		{"uid":"u1","namespace":"default","name":"web","priority":1,"owner":{"kind":"Job","name":"j"},"containers":[{"name":"c"}]},
		{"uid":"u2","namespace":"default","name":"bad","priority":1,"containers":[]}]}`
	now := time.Date(2026, 11, 22, 20, 1, 0, 0, time.UTC)
	if err := facts.Restore([]byte(saved), now); err != nil {
		t.Fatal(err)
	}
	want := &control.Kubernetes{
		AgeSeconds: new(60.0), Pods: 1, Refusals: 1, Refused: control.List[control.Refusal]{{Pod: "default/bad", UID: "u2", Why: "no containers"}},
	}
	if diff := cmp.Diff(want, kubernetesStatus(facts, now)); diff != "" {
		t.Errorf("kubernetesStatus() (-want +got):\n%s", diff)
	}
	for uid, want := range map[string]*control.Facts{
		"u1": {Owner: "Job/j", AgeSeconds: new(60.0)}, "u2": {Refused: "no containers"}, "u3": nil,
	} {
		if diff := cmp.Diff(want, factsOf(facts, uid, now)); diff != "" {
			t.Errorf("factsOf(%s) (-want +got):\n%s", uid, diff)
		}
	}
	if got := factsOf(nil, "u1", now); got != nil {
		t.Errorf("factsOf() without evictd-kube = %+v; want none", got)
	}
}

// The explanation says why a pod without facts that are used is exempt.
func TestExplainFactsOfExemptPods(t *testing.T) {
	facts := kube.NewFacts()
	if err := facts.Restore([]byte(`{"format":1,"pods":[
		{"uid":"used","namespace":"default","name":"used","priority":2000000000,"containers":[{"name":"c"}]},
		{"uid":"refused","namespace":"default","name":"refused","priority":1,"containers":[]}]}`), time.Now()); err != nil {
		t.Fatal(err)
	}
	var v loop.View
	var exempt []evict.Exempt
	for _, name := range []string{"used", "refused", "none", "static", "native"} {
		v.Snapshot.Pods = append(v.Snapshot.Pods, evict.Pod{UID: name, Kubelet: name != "native", Static: name == "static"})
		exempt = append(exempt, evict.Exempt{UID: name, Detail: "a reason"})
	}
	exempt = append(exempt, evict.Exempt{UID: "none"})
	b := Backend{o: Options{Facts: facts}}
	var got []string
	for _, x := range b.explainFacts(&v, exempt) {
		got = append(got, x.UID+": "+x.Detail)
	}
	want := []string{
		"used: a reason", "refused: a reason; facts of the API server are refused: no containers", "none: a reason; no facts of the API server",
		"static: a reason", "native: a reason", "none: no facts of the API server",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("details (-want +got):\n%s", diff)
	}
}
