package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/affinity"
)

// liveScript is a kubectl that answers from files. What has no file is forbidden.
const liveScript = `#!/bin/sh
cd "${0%/*}"
echo "$*" >>calls
answer() {
	test -f "$1.json" || { echo "Error from server (Forbidden): $1 is forbidden" >&2; exit 1; }
	cat "$1.json"
}
case "$*" in
"get pods -o json web-0"|"get pods -o json web-0 --namespace=shop") answer pod ;;
"get nodes -o json") answer nodes ;;
"get nodefences.ha.k8s.io -o json") answer fences ;;
"get leases.coordination.k8s.io -o json --namespace=kube-node-lease --field-selector=metadata.name=host1") answer leases ;;
"get events -o json --namespace=shop --field-selector=involvedObject.uid=pod-uid") answer events ;;
"get configmaps -o json --namespace=evictd --field-selector=metadata.name=cluster-affinity-config") answer configmaps ;;
*) echo "error: unexpected: $*" >&2; exit 1 ;;
esac
`

var liveNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// liveScene is what a cluster has. The pod's node host1 has lost its label, host2 has it.
type liveScene struct {
	pod     corev1.Pod
	nodes   [2]corev1.Node
	fence   nodeFence
	renewed time.Time
	events  []corev1.Event
	config  string // of the ConfigMap; none if it is empty
	without []string
}

func newLiveScene(renewed time.Time) *liveScene {
	s := &liveScene{renewed: renewed}
	s.pod.ObjectMeta = metav1.ObjectMeta{
		Namespace: "shop", Name: "web-0", UID: "pod-uid", OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: new(true)}},
		Annotations: map[string]string{
			affinity.Annotation: "nodeSelectorTerms:\n- matchExpressions:\n  - {key: example.com/licence, operator: In, values: [valid]}\n",
		},
	}
	s.pod.Spec.NodeName = "host1"
	for i, value := range []string{"expired", "valid"} {
		s.nodes[i].Name = []string{"host1", "host2"}[i]
		s.nodes[i].Labels = map[string]string{"example.com/licence": value}
		s.nodes[i].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	}
	s.fence.Node, s.fence.State.FinishedAt = "host1", metav1.NewMicroTime(liveNow)
	return s
}

func (s *liveScene) event(reason, message string, minutes, count int) {
	s.events = append(s.events, corev1.Event{
		Reason: reason, Message: message, Count: int32(count), LastTimestamp: metav1.NewTime(liveNow.Add(time.Duration(minutes) * time.Minute)),
	})
}

// kubectl writes the scene and returns the program that answers from it.
func (s *liveScene) kubectl(t *testing.T) string {
	t.Helper()
	c := cluster(t.TempDir())
	c.write(t, "pod.json", s.pod)
	c.write(t, "nodes.json", corev1.NodeList{Items: s.nodes[:]})
	c.write(t, "fences.json", map[string]any{"items": []nodeFence{s.fence}})
	c.write(t, "events.json", corev1.EventList{Items: s.events})
	leases, maps := coordinationv1.LeaseList{}, corev1.ConfigMapList{}
	if !s.renewed.IsZero() {
		leases.Items = []coordinationv1.Lease{{Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(s.renewed))}}}
	}
	c.write(t, "leases.json", leases)
	if s.config != "" {
		maps.Items = []corev1.ConfigMap{{Data: map[string]string{"config.properties": s.config}}}
	}
	c.write(t, "configmaps.json", maps)
	for _, name := range s.without {
		if err := os.Remove(c.path(name + ".json")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(c.path("kubectl"), []byte(liveScript), 0o700); err != nil {
		t.Fatal(err)
	}
	return c.path("kubectl")
}

// liveCases are scenes by the name of their golden file, with the exit code of the command.
var liveCases = map[string]struct {
	change    func(*liveScene)
	namespace string // of the controller
	exit      int
}{
	"fits":       {func(s *liveScene) { s.nodes[0].Labels["example.com/licence"] = "valid" }, "", exitOK},
	"evicted":    {func(s *liveScene) { s.event("NodeAffinityEvicted", "evicted from node host0", -60, 1) }, "evictd", exitFailure},
	"nowhere":    {func(s *liveScene) { s.nodes[1].Spec.Unschedulable = true; nowhere(s) }, "", exitFailure},
	"placeable":  {func(s *liveScene) { s.nodes[1].Spec.Unschedulable, s.config = true, "when_no_node_fits=evict" }, "evictd", exitFailure},
	"mistake":    {func(s *liveScene) { s.config = "debounce=never" }, "evictd", exitFailure},
	"daemonset":  {func(s *liveScene) { s.pod.OwnerReferences[0].Kind = "DaemonSet" }, "", exitFailure},
	"notready":   {func(s *liveScene) { s.nodes[0].Status.Conditions[0].Status = corev1.ConditionUnknown }, "", exitFailure},
	"stale":      {func(s *liveScene) { s.renewed = s.renewed.Add(-2 * time.Minute) }, "", exitFailure},
	"nolease":    {func(s *liveScene) { s.renewed = time.Time{} }, "", exitFailure},
	"fenced":     {func(s *liveScene) { s.fence.State.FinishedAt = metav1.MicroTime{} }, "", exitFailure},
	"storm":      {func(s *liveScene) { delete(s.nodes[0].Labels, "example.com/licence"); s.nodes[1].Labels = nil }, "", exitFailure},
	"confirmed":  {func(s *liveScene) { s.nodes[0].Labels, s.nodes[1].Labels, s.config = nil, nil, "storm_confirmed=key-1" }, "evictd", exitFailure},
	"gone":       {func(s *liveScene) { s.nodes[0].Name = "host3" }, "", exitOK},
	"pending":    {func(s *liveScene) { s.pod.Spec.NodeName = "" }, "", exitOK},
	"unplaced":   {func(s *liveScene) { s.pod.Spec.NodeName = ""; s.nodes[1].Labels = nil }, "", exitFailure},
	"unreadable": {func(s *liveScene) { s.pod.Annotations[affinity.Annotation] = "nodeSelectorTerms: \x1b[2J\n" }, "", exitUsage},
	"forbidden":  {func(s *liveScene) { s.without = []string{"fences", "leases", "events", "configmaps"} }, "evictd", exitFailure},
	"ignored":    {ignored, "evictd", exitFailure},
}

func nowhere(s *liveScene) {
	s.event("NodeAffinityNotEvicted", "not evicted: \x1b]0;title\x07 no other node", -1, 3)
	s.event("NodeAffinityViolated", "node host1: no label", -5, 1)
	s.event("NodeAffinity", "of the kubelet", -2, 1)
	s.event("Pulled", "of the kubelet", -3, 1)
}

// ignored has the requirement where it is enforced with enforce_ignored only.
func ignored(s *liveScene) {
	s.config = "enforce_ignored=yes"
	s.pod.Annotations = nil
	s.pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "example.com/licence", Operator: corev1.NodeSelectorOpIn, Values: []string{"valid"}},
		}}},
	}}}
}

func TestAffinityExplainLive(t *testing.T) {
	for name, tt := range liveCases {
		t.Run(name, func(t *testing.T) {
			s := newLiveScene(liveNow.Add(-5 * time.Second))
			tt.change(s)
			f := &liveFlags{namespace: "shop", controllersNamespace: tt.namespace}
			program := s.kubectl(t)
			x, err := explainLive(t.Context(), f, &livePod{kubectl: &kubectl{program: program}, now: liveNow}, "web-0")
			if err != nil {
				t.Fatal(err)
			}
			for i := range x.NotRead {
				x.NotRead[i] = strings.ReplaceAll(x.NotRead[i], program, "kubectl")
			}
			got := livePage(x).b.String()
			if strings.ContainsAny(got, "\x1b\x07") {
				t.Errorf("the output has terminal escapes: %q", got)
			}
			golden(t, filepath.Join("affinity-live", name+".txt"), got)
		})
	}
}

// TestAffinityExplainLiveExits: the exit codes, and that the JSON has what the text has.
func TestAffinityExplainLiveExits(t *testing.T) {
	for name, tt := range liveCases {
		s := newLiveScene(time.Now())
		tt.change(s)
		args := []string{"affinity", "explain", "--live", "web-0", "-o", "json", "--kubectl", s.kubectl(t)}
		if tt.namespace != "" {
			args = append(args, "--controller-namespace", tt.namespace)
		}
		var stdout, stderr strings.Builder
		if got := run(args, &stdout, &stderr); got != tt.exit {
			t.Errorf("%s: exit code %d; want %d; stderr %s", name, got, tt.exit, stderr.String())
		}
		var x liveExplained
		if err := json.Unmarshal([]byte(stdout.String()), &x); err != nil || x.Pod != "Pod shop/web-0" {
			t.Errorf("%s: printed %s, %v; want the pod as JSON", name, stdout.String(), err)
		}
	}
}

func TestAffinityExplainLiveRefuses(t *testing.T) {
	s := newLiveScene(time.Now())
	s.without = []string{"nodes"}
	program := s.kubectl(t)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--live"}, "--live needs the name of one POD"},
		{[]string{"--live", "a", "b"}, "--live needs the name of one POD"},
		{[]string{"--live", "web-0", "-f", "x"}, "leave --file out"},
		{[]string{"--live", "web-0", "--node", "x"}, "leave --node out"},
		{[]string{"--live", "--", "--token=x"}, `"--token=x" is not the name of a pod`},
		{[]string{"--live", "pod/web-0"}, "is not the name of a pod"},
		{[]string{"web-0"}, "needs --live"},
		{[]string{"-f", "x", "--node", "y", "-n", "shop"}, "--namespace needs --live"},
		{[]string{"--live", "web-0", "--kubectl", program}, "nodes is forbidden"},
		{[]string{"--live", "other", "--kubectl", program}, "unexpected: get pods -o json other"},
		{[]string{"--live", "web-0", "--kubectl", "no-such-kubectl"}, "install kubectl, or name it with --kubectl"},
	} {
		var stdout, stderr strings.Builder
		got := run(append([]string{"affinity", "explain"}, tt.args...), &stdout, &stderr)
		if got != exitUsage || !strings.Contains(stderr.String(), tt.want) || stdout.Len() > 0 {
			t.Errorf("evictctl affinity explain %q: exit code %d, stdout %q, stderr %q; want %d and %q", tt.args, got, stdout.String(), stderr.String(), exitUsage, tt.want)
		}
	}
}

// TestEventTimes: the last time and the count of an event, as the two versions of the API have them.
func TestEventTimes(t *testing.T) {
	at := func(minute int) time.Time { return liveNow.Add(time.Duration(minute) * time.Minute) }
	created := metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(at(0))}
	for name, tt := range map[string]struct {
		event corev1.Event
		last  time.Time
		count int32
	}{
		"core":      {corev1.Event{ObjectMeta: created, LastTimestamp: metav1.NewTime(at(1)), Count: 3}, at(1), 3},
		"single":    {corev1.Event{ObjectMeta: created, EventTime: metav1.NewMicroTime(at(2))}, at(2), 1},
		"no time":   {corev1.Event{ObjectMeta: created}, at(0), 1},
		"no series": {corev1.Event{ObjectMeta: created, Series: &corev1.EventSeries{}}, at(0), 1},
		"series": {corev1.Event{
			ObjectMeta: created, EventTime: metav1.NewMicroTime(at(2)),
			Series: &corev1.EventSeries{Count: 5, LastObservedTime: metav1.NewMicroTime(at(4))},
		}, at(4), 5},
	} {
		if last, count := lastOf(&tt.event), countOf(&tt.event); !last.Equal(tt.last) || count != tt.count {
			t.Errorf("%s: lastOf() = %v, countOf() = %d; want %v, %d", name, last, count, tt.last, tt.count)
		}
	}
}
