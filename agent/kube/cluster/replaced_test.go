package cluster

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/kube"
)

// controlledBy makes a pod that of a controller.
func controlledBy(apiVersion, kind string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.ResourceVersion = "7"
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "web", Controller: new(true)}}
	}
}

func TestIsReplaced(t *testing.T) {
	for _, tt := range []struct {
		apiVersion, kind string
		want             bool
	}{
		{"apps/v1", "StatefulSet", true}, {"apps/v1", "DaemonSet", true}, {"apps/v1", "ReplicaSet", false},
		{"batch/v1", "Job", false}, {"example.com/v1", "StatefulSet", false},
	} {
		if got := isReplaced(apiPod("0", controlledBy(tt.apiVersion, tt.kind))); got != tt.want {
			t.Errorf("isReplaced(pod of %s %s) = %t; want %t", tt.apiVersion, tt.kind, got, tt.want)
		}
	}
	if isReplaced(apiPod("0")) {
		t.Error("isReplaced(pod without a controller) = true; want false")
	}
}

// The annotation of a pod whose controller deletes it follows after annotateDelay. That is no assertion.
func TestAnnotationFollows(t *testing.T) {
	var got orders
	r := NewReporter("n1", &got, slog.New(slog.DiscardHandler))
	pod, c := apiPod("0", controlledBy("apps/v1", "StatefulSet")), &connection{&client{}, func(error) {}}
	r.observe(pod)
	r.Order(&kube.Order{ID: "a", UID: "0", Namespace: "default", Name: "web-0", Stage: kube.StageEnded, Reason: "Evicted", Message: "m", Decided: decided, Fenced: true})
	task, now := r.tasks["a"], time.Now()
	// step carries out the request that is due, which the API server answers with a version.
	step := func(now time.Time, version string) action {
		next := now.Add(time.Hour)
		found, ok := r.candidate(task, now, &next)
		if !ok {
			t.Fatalf("no request at %v, the next is due at %v", now, next)
		}
		r.start(task, found.a)
		task.inFlight[found.a.kind]--
		answer := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID, ResourceVersion: version}}
		r.learn(task, found.a, answer)
		r.finish(task, found.a, c, nil, now)
		return found.a
	}
	patch := func(a action) (p statusPatch) {
		body, err := patchOf(&task.order, 1, a.write, a.plain)
		if err != nil || json.Unmarshal(body, &p) != nil {
			t.Fatalf("patchOf() = %s, %v", body, err)
		}
		return p
	}
	first := step(now, "8")
	if p := patch(first); len(p.Metadata.Annotations) != 0 || p.Status.Phase != corev1.PodFailed || p.Status.Reason != "Evicted" || len(p.Status.Conditions) != 1 {
		t.Errorf("first patch %+v; want all but the annotation", p)
	}
	if s := r.pods["0"]; s.mark != "" || s.phase != corev1.PodFailed || !s.reason {
		t.Errorf("state %+v after the first patch; want a failed pod without the annotation", s)
	}
	early, next := now.Add(annotateDelay-time.Millisecond), now.Add(time.Hour)
	if found, ok := r.candidate(task, early, &next); ok || !next.Equal(now.Add(annotateDelay)) {
		t.Errorf("request %+v (%t) before the delay, next at %v; want none, and %v", found.a, ok, next.Sub(now), annotateDelay)
	}
	second := step(now.Add(annotateDelay), "9")
	if p := patch(second); p.Metadata.Annotations[annotationEvicted] != markOf(&task.order, 2) {
		t.Errorf("second patch %+v; want the annotation", p)
	}
	if found, ok := r.candidate(task, now.Add(time.Minute), &next); ok {
		t.Errorf("request %+v after the annotation; want none", found.a)
	}
	if len(got.answers) != 1 || got.answers[0].Answer != kube.AnswerReported {
		t.Errorf("answers %+v; want that it is reported, once", got.answers)
	}
}

// The answer to the first write comes too late, and the controller deletes the pod: the write was seen in the watch, so
// the eviction counts as reported and has its event.
func TestLostAnswer(t *testing.T) {
	for _, tt := range []struct {
		name          string
		shown, leaves bool // the watch has shown the write, and that the object has left the API
		want          kube.Answer
	}{
		{"deleted", true, false, kube.AnswerReported},
		{"left the API", true, true, kube.AnswerReported},
		{"deleted, not written", false, false, kube.AnswerTerminating},
		{"left the API, not written", false, true, kube.AnswerGone},
	} {
		var got orders
		r := NewReporter("n1", &got, slog.New(slog.DiscardHandler))
		pod := apiPod("0", controlledBy("apps/v1", "StatefulSet"))
		r.observe(pod)
		r.Order(&kube.Order{ID: "a", UID: "0", Namespace: "default", Name: "web-0", Stage: kube.StageEnded, Reason: "Evicted", Message: "m", Decided: decided, Fenced: true})
		task, now := r.tasks["a"], time.Now()
		next := now.Add(time.Hour)
		found, ok := r.candidate(task, now, &next)
		if !ok {
			t.Fatalf("%s: no request", tt.name)
		}
		r.start(task, found.a)
		seen := func(version string, change func(*corev1.Pod)) {
			pod = pod.DeepCopy()
			pod.ResourceVersion = version
			change(pod)
			r.observe(pod)
		}
		if tt.shown {
			seen("8", func(p *corev1.Pod) {
				p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted"
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reasonDisrupted}}
			})
		}
		seen("9", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
		task.inFlight[setPhase]--
		if tt.leaves {
			r.gone("0")
		}
		r.finish(task, found.a, &connection{&client{}, func(error) {}}, context.DeadlineExceeded, now)
		r.candidate(task, now.Add(longestDelay), &next)
		if task.answer != tt.want {
			t.Errorf("%s: answer %q; want %q", tt.name, task.answer, tt.want)
		}
		if announced := len(r.events) == 1 && r.events[0].Reason == reasonEvicted; announced != tt.shown {
			t.Errorf("%s: events %+v; want that of the eviction: %t", tt.name, r.events, tt.shown)
		}
	}
}
