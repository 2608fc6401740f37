package cluster

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/affinity"
	"github.com/evictd/evictd/agent/kube"
)

const licence = `{"nodeSelectorTerms":[{"matchExpressions":[{"key":"licence","operator":"In","values":["valid"]}]}]}`

// newPod returns a pod that was bound just now and that the kubelet has not started.
func newPod(uid, annotation string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := apiPod(uid)
	p.Labels, p.Status = nil, corev1.PodStatus{Phase: corev1.PodPending}
	p.CreationTimestamp = metav1.Now()
	p.Annotations = map[string]string{affinity.Annotation: annotation}
	for _, c := range change {
		c(p)
	}
	return p
}

func ownedBy(kind, group string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: group, Kind: kind, Name: "o", UID: "o", Controller: new(true)}}
	}
}

func TestExempt(t *testing.T) {
	annotated := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations[key] = value }
	}
	for name, tt := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"bare":             {func(*corev1.Pod) {}, false},
		"ReplicaSet":       {ownedBy("ReplicaSet", "apps/v1"), false},
		"DaemonSet":        {ownedBy("DaemonSet", "apps/v1"), true},
		"other DaemonSet":  {ownedBy("DaemonSet", "apps.kruise.io/v1alpha1"), true},
		"Node":             {ownedBy("Node", "v1"), true},
		"mirror":           {annotated(annotationMirror, "x"), true},
		"static":           {annotated(annotationSource, "file"), true},
		"from the API":     {annotated(annotationSource, "api"), false},
		"critical":         {func(p *corev1.Pod) { p.Spec.Priority = new(int32(criticalPriority)) }, true},
		"high priority":    {func(p *corev1.Pod) { p.Spec.Priority = new(int32(criticalPriority - 1)) }, false},
		"critical class":   {func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" }, true},
		"failed":           {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, true},
		"succeeded":        {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, true},
		"being deleted":    {func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }, true},
		"running":          {func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, false},
		"an owner besides": {func(p *corev1.Pod) { ownedBy("DaemonSet", "apps/v1")(p); p.OwnerReferences[0].Controller = nil }, false},
	} {
		if got := exempt(newPod("a", licence, tt.change)); got != tt.want {
			t.Errorf("%s: exempt = %t; want %t", name, got, tt.want)
		}
	}
}

func TestLeft(t *testing.T) {
	status := func(change func(*corev1.ContainerStatus)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			s := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}
			change(&s)
			p.Status.ContainerStatuses = []corev1.ContainerStatus{s}
		}
	}
	created := func(d time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(time.Now().Add(d)) }
	}
	for name, tt := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"new":      {func(*corev1.Pod) {}, ""},
		"no phase": {func(p *corev1.Pod) { p.Status.Phase = "" }, ""},
		"waits":    {status(func(*corev1.ContainerStatus) {}), ""},
		"created":  {status(func(s *corev1.ContainerStatus) { s.ContainerID = "containerd://x" }), kube.AffinityStarted},
		"runs":     {status(func(s *corev1.ContainerStatus) { s.State.Running = &corev1.ContainerStateRunning{} }), kube.AffinityStarted},
		"ended":    {status(func(s *corev1.ContainerStatus) { s.State.Terminated = &corev1.ContainerStateTerminated{} }), kube.AffinityStarted},
		"ended before": {status(func(s *corev1.ContainerStatus) {
			s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{}
		}), kube.AffinityStarted},
		"restarted":      {status(func(s *corev1.ContainerStatus) { s.RestartCount = 1 }), kube.AffinityStarted},
		"init container": {func(p *corev1.Pod) { p.Status.InitContainerStatuses = []corev1.ContainerStatus{{ContainerID: "x"}} }, kube.AffinityStarted},
		"ephemeral": {func(p *corev1.Pod) {
			p.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{ContainerID: "x"}}
		}, kube.AffinityStarted},
		"running":           {func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, kube.AffinityStarted},
		"StatefulSet":       {ownedBy("StatefulSet", "apps/v1"), kube.AffinityExclusive},
		"Job":               {ownedBy("Job", "batch/v1"), kube.AffinityExclusive},
		"exclusive":         {func(p *corev1.Pod) { p.Annotations[annotationExclusive] = "true" }, kube.AffinityExclusive},
		"old":               {created(-affinityDeadline - time.Second), kube.AffinityLate},
		"clocks differ":     {created(affinityDeadline + 2*time.Second), kube.AffinityLate},
		"some seconds old":  {created(-affinityDeadline / 2), ""},
		"bound just before": {func(p *corev1.Pod) { created(-time.Hour)(p); boundNow(p) }, ""},
	} {
		if got := left(newPod("a", licence, tt.change), time.Now()); got != tt.want {
			t.Errorf("%s: left = %q; want %q", name, got, tt.want)
		}
	}
}

func boundNow(p *corev1.Pod) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
}

// testNode returns a Ready Node.
func testNode(change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u"}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, c := range change {
		c(n)
	}
	return n
}

func TestLeavesPods(t *testing.T) {
	tainted := func(key string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}} }
	}
	for name, tt := range map[string]struct {
		change func(*corev1.Node)
		want   bool
	}{
		"ready":         {func(*corev1.Node) {}, false},
		"a taint":       {tainted("evictd.io/memory-pressure"), false},
		"not ready":     {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, true},
		"no conditions": {func(n *corev1.Node) { n.Status.Conditions = nil }, true},
		"cordoned":      {func(n *corev1.Node) { n.Spec.Unschedulable = true }, true},
		"deleted":       {func(n *corev1.Node) { n.DeletionTimestamp = new(metav1.Now()) }, true},
		"fenced":        {tainted("evictd.io/fencing"), true},
		"out of service": {
			tainted("node.kubernetes.io/out-of-service"), true},
		"shut down by evictd": {tainted("evictd.io/node-shutdown"), true},
		"shuts down": {func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "EvictdNodeShutdown", Status: corev1.ConditionTrue})
		}, true},
		"does not shut down": {func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "EvictdNodeShutdown", Status: corev1.ConditionFalse})
		}, false},
		"emptied": {tainted("ToBeDeletedByClusterAutoscaler"), true},
	} {
		if got := leavesPods(testNode(tt.change)); got != tt.want {
			t.Errorf("%s: leavesPods = %t; want %t", name, got, tt.want)
		}
	}
}

func TestMismatch(t *testing.T) {
	labelled := func(n *corev1.Node) { n.Labels = map[string]string{"licence": "expired"} }
	valid := func(n *corev1.Node) { n.Labels = map[string]string{"licence": "valid"} }
	two := strings.Replace(licence, `]}]}]`, `]},{"key":"b","operator":"Exists"}]}]`, 1)
	for name, tt := range map[string]struct {
		annotation, want string
		node             func(*corev1.Node)
		invalid          bool
	}{
		"match":     {annotation: licence, node: valid},
		"no label":  {annotation: licence, node: func(*corev1.Node) {}, want: "Predicate NodeAffinity failed: annotation requires licence In [valid]; the node has no such label"},
		"label":     {annotation: licence, node: labelled, want: `Predicate NodeAffinity failed: annotation requires licence In [valid]; the node's label is "expired"`},
		"two":       {annotation: two, node: labelled, want: `Predicate NodeAffinity failed: annotation requires licence In [valid]; the node's label is "expired" (and 1 more)`},
		"empty":     {node: valid, invalid: true},
		"null":      {annotation: "null", node: valid, invalid: true},
		"no terms":  {annotation: "{}", node: valid, invalid: true},
		"malformed": {annotation: "{", node: valid, invalid: true},
	} {
		got, err := mismatch(tt.annotation, testNode(tt.node))
		if got != tt.want || (err != nil) != tt.invalid {
			t.Errorf("%s: mismatch = %q, %v; want %q, an error: %t", name, got, err, tt.want, tt.invalid)
		}
	}
}

func TestAffinityLimits(t *testing.T) {
	var l affinityLimits
	now := time.Now()
	take := func(workload string, after time.Duration, want string) {
		t.Helper()
		if got := l.take(workload, now.Add(after)); got != want {
			t.Errorf("take(%s) after %v = %q; want %q", workload, after, got, want)
		}
	}
	take("a", 0, "")
	take("a", time.Minute, "")
	take("a", 2*time.Minute, kube.AffinityWorkload)
	take("a", affinityWindow-1, kube.AffinityWorkload)
	take("a", affinityWindow, "")
	take("a", affinityWindow+1, kube.AffinityWorkload)
	began := 3 * time.Hour
	for i := range affinityPerMinute {
		take(string(rune('b'+i)), began, "")
	}
	take("z", began+time.Minute-1, kube.AffinityRate)
	take("z", began+time.Minute, "")
	take("z", began+10*time.Hour, "")
	if len(l.workloads) != 1 || len(l.minute) != 1 {
		t.Errorf("limits %+v; want those of the last rejection alone", l)
	}
}

func TestWorkloadOf(t *testing.T) {
	generated := func(p *corev1.Pod) { p.GenerateName = "web-" }
	for name, tt := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"controller": {ownedBy("ReplicaSet", "apps/v1"), "default/o"},
		"generated":  {generated, "default//web-"},
		"bare":       {func(*corev1.Pod) {}, "default//web-a"},
	} {
		if got := workloadOf(newPod("a", licence, tt.change)); got != tt.want {
			t.Errorf("%s: workloadOf = %q; want %q", name, got, tt.want)
		}
	}
}
