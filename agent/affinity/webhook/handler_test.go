package webhook

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/evictd/evictd/agent/affinity"
)

const valid = "nodeSelectorTerms:\n- matchExpressions:\n  - {key: licence, operator: In, values: [valid]}\n"

// term returns a term that requires labels to exist.
func term(keys ...string) corev1.NodeSelectorTerm {
	var t corev1.NodeSelectorTerm
	for _, key := range keys {
		t.MatchExpressions = append(t.MatchExpressions, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpExists})
	}
	return t
}

func licence() corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "licence", Operator: "In", Values: []string{"valid"}}}}
}

func selector(terms ...corev1.NodeSelectorTerm) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: terms}
}

// newPod returns a pod with an annotation, none if it is empty, and a node affinity, none if it is nil.
func newPod(annotation string, required *corev1.NodeSelector) *corev1.Pod {
	p := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{GenerateName: "web-"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "i"}}},
	}
	if annotation != "" {
		p.Annotations = map[string]string{affinity.Annotation: annotation, "other": "kept"}
	}
	if required != nil {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
	}
	return p
}

// request returns the request for the creation of an object.
func request(tb testing.TB, object any) *admissionv1.AdmissionRequest {
	tb.Helper()
	raw, err := json.Marshal(object)
	if err != nil {
		tb.Fatal(err)
	}
	return &admissionv1.AdmissionRequest{
		UID: "u", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
		Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: raw},
	}
}

func body(tb testing.TB, r *admissionv1.AdmissionRequest) string {
	tb.Helper()
	b, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: r})
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}

// send posts a body, and returns the response of the AdmissionReview; nil with the status and text of another answer.
func send(tb testing.TB, h *Handler, kind, body string) (*admissionv1.AdmissionResponse, string) {
	tb.Helper()
	r := httptest.NewRequest(http.MethodPost, "/mutate/pods", strings.NewReader(body))
	r.Header.Set("Content-Type", kind)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		return nil, fmt.Sprintf("%d %s", w.Code, strings.TrimSpace(w.Body.String()))
	}
	var out admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
		tb.Fatal(err)
	}
	if out.APIVersion != "admission.k8s.io/v1" || out.Kind != "AdmissionReview" || out.Response == nil || out.Response.UID != "u" {
		tb.Fatalf("answer %s; want an AdmissionReview of the version v1 for the request's UID", w.Body)
	}
	return out.Response, ""
}

// A panic is an answer, and is counted.
func TestPanic(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/mutate/pods", strings.NewReader("{}"))
	r.Header.Set("Content-Type", "application/json")
	_, how, err := New().answer(httptest.NewRecorder(), r, func([]byte) ([]byte, result, error) { panic("test") })
	if how != panicked || err == nil || !strings.Contains(err.Error(), "test") {
		t.Errorf("answer of a panic = %s, %v; want %s with its text", how, err, panicked)
	}
}

// patched returns the object with a JSON patch of additions.
func patched(tb testing.TB, object any, patch []byte) *corev1.Pod {
	tb.Helper()
	raw, err := json.Marshal(object)
	if err != nil {
		tb.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(raw, &tree); err != nil {
		tb.Fatal(err)
	}
	var operations []struct {
		Op, Path string
		Value    any
	}
	if err := json.Unmarshal(patch, &operations); len(patch) > 0 && err != nil {
		tb.Fatal(err)
	}
	for _, o := range operations {
		path := strings.Split(strings.TrimPrefix(o.Path, "/"), "/")
		at := tree
		for _, key := range path[:len(path)-1] {
			next, ok := at[key].(map[string]any)
			if !ok {
				tb.Fatalf("patch %s: there is no %s", patch, key)
			}
			at = next
		}
		if o.Op != "add" {
			tb.Fatalf("patch %s: want additions only", patch)
		}
		at[path[len(path)-1]] = o.Value
	}
	if raw, err = json.Marshal(tree); err != nil {
		tb.Fatal(err)
	}
	p := &corev1.Pod{}
	if err := json.Unmarshal(raw, p); err != nil {
		tb.Fatal(err)
	}
	return p
}

func count(tb testing.TB, h *Handler) map[result]float64 {
	tb.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(h)
	families, err := registry.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	out := make(map[result]float64)
	for _, m := range families[0].Metric {
		out[result(m.Label[0].GetValue())] = m.GetCounter().GetValue()
	}
	return out
}

func TestPods(t *testing.T) {
	zone := &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}}
	preferred := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1, Preference: term("ssd")}},
	}}
	for _, tt := range []struct {
		name   string
		pod    *corev1.Pod
		change func(*corev1.Pod)
		want   *corev1.NodeSelector // nil: unchanged
		result result
		note   string // the warning, or the reason of the denial
	}{
		{"no annotation", newPod("", nil), nil, nil, unchanged, ""},
		{"no affinity", newPod(valid, nil), nil, selector(licence()), restricted, ""},
		{"no node affinity", newPod(valid, nil), func(p *corev1.Pod) { p.Spec.Affinity = zone }, selector(licence()), restricted, ""},
		{"only preferred", newPod(valid, nil), func(p *corev1.Pod) { p.Spec.Affinity = preferred }, selector(licence()), restricted, ""},
		{"two terms", newPod(valid, selector(term("a"), term("b"))), nil, selector(
			corev1.NodeSelectorTerm{MatchExpressions: append(term("a").MatchExpressions, licence().MatchExpressions...)},
			corev1.NodeSelectorTerm{MatchExpressions: append(term("b").MatchExpressions, licence().MatchExpressions...)},
		), restricted, ""},
		{"has it already", newPod(valid, selector(licence())), nil, nil, unchanged, ""},
		{"has it in one term only", newPod(valid, selector(licence(), term("a"))), nil, selector(
			licence(), corev1.NodeSelectorTerm{MatchExpressions: append(term("a").MatchExpressions, licence().MatchExpressions...)},
		), restricted, ""},
		{"bound already", newPod(valid, nil), func(p *corev1.Pod) { p.Spec.NodeName = "a" }, selector(licence()), restricted, ""},
		{"ReplicaSet", newPod(valid, nil), owned("ReplicaSet", true), selector(licence()), restricted, ""},
		{"DaemonSet", newPod(valid, nil), owned("DaemonSet", true), nil, unchanged, ""},
		{"DaemonSet that is no controller", newPod(valid, nil), owned("DaemonSet", false), selector(licence()), restricted, ""},
		{"static", newPod(valid, nil), owned("Node", true), nil, unchanged, ""},
		{"mirror", newPod(valid, nil), func(p *corev1.Pod) { p.Annotations[corev1.MirrorPodAnnotationKey] = "x" }, nil, unchanged, ""},
		{"invalid", newPod("nodeSelectorTerms: []", nil), nil, nil, invalid,
			"parse annotation evictd.io/required-during-execution: line 1, column 20: nodeSelectorTerms: is an empty list, which matches no node; " +
				"write at least one term; the pod is scheduled without this requirement"},
		{"empty", newPod("", nil), func(p *corev1.Pod) { p.Annotations = map[string]string{affinity.Annotation: ""} }, nil, invalid,
			"parse annotation evictd.io/required-during-execution: is empty; write a NodeSelector with nodeSelectorTerms, or remove the annotation; " +
				"the pod is scheduled without this requirement"},
		{"257 terms", newPod(valid, selector(make([]corev1.NodeSelectorTerm, 257)...)), func(p *corev1.Pod) {
			terms := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			for i := range terms {
				terms[i] = term("a")
			}
		}, nil, denied, "add annotation evictd.io/required-during-execution to the pod's node affinity: " +
			"257 terms with 1 terms make 257, more than 256; use fewer terms"},
		{"no terms", newPod(valid, selector()), nil, nil, unchanged, ""}, // refused by the API server
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.change != nil {
				tt.change(tt.pod)
			}
			h := New()
			got, text := send(t, h, "application/json", body(t, request(t, tt.pod)))
			if got == nil {
				t.Fatal(text)
			}
			if got.Allowed != (tt.result != denied) {
				t.Errorf("allowed: %t", got.Allowed)
			}
			note := strings.Join(got.Warnings, "\n")
			if got.Result != nil {
				note += got.Result.Message
			}
			if note != tt.note {
				t.Errorf("note %q; want %q", note, tt.note)
			}
			want := tt.pod.DeepCopy()
			if tt.want != nil {
				if want.Spec.Affinity == nil {
					want.Spec.Affinity = &corev1.Affinity{}
				}
				if want.Spec.Affinity.NodeAffinity == nil {
					want.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
				}
				want.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = tt.want
			}
			next := patched(t, tt.pod, got.Patch)
			if diff := cmp.Diff(want, next); diff != "" {
				t.Errorf("pod (-want +got):\n%s", diff)
			}
			counted := count(t, h)
			if counted[tt.result] != 1 || len(counted) != len(allResults) {
				t.Errorf("counted %v; want one %s, and all results", counted, tt.result)
			}
			again, _ := send(t, h, "application/json", body(t, request(t, next)))
			if len(again.Patch) > 0 || again.Allowed != got.Allowed {
				t.Errorf("called again: allowed %t, patch %s; want the same without a patch", again.Allowed, again.Patch)
			}
		})
	}
}

// owned gives a pod an owner.
func owned(kind string, controller bool) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "Other", UID: "1"}, {Kind: kind, UID: "2", Controller: &controller}}
	}
}

// TestRequests: what is not the creation of a pod stays as it is.
func TestRequests(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*admissionv1.AdmissionRequest)
		result result
	}{
		{"creation", func(*admissionv1.AdmissionRequest) {}, restricted},
		{"dry run", func(r *admissionv1.AdmissionRequest) { r.DryRun = new(true) }, restricted},
		{"update", func(r *admissionv1.AdmissionRequest) { r.Operation, r.OldObject = admissionv1.Update, r.Object }, unchanged},
		{"deletion", func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Delete }, unchanged},
		{"subresource", func(r *admissionv1.AdmissionRequest) { r.SubResource = "eviction" }, unchanged},
		{"another kind", func(r *admissionv1.AdmissionRequest) { r.Kind.Kind = "PodTemplate" }, unchanged},
		{"another group", func(r *admissionv1.AdmissionRequest) { r.Kind.Group = "example.com" }, unchanged},
		{"no object", func(r *admissionv1.AdmissionRequest) { r.Object.Raw = nil }, invalid},
		{"no pod", func(r *admissionv1.AdmissionRequest) { r.Object.Raw = []byte(`{"spec": []}`) }, invalid},
		{"unknown field", func(r *admissionv1.AdmissionRequest) {
			r.Object.Raw = []byte(`{"metadata":{"annotations":{"evictd.io/required-during-execution":"` +
				strings.ReplaceAll(valid, "\n", `\n`) + `"}},"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"future":1}}}}}`)
		}, invalid},
		{"null selector", func(r *admissionv1.AdmissionRequest) {
			r.Object.Raw = []byte(`{"metadata":{"annotations":{"evictd.io/required-during-execution":"` +
				strings.ReplaceAll(valid, "\n", `\n`) + `"}},"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":null}}}}`)
		}, restricted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := request(t, newPod(valid, nil))
			tt.change(r)
			h := New()
			got, text := send(t, h, "application/json; charset=utf-8", body(t, r))
			if got == nil {
				t.Fatal(text)
			}
			if !got.Allowed || (len(got.Patch) > 0) != (tt.result == restricted) || count(t, h)[tt.result] != 1 {
				t.Errorf("allowed %t, patch %s, counted %v; want allowed and %s", got.Allowed, got.Patch, count(t, h), tt.result)
			}
		})
	}
}

func TestMalformed(t *testing.T) {
	whole := body(t, request(t, newPod(valid, nil)))
	for _, tt := range []struct {
		name, kind, body, want string
	}{
		{"content type", "text/plain", whole, `400 content type is "text/plain"; want application/json`},
		{"no content type", "", whole, `400 content type is ""; want application/json`},
		{"empty", "application/json", "", "400 decode the AdmissionReview: unexpected end of JSON input"},
		{"trailing data", "application/json", whole + "{}", "400 decode the AdmissionReview: invalid character '{' after top-level value"},
		{"old version", "application/json", strings.Replace(whole, "admission.k8s.io/v1", "admission.k8s.io/v1beta1", 1),
			`400 the request is "AdmissionReview" of "admission.k8s.io/v1beta1"; want AdmissionReview of admission.k8s.io/v1`},
		{"another kind", "application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"Pod"}`, `400 the request is "Pod" of "admission.k8s.io/v1"; want AdmissionReview of admission.k8s.io/v1`},
		{"no request", "application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, "400 the AdmissionReview has no request"},
		{"no UID", "application/json", strings.Replace(whole, `"uid":"u"`, `"uid":""`, 1), "400 the AdmissionReview has no request"},
		{"too long", "application/json", strings.Repeat(" ", MaxBody) + whole, "400 read the request: http: request body too large"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := New()
			if got, text := send(t, h, tt.kind, tt.body); got != nil || text != tt.want {
				t.Errorf("answer %+v, %s; want %s", got, text, tt.want)
			}
			if got := count(t, h)[malformed]; got != 1 {
				t.Errorf("%v malformed; want 1", got)
			}
		})
	}
}

// randomSelector returns a selector of one to three terms over few keys and values.
func randomSelector(r *rand.Rand) *corev1.NodeSelector {
	keys, operators, values := []string{"a", "b", "c"}, []corev1.NodeSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"}, []string{"1", "2", "x"}
	s := &corev1.NodeSelector{}
	for range 1 + r.IntN(3) {
		var t corev1.NodeSelectorTerm
		for range 1 + r.IntN(2) {
			q := corev1.NodeSelectorRequirement{Key: keys[r.IntN(3)], Operator: operators[r.IntN(6)]}
			switch q.Operator {
			case "In", "NotIn":
				q.Values = []string{values[r.IntN(3)]}
			case "Gt", "Lt":
				q.Values = []string{values[r.IntN(2)]}
			}
			t.MatchExpressions = append(t.MatchExpressions, q)
		}
		if r.IntN(4) == 0 {
			t.MatchFields = []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: operators[r.IntN(2)], Values: []string{"host1"}}}
		}
		s.NodeSelectorTerms = append(s.NodeSelectorTerms, t)
	}
	return s
}

// TestMatchProperty: what the webhook makes of a pod matches a node exactly when the pod's own affinity and the
// annotation do, and the webhook changes nothing of it if it is called again.
func TestMatchProperty(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	h, matches := New(), 0
	for range 2000 {
		existing, annotation := randomSelector(r), randomSelector(r)
		if r.IntN(8) == 0 {
			existing = nil
		}
		text, err := json.Marshal(annotation)
		if err != nil {
			t.Fatal(err)
		}
		pod := newPod(string(text), existing)
		got, _ := send(t, h, "application/json", body(t, request(t, pod)))
		result := patched(t, pod, got.Patch)
		if again, _ := send(t, h, "application/json", body(t, request(t, result))); len(again.Patch) > 0 {
			t.Fatalf("called again for %+v: patch %s", result.Spec.Affinity, again.Patch)
		}
		for range 10 {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("host", r.IntN(2)), Labels: map[string]string{}}}
			for _, key := range []string{"a", "b", "c"} {
				if r.IntN(3) > 0 {
					node.Labels[key] = []string{"0", "1", "2", "3", "x"}[r.IntN(5)]
				}
			}
			want := matchesNode(t, pod, node) && matchesNode(t, newPod("", annotation), node)
			if got := matchesNode(t, result, node); got != want {
				t.Fatalf("%+v and %s on %v: the webhook's result matches: %t; want %t", existing, text, node.Labels, got, want)
			}
			if want {
				matches++
			}
		}
	}
	if matches < 1000 || matches > 19000 {
		t.Errorf("%d of 20000 match: the test has lost its meaning", matches)
	}
}

func matchesNode(t *testing.T, p *corev1.Pod, node *corev1.Node) bool {
	t.Helper()
	ok, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(node)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// FuzzReview: whatever comes, the answer is an error, or a review that allows the pod with or without additions, or
// denies it with a reason.
func FuzzReview(f *testing.F) {
	for _, p := range []*corev1.Pod{newPod(valid, nil), newPod(valid, selector(term("a"))), newPod("x", nil), newPod("", nil)} {
		f.Add([]byte(body(f, request(f, p))))
	}
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE","kind":{"version":"v1","kind":"Pod"},"object":{"spec":{"affinity":null}}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		answer, _, err := review(body)
		if err != nil {
			return
		}
		var out, in admissionv1.AdmissionReview
		if err := json.Unmarshal(answer, &out); err != nil || out.Response == nil {
			t.Fatalf("answer %s: %v", answer, err)
		}
		if err := json.Unmarshal(body, &in); err != nil || in.Request.UID != out.Response.UID {
			t.Fatalf("answer %s: %v; want the request's UID", answer, err)
		}
		if !out.Response.Allowed && (out.Response.Result == nil || out.Response.Result.Message == "") {
			t.Fatalf("denied without a reason: %s", answer)
		}
		if len(out.Response.Patch) > 0 && !json.Valid(out.Response.Patch) {
			t.Fatalf("patch %s", out.Response.Patch)
		}
	})
}
