package affinity

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/evictd/evictd/agent/affinity"
)

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

// KeepOfNode copies to a stripped Node what the decision needs of the whole one.
func KeepOfNode(stripped, whole *corev1.Node) {
	stripped.Labels = whole.Labels
	stripped.Spec.Unschedulable, stripped.Spec.Taints = whole.Spec.Unschedulable, whole.Spec.Taints
	for _, c := range whole.Status.Conditions {
		if c.Type == affinity.ShutdownCondition {
			stripped.Status.Conditions = append(stripped.Status.Conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status})
		}
	}
}
