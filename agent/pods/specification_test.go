package pods

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri/critest"
)

// recordingSpecs are Specifications that record the pod that they were called with.
type recordingSpecs struct {
	answer  *evict.Pod
	running evict.Pod
}

func (a *recordingSpecs) Specification(running *evict.Pod) *evict.Pod {
	a.running = *running
	return a.answer
}

// A specification does not lift an exemption by the runtime's data, and the source is
// called with what the kubelet passed to the runtime.
//
// Complexity: checks all exemptions of one pod.
//
//gocyclo:ignore
func TestSpecificationExemptsNoLess(t *testing.T) {
	const besteffort, guaranteed = "/kubepods/besteffort/podu1", "/kubepods/podu1"
	low := &evict.Pod{Priority: new(int32(-1)), QoS: evict.BestEffort, Labels: map[string]string{"changed": "true"}}
	for _, tt := range []struct {
		name              string
		source, namespace string
		parent            string
		score             int
		spec              *evict.Pod
		running           evict.Pod
		priority          *int32
		critical          bool
		reason            string // why the pod is exempt next to a kubelet (kubelet: auto)
	}{
		{"ordinary", "api", "default", besteffort, 1000, low, evict.Pod{QoS: evict.BestEffort}, new(int32(-1)), false, ""},
		{"without a specification", "api", "default", besteffort, 1000, nil, evict.Pod{QoS: evict.BestEffort}, nil, false, evict.ReasonProtected},
		{"static", "file", "default", besteffort, 1000, low, evict.Pod{QoS: evict.BestEffort, Static: true}, new(int32(-1)), true, evict.ReasonStatic},
		{"kube-system", "api", "kube-system", besteffort, 1000, low, evict.Pod{QoS: evict.BestEffort, ProtectedReason: "a kubelet's pod in kube-system"}, new(int32(-1)), false, evict.ReasonProtected},
		{"node-critical", "api", "default", besteffort, -997, low, evict.Pod{QoS: evict.BestEffort, Priority: new(int32(criticalPriority))}, new(int32(criticalPriority)), true, evict.ReasonCritical},
		{"node-critical without one", "api", "default", besteffort, -997, nil, evict.Pod{QoS: evict.BestEffort, Priority: new(int32(criticalPriority))}, new(int32(criticalPriority)), true, evict.ReasonCritical},
		{"Guaranteed", "api", "default", guaranteed, -997, low, evict.Pod{QoS: evict.Guaranteed}, new(int32(-1)), false, ""},
		{"node-critical, cgroup without a class", "api", "default", "/", -997, low, evict.Pod{}, new(int32(criticalPriority)), true, evict.ReasonCritical},
		{"Guaranteed, cgroup without a class", "api", "default", "/", -997, &evict.Pod{Priority: new(int32(-1)), QoS: evict.Guaranteed, Labels: low.Labels}, evict.Pod{}, new(int32(-1)), false, ""},
		{"ordinary, cgroup without a class", "api", "default", "/", 1000, low, evict.Pod{}, new(int32(-1)), false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, true)
			annotations := map[string]string{evict.ConfigSourceAnnotation: tt.source}
			n.addPod(critest.Pod{
				Name: "web", UID: "u1", Namespace: tt.namespace, Annotations: annotations, Labels: map[string]string{"app": "web"}, CgroupParent: tt.parent,
				Containers: []critest.Container{{Name: "main", PID: 100, OOMScoreAdj: tt.score}},
			})
			specs := &recordingSpecs{answer: tt.spec}
			i := n.synced(func(o *Options) { o.Specifications = specs })
			got := i.Measure(time.Now()).Pods[0]
			policy := evict.Policy{ProtectUnreportable: true}
			if _, exempt := policy.Rank([]evict.Pod{got}, signal.MemoryAvailable, &evict.State{}, time.Now()); len(exempt) > 1 || (len(exempt) == 1) != (tt.reason != "") || len(exempt) == 1 && exempt[0].Reason != tt.reason {
				t.Errorf("exempt = %+v; want reason %q", exempt, tt.reason)
			}
			r := specs.running
			if r.UID != "u1" || r.Namespace != tt.namespace || r.Name != "web" || !r.Kubelet {
				t.Errorf("called with %+v", r)
			}
			if r.QoS != tt.running.QoS || r.Static != tt.running.Static || r.ProtectedReason != tt.running.ProtectedReason || (r.Priority == nil) != (tt.running.Priority == nil) {
				t.Errorf("called with %+v; want %+v", r, tt.running)
			}
			if (got.Priority == nil) != (tt.priority == nil) || got.Priority != nil && *got.Priority != *tt.priority {
				t.Errorf("priority = %v; want %v", got.Priority, tt.priority)
			}
			if labels := got.RuntimeLabels; (labels != nil) != (tt.spec != nil) || tt.spec != nil && labels["app"] != "web" {
				t.Errorf("the runtime's labels = %v; want them next to those of a specification", labels)
			}
			if got.Critical() != tt.critical || got.ProtectedReason != tt.running.ProtectedReason {
				t.Errorf("critical = %t, spared %q; want %t, %q", got.Critical(), got.ProtectedReason, tt.critical, tt.running.ProtectedReason)
			}
		})
	}
}

// Nor does it lift the exemption by an annotation that the configuration trusts. A
// priority below those of critical pods is that of the specification.
func TestSpecificationAndAnnotations(t *testing.T) {
	for _, tt := range []struct {
		namespace, key, value string
		critical              bool
	}{
		{"trusted", annotationCritical, "true", true},
		{"default", annotationCritical, "true", false},
		{"trusted", annotationPriority, "2000000000", true},
		{"default", annotationPriority, "2000000000", false},
		{"trusted", annotationPriority, "1999999999", false},
		{"trusted", annotationPriority, "3000000000", false}, // not a priority
		{"trusted", annotationRequest, "2000000000", false},
	} {
		n := newNode(t, true)
		n.addPod(critest.Pod{
			Name: "web", UID: "u1", Namespace: tt.namespace, Containers: []critest.Container{{Name: "main", PID: 100}},
			Annotations: map[string]string{evict.ConfigSourceAnnotation: "api", tt.key: tt.value},
		})
		specs := &recordingSpecs{answer: &evict.Pod{Priority: new(int32(-1)), QoS: evict.BestEffort}}
		i := n.synced(func(o *Options) { o.Specifications, o.TrustAnnotations = specs, []string{"trusted"} })
		got := i.Measure(time.Now()).Pods[0]
		if got.Critical() != tt.critical {
			t.Errorf("%s=%s in namespace %s: critical = %t; want %t", tt.key, tt.value, tt.namespace, got.Critical(), tt.critical)
		}
		if !tt.critical && *got.Priority != -1 {
			t.Errorf("%s=%s in namespace %s: priority = %d; want that of the specification", tt.key, tt.value, tt.namespace, *got.Priority)
		}
	}
}

// The score of a container is not computed from the requests of the whole pod.
func TestSummedRequests(t *testing.T) {
	n := newNode(t, true)
	n.addPod(critest.Pod{
		Name: "web", UID: "u1", Namespace: "default", Annotations: map[string]string{evict.ConfigSourceAnnotation: "api"}, CgroupParent: "/kubepods/burstable/podu1",
		Containers: []critest.Container{{Name: "main", PID: 100, OOMScoreAdj: 500}},
	})
	amount := resource.MustParse("1Mi")
	specs := &recordingSpecs{answer: &evict.Pod{
		Priority: new(int32(0)), QoS: evict.Burstable, SummedRequests: true, Resources: evict.Resources{Requests: evict.Amounts{Memory: &amount}},
	}}
	snapshot := n.synced(func(o *Options) { o.Specifications = specs }).Measure(time.Now())
	pod, c := &snapshot.Pods[0], snapshot.Handles["u1"].Containers[0]
	if got := pod.Request(signal.Memory); got != 1<<20 || len(pod.Containers) != 1 {
		t.Errorf("request %d, %d containers; want 1Mi and the running container", got, len(pod.Containers))
	}
	if c.OOMScoreAdj == nil || *c.OOMScoreAdj != 500 || c.OOMScoreFrom != "the runtime" {
		t.Errorf("oom_score_adj by %q; want 500, the runtime's", c.OOMScoreFrom)
	}
}

// The eviction of a kubelet's pod can't be reported without facts, nor after the API server has
// refused a report. A runtime handler does not matter: the kubelet stops what was reported.
func TestUnreportable(t *testing.T) {
	facts := &evict.Pod{Priority: new(int32(1)), QoS: evict.BestEffort}
	kubelets := map[string]string{evict.ConfigSourceAnnotation: "api"}
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		specs       Specifications
		forbidden   bool
		want        string // of the reason; "" for none
		facts       bool   // the handle's
	}{
		{"with facts", kubelets, &recordingSpecs{answer: facts}, false, "", true},
		{"without facts", kubelets, &recordingSpecs{}, false, "no facts", false},
		{"forbidden", kubelets, &recordingSpecs{answer: facts}, true, "refused the report", true},
		{"forbidden and without facts", kubelets, &recordingSpecs{}, true, "no facts", false},
		{"without a source of facts", kubelets, nil, false, "", false},
		{"not a kubelet's", nil, &recordingSpecs{}, true, "", false},
	} {
		for _, handler := range []string{"", "kata"} {
			n := newNode(t, true)
			n.addPod(critest.Pod{
				Name: "web", UID: "u1", Namespace: "default", Annotations: tt.annotations, CgroupParent: "/kubepods/besteffort/podu1", RuntimeHandler: handler,
				Containers: []critest.Container{{Name: "main", PID: 100}},
			})
			i := n.synced(func(o *Options) {
				o.Specifications, o.Forbidden = tt.specs, func(uid string) bool { return tt.forbidden && uid == "u1" }
			})
			s := i.Measure(time.Now())
			got := s.Pods[0].Unreportable
			if !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") || s.Handles["u1"].Facts != tt.facts || i.Describe("u1").Handler != handler {
				t.Errorf("%s, handler %q: unreportable because %q, facts %t; want %q, %t", tt.name, handler, got, s.Handles["u1"].Facts, tt.want, tt.facts)
			}
		}
	}
}
