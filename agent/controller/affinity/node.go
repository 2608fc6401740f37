package affinity

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/evictd/evictd/agent/affinity"
)

const (
	// fencingTaint is the quarantine taint of agent/controller.
	fencingTaint = "evictd.io/fencing"
	// shutdownCondition and shutdownTaint are set by evictd-kube when evictd shuts a node down.
	shutdownCondition, shutdownTaint = "EvictdNodeShutdown", "evictd.io/node-shutdown"
)

// drainTaints are those of programs that empty a node, or say that it shuts down.
var drainTaints = []string{
	"node.cloudprovider.kubernetes.io/shutdown", "ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", shutdownTaint,
	corev1.TaintNodeOutOfService,
}

// nodeFacts returns what a decision depends on.
func nodeFacts(n *corev1.Node, fenced bool) affinity.Node {
	return affinity.Node{
		Object: n, Ready: conditionTrue(n, corev1.NodeReady), Fenced: fenced || hasTaint(n, fencingTaint),
		ShuttingDown: n.DeletionTimestamp != nil || conditionTrue(n, shutdownCondition) || slices.ContainsFunc(drainTaints, func(key string) bool {
			return hasTaint(n, key)
		}),
	}
}

// unfit returns why no pod of a node is evicted now, empty if there is no reason.
func unfit(n affinity.Node) string {
	name := n.Object.Name
	switch {
	case !n.Ready:
		return fmt.Sprintf("Node %s is not Ready: its labels may be out of date", name)
	case n.Fenced:
		return fmt.Sprintf("Node %s is being fenced", name)
	case n.ShuttingDown:
		return fmt.Sprintf("Node %s shuts down, or is being emptied by another program", name)
	case n.Object.Spec.Unschedulable:
		return fmt.Sprintf("Node %s is cordoned", name)
	}
	return ""
}

func conditionTrue(n *corev1.Node, kind corev1.NodeConditionType) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}

func hasTaint(n *corev1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// KeepOfNode copies to a stripped Node what the decision needs of the whole one.
func KeepOfNode(stripped, whole *corev1.Node) {
	stripped.Labels = whole.Labels
	stripped.Spec.Unschedulable, stripped.Spec.Taints = whole.Spec.Unschedulable, whole.Spec.Taints
	for _, c := range whole.Status.Conditions {
		if c.Type == shutdownCondition {
			stripped.Status.Conditions = append(stripped.Status.Conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status})
		}
	}
}
