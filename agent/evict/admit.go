package evict

import (
	"slices"

	"github.com/evictd/evictd/agent/signal"
)

// The taints of a node with memory pressure: that of the control plane, and evictd's.
const (
	memoryPressureTaint       = "node.kubernetes.io/memory-pressure"
	evictdMemoryPressureTaint = "evictd.io/memory-pressure"
)

// Admit reports whether a node with these conditions accepts a new pod, by the
// kubelet's rules: a critical pod always; if MemoryPressure is the only condition, also
// a pod that is not BestEffort or that tolerates the taint. A toleration of evictd's own taint
// counts as one of the kubelet's.
func Admit(conditions []signal.Condition, pod *Pod) bool {
	if len(conditions) == 0 || pod.Critical() {
		return true
	}
	if len(conditions) > 1 || conditions[0] != signal.MemoryPressure {
		return false
	}
	return pod.QoSClass() != BestEffort || slices.ContainsFunc(pod.Tolerations, Toleration.coversMemoryPressure)
}

// coversMemoryPressure reports whether the toleration covers one of the taints of memory pressure
// with the effect NoSchedule, whose value is empty.
func (t Toleration) coversMemoryPressure() bool {
	if t.Effect != "" && t.Effect != "NoSchedule" {
		return false
	}
	if t.Key != "" && t.Key != memoryPressureTaint && t.Key != evictdMemoryPressureTaint {
		return false
	}
	switch t.Operator {
	case "Exists":
		return true
	case "", "Equal":
		return t.Key != "" && t.Value == ""
	}
	return false
}
