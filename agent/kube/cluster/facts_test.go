package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
)

func resources(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

func TestFactsOf(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 11, 22, 20, 0, 0, 0, time.FixedZone("x", 3600)))
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			UID: "u1", Namespace: "default", Name: "web-0", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"secret": "x"},
			DeletionTimestamp: &at, CreationTimestamp: metav1.NewTime(at.Add(-time.Hour)),
			OwnerReferences: []metav1.OwnerReference{{Kind: "Other", Name: "o"}, {APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{
			Priority: new(int32(7)), PriorityClassName: "high", RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: new(int64(30)),
			Tolerations: []corev1.Toleration{{Key: "k", Operator: "Exists", Effect: "NoSchedule", TolerationSeconds: new(int64(3))}},
			Overhead:    resources("cpu", "250m", "memory", "64Mi"),
			Resources:   &corev1.ResourceRequirements{Requests: resources("memory", "1Gi")},
			Containers: []corev1.Container{
				{Name: "main", Resources: corev1.ResourceRequirements{
					Requests: resources("cpu", "1", "memory", "64Mi", "ephemeral-storage", "1G", "hugepages-2Mi", "2Mi"), Limits: resources("memory", "100M"),
				}},
				{Name: "resized", Resources: corev1.ResourceRequirements{
					Requests: resources("cpu", "2", "memory", "2Gi", "ephemeral-storage", "1Gi"), Limits: resources("cpu", "4", "memory", "4Gi"),
				}},
			},
			InitContainers: []corev1.Container{
				{Name: "setup"}, {Name: "proxy", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)},
			},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}},
			Volumes: []corev1.Volume{
				{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Memory", SizeLimit: new(resource.MustParse("10Mi"))}}},
				{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}}},
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}},
				{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}},
			},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBurstable,
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: at},
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at.Add(-time.Minute))},
			},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "resized", AllocatedResources: resources("cpu", "1", "memory", "1Gi"),
				Resources: &corev1.ResourceRequirements{Requests: resources("memory", "512Mi"), Limits: resources("cpu", "2", "memory", "2Gi")},
			}},
		},
	}
	want := &kube.Pod{
		UID: "u1", Namespace: "default", Name: "web-0", Labels: map[string]string{"app": "web"}, Priority: 7, PriorityClassName: "high",
		Owner: kube.Owner{Kind: "DaemonSet", Name: "d"}, QoS: evict.Burstable, RestartPolicy: "Always", TerminationSeconds: new(int64(30)),
		Tolerations: []kube.Toleration{{Key: "k", Operator: "Exists", Effect: "NoSchedule"}}, Phase: "Running",
		Deleted:   time.Date(2026, 11, 22, 19, 0, 0, 0, time.UTC),
		Bound:     time.Date(2026, 11, 22, 18, 59, 0, 0, time.UTC),
		Resources: kube.Resources{Requests: kube.Amounts{Memory: "1Gi"}}, Overhead: kube.Amounts{CPU: "250m", Memory: "64Mi"},
		Containers: []kube.Container{
			{Name: "main", Resources: kube.Resources{Requests: kube.Amounts{CPU: "1", Memory: "64Mi", EphemeralStorage: "1G"}, Limits: kube.Amounts{Memory: "100M"}}},
			{Name: "resized", Resources: kube.Resources{
				Requests: kube.Amounts{CPU: "1", Memory: "1Gi", EphemeralStorage: "1Gi"}, Limits: kube.Amounts{CPU: "2", Memory: "2Gi"},
			}},
		},
		InitContainers:      []kube.Container{{Name: "setup"}, {Name: "proxy", Sidecar: true}},
		EphemeralContainers: []string{"debug"},
		Volumes: []kube.Volume{
			{Name: "cache", Type: evict.EmptyDir, Medium: "Memory", SizeLimit: "10Mi"}, {Name: "tmp", Type: evict.EmptyDir},
			{Name: "host", Type: evict.HostPath}, {Name: "config", Type: evict.ConfigMap},
		},
	}
	if diff := cmp.Diff(want, factsOf(p)); diff != "" {
		t.Errorf("factsOf() (-want +got):\n%s", diff)
	}
}

// During a resize the kubelet decides by the pod-level resources that it has allocated. Its status
// is about the whole pod, whose overhead is a fact of its own.
func TestPodResourcesOf(t *testing.T) {
	overhead := resources("cpu", "250m", "memory", "64Mi")
	for _, tt := range []struct {
		name                     string
		requests, limits         corev1.ResourceList // of the spec; nil if it has no pod-level resources
		allocated, actual        corev1.ResourceList // of the status
		wantRequests, wantLimits kube.Amounts
	}{
		{
			"no status", resources("memory", "2Gi"), resources("memory", "4Gi"), nil, nil,
			kube.Amounts{Memory: "2Gi"}, kube.Amounts{Memory: "4Gi"},
		},
		{
			"resize in progress", resources("cpu", "2", "memory", "2Gi"), resources("cpu", "4", "memory", "4Gi"),
			resources("cpu", "1250m", "memory", "1088Mi"), resources("cpu", "2250m", "memory", "2112Mi"),
			kube.Amounts{CPU: "1", Memory: "1Gi"}, kube.Amounts{CPU: "2", Memory: "2Gi"},
		},
		{
			"memory of containers", resources("cpu", "1"), nil, resources("cpu", "1250m", "memory", "1088Mi"), resources("memory", "2112Mi"),
			kube.Amounts{CPU: "1"}, kube.Amounts{},
		},
		{
			"less than the overhead", resources("memory", "32Mi"), nil, resources("memory", "32Mi"), nil,
			kube.Amounts{Memory: "32Mi"}, kube.Amounts{},
		},
		{"resources of containers", nil, nil, resources("cpu", "1250m", "memory", "1088Mi"), resources("memory", "2112Mi"), kube.Amounts{}, kube.Amounts{}},
	} {
		p := apiPod("a", func(p *corev1.Pod) {
			p.Spec.Overhead = overhead
			if tt.requests != nil {
				p.Spec.Resources = &corev1.ResourceRequirements{Requests: tt.requests, Limits: tt.limits}
			}
			p.Status.AllocatedResources = tt.allocated
			if tt.actual != nil {
				p.Status.Resources = &corev1.ResourceRequirements{Requests: tt.allocated, Limits: tt.actual}
			}
		})
		want := kube.Resources{Requests: tt.wantRequests, Limits: tt.wantLimits}
		if diff := cmp.Diff(want, factsOf(p).Resources); diff != "" {
			t.Errorf("%s: pod-level resources (-want +got):\n%s", tt.name, diff)
		}
	}
}

// The reflector keeps facts and states instead of pods while it receives a list.
func TestReduceList(t *testing.T) {
	var list cache.TransformingStore = &store{}
	transform := list.Transformer()
	running := apiPod("a")
	want := &listed{uid: "a", version: running.ResourceVersion, state: stateOf(running), unstarted: true, facts: factsOf(running)}
	failed := apiPod("a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	for _, tt := range []struct {
		in   any
		want *listed
	}{
		{running, want},
		{want, want}, // again
		{failed, &listed{uid: "a", version: failed.ResourceVersion, state: stateOf(failed), unstarted: true}},
	} {
		got, err := transform(tt.in)
		if diff := cmp.Diff(any(tt.want), got, cmp.AllowUnexported(listed{}, podState{})); err != nil || diff != "" {
			t.Errorf("transform(%T) = %v (-want +got):\n%s", tt.in, err, diff)
		}
	}
	if _, err := transform(&corev1.Node{}); err == nil {
		t.Error("transform(node) = nil; want an error")
	}
}

func TestBoundAt(t *testing.T) {
	created := time.Date(2026, 11, 22, 19, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name   string
		status corev1.ConditionStatus
		after  time.Duration
		want   time.Duration
	}{
		{"bound later", corev1.ConditionTrue, time.Minute, time.Minute},
		{"not bound", corev1.ConditionFalse, time.Minute, 0},
		{"before its creation", corev1.ConditionTrue, -time.Minute, 0},
		{"no condition", "", 0, 0},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}}
		if tt.status != "" {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: tt.status, LastTransitionTime: metav1.NewTime(created.Add(tt.after))}}
		}
		if got := boundAt(p).Sub(created); got != tt.want {
			t.Errorf("%s: boundAt() = creation + %v; want %v", tt.name, got, tt.want)
		}
	}
}

func TestRelevant(t *testing.T) {
	for phase, want := range map[corev1.PodPhase]bool{
		"": true, corev1.PodPending: true, corev1.PodRunning: true, corev1.PodUnknown: true, corev1.PodSucceeded: false, corev1.PodFailed: false,
	} {
		if got := relevant(&corev1.Pod{Status: corev1.PodStatus{Phase: phase}}); got != want {
			t.Errorf("relevant(phase %q) = %t; want %t", phase, got, want)
		}
	}
	if relevant(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{annotationMirror: "hash"}}}) {
		t.Error("relevant(mirror pod) = true; want false")
	}
}

func TestExclusive(t *testing.T) {
	owned := func(kind string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "o", Controller: new(true)}}
		}
	}
	limit := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: resources(name, "1")}}}
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*corev1.Pod)
		want   string
	}{
		{"plain", func(*corev1.Pod) {}, ""},
		{"ReplicaSet", owned("ReplicaSet"), ""},
		{"StatefulSet", owned("StatefulSet"), "StatefulSet"},
		{"Job", owned("Job"), "Job"},
		{"annotation", func(p *corev1.Pod) { p.Annotations = map[string]string{annotationExclusive: "true"} }, "annotation evictd.io/exclusive"},
		{"annotation false", func(p *corev1.Pod) { p.Annotations = map[string]string{annotationExclusive: "false"} }, ""},
		{"claim", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}}}
		}, "persistent volume claim"},
		{"generic ephemeral volume", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
		}, "persistent volume claim"},
		{"device", func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}} }, "resource claim"},
		{"host port", func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{HostPort: 80}}}}
		}, "host port"},
		{"port", func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 80}}}}
		}, ""},
		{"extended resource", limit("nvidia.com/gpu"), "extended resource"},
		{"memory", limit("memory"), ""},
		{"native resource with a domain", limit("storage.kubernetes.io/x"), ""},
	} {
		p := &corev1.Pod{}
		tt.change(p)
		if got := exclusive(p); got != tt.want {
			t.Errorf("%s: exclusive() = %q; want %q", tt.name, got, tt.want)
		}
	}
}

// A kind of another API group is not that of Kubernetes: DaemonSets' pods may be protected.
// The garbage collector deletes pods of an owner that does not exist only if it knows the
// owner's kind (pkg/controller/garbagecollector).
func TestOwnerOf(t *testing.T) {
	for _, tt := range []struct{ version, kind, want string }{
		{"apps/v1", "DaemonSet", "DaemonSet"},
		{"apps/v1", "StatefulSet", "StatefulSet"},
		{"batch/v1", "Job", "Job"},
		{"apps/v1", "ReplicaSet", "ReplicaSet"},
		{"v1", "ReplicationController", "ReplicationController"},
		{"example.com/v1", "Other", "Other"},
		{"example.com/v1", "DaemonSet", "DaemonSet.example.com"},
		{"apps.kruise.io/v1beta1", "StatefulSet", "StatefulSet.apps.kruise.io"},
		{"apps/v1", "Job", "Job.apps"},
		{"v1", "DaemonSet", "DaemonSet.core"},
		{"", "DaemonSet", "DaemonSet.core"},
		{"a b/v1", "DaemonSet", ""},
		{strings.Repeat("x", 1<<20) + "/v1", "DaemonSet", ""},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			OwnerReferences: []metav1.OwnerReference{{APIVersion: tt.version, Kind: tt.kind, Name: "o", Controller: new(true)}},
		}}
		if got := ownerOf(p); got.Kind != tt.want || (got.Name != "") != (tt.want != "") {
			t.Errorf("ownerOf(%.20s, %s) = %q; want kind %q", tt.version, tt.kind, got, tt.want)
		}
	}
}

// Tenants write owner references, which the API server hardly checks. A pod has facts
// whatever they contain: without facts it would be spared.
func TestHostileOwner(t *testing.T) {
	for _, owner := range []metav1.OwnerReference{
		{Kind: "Daemon Set", Name: "d", Controller: new(true)},
		{Kind: "ReplicaSet", Name: "\x1b[2J", Controller: new(true)},
		{Kind: "ReplicaSet", Name: strings.Repeat("x", 1<<20), Controller: new(true)},
	} {
		f := factsOf(apiPod("a", func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{owner} }))
		if f.Owner != (kube.Owner{}) {
			t.Errorf("owner %.40q, %.40q; want none", f.Owner.Kind, f.Owner.Name)
		}
	}
	f := factsOf(apiPod("a", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(-5)) }))
	if f.TerminationSeconds == nil || *f.TerminationSeconds != 1 {
		t.Errorf("terminationGracePeriodSeconds of -5 = %v; want 1", f.TerminationSeconds)
	}
}
