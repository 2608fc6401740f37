package cluster

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/evictd/evictd/agent/kube"
)

func TestKeepsNewestState(t *testing.T) {
	pod := func(version, mark string) *corev1.Pod {
		return apiPod("0", func(p *corev1.Pod) {
			p.ResourceVersion, p.Annotations = version, map[string]string{annotationEvicted: mark}
		})
	}
	for _, tt := range []struct{ name, known, comes, want string }{
		{"first", "", "5", "comes"},
		{"newer", "5", "10", "comes"},
		{"older", "10", "9", "known"},
		{"same", "5", "5", "comes"}, // an event has more than the answer to a write
		{"known is no number", "x5", "4", "comes"},
		{"no number", "5", "x4", "comes"},
		{"negative", "5", "-4", "comes"},
		{"largest", "18446744073709551615", "18446744073709551614", "known"},
		{"too large", "5", "18446744073709551616", "comes"},
		{"empty", "5", "", "comes"},
	} {
		r := NewReporter("n1", &orders{}, slog.New(slog.DiscardHandler))
		if tt.known != "" {
			r.observe(pod(tt.known, "known"))
		}
		if r.observe(pod(tt.comes, "comes")); r.pods["0"].mark != tt.want {
			t.Errorf("%s: event of version %q after %q: kept %q; want %q", tt.name, tt.comes, tt.known, r.pods["0"].mark, tt.want)
		}
	}
}

func TestReported(t *testing.T) {
	for _, tt := range []struct {
		version uint64
		answer  string
		want    bool
	}{{5, "6", true}, {5, "5", false}, {6, "5", false}, {0, "5", false}, {5, "x", false}, {5, "", false}} {
		s := podState{version: tt.version, phase: corev1.PodRunning, terminated: true, restarts: true}
		s.reported(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: tt.answer, Generation: 3, DeletionTimestamp: new(metav1.NewTime(decided))}}, "mark")
		want := podState{version: tt.version, phase: corev1.PodRunning, terminated: true, restarts: true}
		if tt.want {
			want = podState{version: 6, generation: 3, phase: corev1.PodFailed, mark: "mark", restarts: true, deleting: true, reason: true, disrupted: true, terminated: true}
		}
		if diff := cmp.Diff(want, s, cmp.AllowUnexported(podState{})); diff != "" {
			t.Errorf("version %d, answer %q: (-want +got):\n%s", tt.version, tt.answer, diff)
		}
	}
}

// What the watch shows is not forgotten for an answer that is older, and an event that is older
// than an answer is not taken for the kubelet's.
func TestNewestStateCounts(t *testing.T) {
	t.Parallel()
	const mark = "2026-11-23T00:00:00.005Z/"
	undone := func(p *corev1.Pod) {
		written("1")(p)
		p.Status.Phase = corev1.PodFailed
	}
	// seen waits until the Reporter has the event of another pod.
	seen := func(o *orders) {
		o.api.change(watch.Added, apiPod("probe"))
		o.until("event", func() bool {
			o.Reporter.mu.Lock()
			defer o.Reporter.mu.Unlock()
			_, ok := o.pods["probe"]
			return ok
		})
	}
	patched := func(w http.ResponseWriter, version string) {
		answer(w, map[string]any{"kind": "PartialObjectMetadata", "metadata": map[string]string{"uid": "0", "resourceVersion": version}})
	}
	for name, tt := range map[string]struct {
		respond func(o *orders, number int, w http.ResponseWriter)
		after   func(o *orders) // when there is an answer
		want    []string
	}{
		"event before the answer to a read": {func(o *orders, number int, w http.ResponseWriter) {
			switch number {
			case 1:
				status(w, http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified")
			case 2:
				o.api.change(watch.Modified, apiPod("0", undone)) // another evictd-kube's write
				seen(o)
				answer(w, apiPod("0", func(p *corev1.Pod) { p.ResourceVersion = "2" }))
			default:
				patched(w, "100")
			}
		}, nil, []string{mark + "1", "GET", mark + "2"}},
		"event before the answer to a write": {func(o *orders, number int, w http.ResponseWriter) {
			if number == 1 {
				o.api.change(watch.Modified, apiPod("0", undone))
				seen(o)
				patched(w, "3")
				return
			}
			patched(w, "100")
		}, nil, []string{mark + "1", mark + "2"}},
		"event after the answer to a write": {func(o *orders, number int, w http.ResponseWriter) {
			if number == 1 { // is carried out, then undone
				http.Error(w, "no", http.StatusServiceUnavailable)
				return
			}
			patched(w, "100")
		}, func(o *orders) {
			o.api.change(watch.Modified, apiPod("0", undone)) // between the two writes
			seen(o)
		}, []string{mark + "1", mark + "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var got []string
			o := startOrders(t, 1, func(o *orders, number int, w http.ResponseWriter, r *http.Request) {
				what := r.Method
				var p statusPatch
				if json.NewDecoder(r.Body).Decode(&p) == nil {
					what = p.Metadata.Annotations[annotationEvicted]
				}
				if r.Method != http.MethodPost { // an event
					mu.Lock()
					got = append(got, what)
					number = len(got)
					mu.Unlock()
				}
				tt.respond(o, number, w)
			})
			o.order(0, kube.StageEnded)
			o.until("requests", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(got) >= len(tt.want)
			})
			o.until("answer", func() bool { return o.has("order-0", kube.AnswerReported) || o.has("order-0", kube.AnswerAsserted) })
			if tt.after != nil {
				tt.after(o)
			}
			time.Sleep(100 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(got, tt.want) {
				t.Errorf("requests %q; want %q", got, tt.want)
			}
		})
	}
}

// What a tenant writes into the annotations does not fill the memory.
func TestStateIsSmall(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	s := stateOf(apiPod("0", func(p *corev1.Pod) {
		p.Annotations = map[string]string{annotationEvicted: long, annotationMirror: long}
	}))
	if s.mark != "" || s.mirror == "" || len(s.mirror) > 100 {
		t.Errorf("mark of %d bytes, mirror of %d; want none, and a short one", len(s.mark), len(s.mirror))
	}
	o := &kube.Order{Decided: decided}
	if s := (podState{mark: stateOf(apiPod("0", written("6"))).mark}); s.writes(o.Decided) != 6 {
		t.Errorf("mark %q; want that of write 6", s.mark)
	}
}

// The states of running pods are kept, as many as there is room for, and those of the pods of
// orders.
func TestStatesAreBounded(t *testing.T) {
	running := listedOf(apiPod(""))
	completed := listedOf(apiPod("", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }))
	fill := map[string]func(*Reporter){
		"list": func(r *Reporter) {
			list := map[string]*listed{"ordered": running, "completed": completed, "completed, ordered": completed}
			for i := range 2 * maxStates {
				list[fmt.Sprint(i)] = running
			}
			r.replace(list)
		},
		"events": func(r *Reporter) {
			for i := range 2 * maxStates {
				r.observe(apiPod(fmt.Sprint(i)))
			}
			r.observe(apiPod("completed")) // as it was before
			for _, uid := range []string{"ordered", "completed", "completed, ordered"} {
				r.observe(apiPod(uid, func(p *corev1.Pod) {
					if uid != "ordered" {
						p.Status.Phase = corev1.PodSucceeded
					}
				}))
			}
		},
	}
	for name, fill := range fill {
		r := NewReporter("n1", &orders{}, slog.New(slog.DiscardHandler))
		r.Order(&kube.Order{ID: "a", UID: "ordered"})
		r.Order(&kube.Order{ID: "b", UID: "completed, ordered"})
		fill(r)
		_, ordered := r.pods["ordered"]
		_, done := r.pods["completed, ordered"]
		if _, ok := r.pods["completed"]; ok || !ordered || !done || len(r.pods) < maxStates || len(r.pods) > maxStates+2 {
			t.Errorf("%s: %d states, with orders %t and %t, completed %t; want %d and those with orders", name, len(r.pods), ordered, done, ok, maxStates)
		}
		r.Withdraw("b")
		if _, ok := r.pods["completed, ordered"]; ok {
			t.Errorf("%s: the state of a completed pod is kept without its order", name)
		}
		r.observe(apiPod("0", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }))
		if _, ok := r.pods["0"]; ok {
			t.Errorf("%s: the state of a pod that completes is kept", name)
		}
	}
}
