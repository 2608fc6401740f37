package affinity

import (
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"weak"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evictd/evictd/agent/affinity"
)

const valid = "nodeSelectorTerms:\n- matchExpressions:\n  - {key: licence, operator: In, values: [valid]}\n"

func testNode(name, licence string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"licence": licence}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
}

// testPod returns a ready pod of a ReplicaSet with an annotation, empty for none.
func testPod(name, node, set, annotation string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": set},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: set, UID: types.UID("uid-" + set), Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "i"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue},
		}},
	}
	if annotation != "" {
		p.Annotations = map[string]string{affinity.Annotation: annotation}
	}
	return p
}

// names returns the names of the pods that violate.
func names(x *index) string {
	list, _, _ := x.violations()
	var all []string
	for _, v := range list {
		all = append(all, v.Name)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func TestIndex(t *testing.T) {
	changes := 0
	x := newIndex(func() { changes++ })
	check := func(step, want string, ready int) {
		t.Helper()
		if got := names(x); got != want {
			t.Errorf("%s: violating %q; want %q", step, got, want)
		}
		if got := x.readyOf("default", []types.UID{"uid-web"}); got != ready {
			t.Errorf("%s: %d pods ready; want %d", step, got, ready)
		}
	}
	add := func(p *corev1.Pod) {
		t.Helper()
		if err := x.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	add(testPod("p1", "a", "web", valid))
	add(testPod("p2", "a", "web", ""))
	add(testPod("p3", "b", "web", valid))
	add(testPod("p4", "", "web", valid))
	check("unknown nodes", "", 3)
	x.setNode(testNode("a", "expired"))
	x.setNode(testNode("b", "valid"))
	check("nodes", "p1", 3)
	changes = 0
	x.setNode(testNode("b", "expired"))
	check("label taken", "p1 p3", 3)
	if changes == 0 {
		t.Error("the change of a label is not reported")
	}
	x.setNode(testNode("a", "valid"))
	check("label back", "p3", 3)
	terminating := testPod("p3", "b", "web", valid)
	terminating.DeletionTimestamp = new(metav1.Now())
	add(terminating)
	check("terminating", "p3", 2)
	add(testPod("p4", "b", "web", valid))
	check("bound", "p3 p4", 3)
	if err := x.Delete(terminating); err != nil {
		t.Fatal(err)
	}
	check("gone", "p4", 3)
	changed := testPod("p4", "b", "web", "nodeSelectorTerms: []")
	add(changed)
	check("invalid", "", 3)
	if _, invalid, _ := x.violations(); len(invalid) != 1 || invalid[0].Name != "p4" || invalid[0].shape.err == nil {
		t.Errorf("invalid: %v; want p4", invalid)
	}
	x.deleteNode("b")
	add(testPod("p4", "b", "web", valid))
	check("node deleted", "", 3)
	x.setNode(testNode("b", "expired"))
	check("node back", "p4", 3)
	required := testPod("p5", "b", "web", "")
	required.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "licence", Operator: "In", Values: []string{"valid"}}}}},
	}}}
	add(required)
	check("ignored", "p4", 4)
	x.setEnforceIgnored(true)
	check("enforced", "p4 p5", 4)
	x.setEnforceIgnored(false)
	check("ignored again", "p4", 4)
	if err := x.Replace([]any{testPod("p6", "b", "web", valid), testPod("p1", "a", "web", valid)}, ""); err != nil {
		t.Fatal(err)
	}
	check("replaced", "p6", 2)
	if err := x.Replace(nil, ""); err != nil {
		t.Fatal(err)
	}
	check("empty", "", 0)
	if len(x.pods)+len(x.ready)+len(x.invalid) > 0 {
		t.Errorf("%d pods, %d counts, %d invalid are left", len(x.pods), len(x.ready), len(x.invalid))
	}
	for name, n := range x.nodes {
		if len(n.pods) > 0 {
			t.Errorf("node %s has %d pods", name, len(n.pods))
		}
	}
}

// TestAtBinding: a pod of the watch that violates when it is new on its node was bound to one that violated already, as
// far as its violation lasts. One of a list may have been there.
func TestAtBinding(t *testing.T) {
	x := newIndex(func() {})
	x.setNode(testNode("a", "expired"))
	x.setNode(testNode("b", "valid"))
	if err := x.Replace([]any{testPod("listed", "a", "web", valid), testPod("pending", "", "web", valid)}, ""); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*corev1.Pod{
		testPod("listed", "a", "web", valid), testPod("pending", "a", "web", valid), testPod("new", "a", "web", valid), testPod("later", "b", "web", valid),
	} {
		for range 2 { // an update changes nothing
			if err := x.Add(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	x.setEnforceIgnored(true)
	check := func(step string, want map[string]bool) {
		t.Helper()
		got := map[string]bool{}
		list, _, _ := x.violations()
		for _, v := range list {
			got[v.Name] = v.atBinding
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: violations at binding: %v; want %v", step, got, want)
		}
	}
	x.setNode(testNode("b", "expired"))
	check("first", map[string]bool{"listed": false, "pending": true, "new": true, "later": false})
	x.setNode(testNode("a", "valid"))
	x.setNode(testNode("a", "expired"))
	check("label back and gone", map[string]bool{"listed": false, "pending": false, "new": false, "later": false})
}

// TestOwn: a violation is the pod's own if it began with its binding, or with a change of its annotation.
func TestOwn(t *testing.T) {
	x := newIndex(func() {})
	x.setNode(testNode("a", "valid"))
	expired := strings.ReplaceAll(valid, "[valid]", "[none]")
	if err := x.Replace([]any{testPod("listed", "a", "web", expired), testPod("annotated", "a", "web", valid), testPod("node", "a", "web", valid)}, ""); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*corev1.Pod{
		testPod("annotated", "a", "web", expired), testPod("annotated", "a", "web", expired), testPod("bound", "a", "web", expired),
		testPod("listed", "a", "web", expired),
	} {
		if err := x.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	x.setNode(testNode("a", "expired"))
	if err := x.Add(testPod("node", "a", "web", valid)); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	list, _, _ := x.violations()
	for _, v := range list {
		got[v.Name] = v.own
	}
	if want := map[string]bool{"annotated": true, "bound": true, "listed": false, "node": false}; !maps.Equal(got, want) {
		t.Errorf("own violations: %v; want %v", got, want)
	}
}

// What makes pods without a controller is known by the begin of their names.
func TestGenerateName(t *testing.T) {
	for _, bare := range []bool{true, false} {
		p := testPod("exec-1", "a", "web", valid)
		want := ""
		if p.GenerateName = "exec-"; bare {
			p.OwnerReferences, want = nil, "exec-"
		}
		x := newIndex(func() {})
		x.setNode(testNode("a", "expired"))
		if err := x.Add(p); err != nil {
			t.Fatal(err)
		}
		list, _, _ := x.violations()
		l := &loop{index: x, workloads: newWorkloads(live{}, slog.New(slog.DiscardHandler))}
		var in affinity.Inputs
		l.addPods(&in, list, nil, time.Now())
		if got := in.Violating[0].GenerateName; got != want {
			t.Errorf("GenerateName = %q; want %q", got, want)
		}
	}
}

func TestPresent(t *testing.T) {
	x := newIndex(func() {})
	if err := x.Add(testPod("p", "a", "web", "")); err != nil {
		t.Fatal(err)
	}
	got := x.present([]affinity.PodKey{
		{Namespace: "default", Name: "p", UID: "uid-p"}, {Namespace: "default", Name: "p", UID: "other"}, {Namespace: "other", Name: "p", UID: "uid-p2"},
	})
	if want := map[types.UID]bool{"uid-p": true}; !maps.Equal(got, want) {
		t.Errorf("present = %v; want %v", got, want)
	}
}

// Equal requirements are one, and are freed with their last pod.
func TestShapes(t *testing.T) {
	x := newIndex(func() {})
	for i := range 100 {
		if err := x.Add(testPod(fmt.Sprint("p", i), "a", fmt.Sprint("web", i%2), valid+strings.Repeat(" ", i%2))); err != nil {
			t.Fatal(err)
		}
	}
	shapes := map[*shape]bool{}
	for _, p := range x.pods {
		shapes[p.shape] = true
	}
	if len(shapes) != 2 || len(x.shapes.byKey) != 2 {
		t.Errorf("%d shapes, %d known; want 2", len(shapes), len(x.shapes.byKey))
	}
	clear(shapes)
	if err := x.Replace(nil, ""); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		runtime.GC()
		x.shapes.mu.Lock()
		left := len(x.shapes.byKey)
		x.shapes.mu.Unlock()
		if left == 0 {
			return
		}
		runtime.Gosched()
	}
	t.Error("shapes are left after their pods are gone")
}

// The text of a shape counts once, also between its collection and its cleanup.
func TestShapeFreedAndMadeAgain(t *testing.T) {
	var s shapes
	p := testPod("p", "a", "web", valid)
	key, size := keyOf(template(p))
	key.namespace = p.Namespace
	for range 2 {
		s.byKey = map[shapeKey]weak.Pointer[shape]{key: {}} // collected, and not cleaned up
		s.text = map[string]int{key.namespace: size}
		made := s.of(p)
		if got := s.text[key.namespace]; got != size || s.byKey[key].Value() != made {
			t.Fatalf("text of one shape that was made again = %d; want %d", got, size)
		}
		s.drop(key, size) // the cleanup of the first
		if got := s.text[key.namespace]; got != size {
			t.Errorf("text after the cleanup of the first = %d; want %d", got, size)
		}
		runtime.KeepAlive(made)
	}
	s.byKey[key] = weak.Pointer[shape]{}
	for range 2 { // both were collected
		if s.drop(key, size); len(s.text) > 0 || len(s.byKey) > 0 {
			t.Errorf("text, shapes after the last cleanup = %v, %d; want none", s.text, len(s.byKey))
		}
	}
}

const benchPods, benchNodes = 50_000, 5_000

// largeIndex has 500 workloads of 100 pods, spread over all nodes.
func largeIndex(tb testing.TB) *index {
	tb.Helper()
	x := newIndex(func() {})
	for i := range benchNodes {
		x.setNode(testNode(fmt.Sprint("node-", i), "valid"))
	}
	list := make([]any, 0, benchPods)
	for i := range benchPods {
		set := (i + i/benchNodes) % 500 // each node has ten of them
		p := testPod(fmt.Sprint("pod-", i), fmt.Sprint("node-", i%benchNodes), fmt.Sprint("set-", set), valid)
		p.Spec.NodeSelector = map[string]string{"set": fmt.Sprint(set)}
		stripped, err := x.stripped(p)
		if err != nil {
			tb.Fatal(err)
		}
		list = append(list, stripped)
	}
	if err := x.Replace(list, ""); err != nil {
		tb.Fatal(err)
	}
	return x
}

// BenchmarkLabelGone is the time from the loss of a label by all nodes to all violations.
func BenchmarkLabelGone(b *testing.B) {
	x := largeIndex(b)
	gone, back := make([]*corev1.Node, benchNodes), make([]*corev1.Node, benchNodes)
	for i := range benchNodes {
		gone[i], back[i] = testNode(fmt.Sprint("node-", i), ""), testNode(fmt.Sprint("node-", i), "valid")
	}
	b.Run(fmt.Sprint(benchPods), func(b *testing.B) {
		for b.Loop() {
			for _, n := range gone {
				x.setNode(n)
			}
			if list, _, _ := x.violations(); len(list) != benchPods {
				b.Fatalf("%d violations; want %d", len(list), benchPods)
			}
			b.StopTimer()
			for _, n := range back {
				x.setNode(n)
			}
			b.StartTimer()
		}
	})
}

// TestMemory: 50,000 pods and 5,000 nodes need less than a quarter of the 256 MiB of the process.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("indexes 50,000 pods")
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	x := largeIndex(t)
	used := heap() - before
	t.Logf("%d MiB for %d pods, %d shapes", used>>20, len(x.pods), len(slices.Collect(maps.Keys(x.shapes.byKey))))
	if used > 64<<20 {
		t.Errorf("%d pods and %d nodes use %d MiB; want at most 64 MiB", benchPods, benchNodes, used>>20)
	}
	runtime.KeepAlive(x)
}
