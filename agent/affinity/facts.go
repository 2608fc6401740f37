package affinity

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// LeaseDuration is that of the Lease of a node. One that was renewed longer ago is stale.
	LeaseDuration = 40 * time.Second
	// ShutdownCondition and shutdownTaint are set by evictd-kube when evictd shuts a node down.
	ShutdownCondition, shutdownTaint = "EvictdNodeShutdown", "evictd.io/node-shutdown"
	// fencingTaint is the quarantine taint of evictd-controller.
	fencingTaint = "evictd.io/fencing"
)

// drainTaints are those of programs that empty a node, or say that it shuts down.
var drainTaints = []string{
	"node.cloudprovider.kubernetes.io/shutdown", "ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", shutdownTaint,
	corev1.TaintNodeOutOfService,
}

// NodeOf returns what a decision depends on. Fenced says that the node has a fence that has not ended.
func NodeOf(n *corev1.Node, fenced bool) Node {
	return Node{
		Object: n, Ready: conditionTrue(n, corev1.NodeReady), Fenced: fenced || hasTaint(n, fencingTaint),
		ShuttingDown: n.DeletionTimestamp != nil || conditionTrue(n, ShutdownCondition) || slices.ContainsFunc(drainTaints, func(key string) bool {
			return hasTaint(n, key)
		}),
	}
}

func conditionTrue(n *corev1.Node, kind corev1.NodeConditionType) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}

func hasTaint(n *corev1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// PodOf returns what a decision depends on, except the requirement and the verdict. The workload is the controller that
// the pod names, which for a pod of a Deployment is the ReplicaSet.
func PodOf(p *corev1.Pod) Pod {
	out := Pod{
		PodKey: PodKey{Namespace: p.Namespace, Name: p.Name, UID: p.UID}, Node: p.Spec.NodeName, Created: p.CreationTimestamp.Time,
		Bound: BoundAt(p), Tolerations: p.Spec.Tolerations, Mirror: Mirror(p), Completed: Completed(p),
		Terminating: p.DeletionTimestamp != nil, EvictBare: p.Annotations[AnnotationEvictBare] == "true",
	}
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		out.Workload, out.DaemonSet = WorkloadID(ref.Kind, p.Namespace, ref.Name, ref.UID), ref.Kind == "DaemonSet"
	}
	return out
}

// WorkloadID returns the identity for [Pod.Workload].
func WorkloadID(kind, namespace, name string, uid types.UID) string {
	return fmt.Sprintf("%s %s/%s %s", kind, namespace, name, uid)
}

// Mirror reports whether a pod stands for a static one. The kubelet runs it, whatever the API server has.
func Mirror(p *corev1.Pod) bool {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	ref := metav1.GetControllerOfNoCopy(p)
	return mirror || ref != nil && ref.Kind == "Node"
}

// Completed reports whether a pod is Succeeded or Failed.
func Completed(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// BoundAt returns when a pod was bound, the zero time if that is not known.
func BoundAt(p *corev1.Pod) time.Time {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}
