package affinity

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodOf(t *testing.T) {
	bound := metav1.NewTime(start.Add(time.Minute))
	owned := func(kind string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Lease", Name: "x"}, {Kind: kind, Name: "web", UID: "w", Controller: new(true)}}
		}
	}
	annotated := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{key: value} }
	}
	phase := func(phase corev1.PodPhase) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.Phase = phase }
	}
	for name, tt := range map[string]struct {
		change func(*corev1.Pod)
		want   Pod
	}{
		"bare":       {func(*corev1.Pod) {}, Pod{}},
		"ReplicaSet": {owned("ReplicaSet"), Pod{Workload: "ReplicaSet default/web w"}},
		"DaemonSet":  {owned("DaemonSet"), Pod{Workload: "DaemonSet default/web w", DaemonSet: true}},
		"of a node":  {owned("Node"), Pod{Workload: "Node default/web w", Mirror: true}},
		"mirror":     {annotated(corev1.MirrorPodAnnotationKey, "hash"), Pod{Mirror: true}},
		"evict bare": {annotated(AnnotationEvictBare, "true"), Pod{EvictBare: true}},
		"keep bare":  {annotated(AnnotationEvictBare, "yes"), Pod{}},
		"Succeeded":  {phase(corev1.PodSucceeded), Pod{Completed: true}},
		"Failed":     {phase(corev1.PodFailed), Pod{Completed: true}},
		"deleted":    {func(p *corev1.Pod) { p.DeletionTimestamp = &bound }, Pod{Terminating: true}},
		"bound": {func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue},
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: bound},
			}
		}, Pod{Bound: bound.Time}},
		"not bound": {func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, LastTransitionTime: bound}}
		}, Pod{}},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0", UID: "u", CreationTimestamp: metav1.NewTime(start)}}
		p.Spec.NodeName, p.Spec.Tolerations = "node-0", []corev1.Toleration{{Key: "k"}}
		tt.change(p)
		tt.want.PodKey, tt.want.Node, tt.want.Created = PodKey{Namespace: "default", Name: "web-0", UID: "u"}, "node-0", start
		tt.want.Tolerations = p.Spec.Tolerations
		if diff := cmp.Diff(tt.want, PodOf(p), cmpopts.IgnoreUnexported(Verdict{})); diff != "" {
			t.Errorf("%s: PodOf() (-want +got):\n%s", name, diff)
		}
	}
}
