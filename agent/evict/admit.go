package evict

import (
	"slices"

	"github.com/evictd/evictd/agent/signal"
)

// memoryPressureTaint is the taint that the control plane sets on a node with memory
// pressure.
const memoryPressureTaint = "node.kubernetes.io/memory-pressure"

// Admit reports whether a node with these conditions accepts a new pod, by the
// kubelet's rules: a critical pod always; if MemoryPressure is the only condition, also
// a pod that is not BestEffort or that tolerates the taint.
func Admit(conditions []signal.Condition, pod *Pod) bool {
	if len(conditions) == 0 || pod.Critical() {
		return true
	}
	if len(conditions) > 1 || conditions[0] != signal.MemoryPressure {
		return false
	}
	return pod.QoSClass() != BestEffort || slices.ContainsFunc(pod.Tolerations, Toleration.coversMemoryPressure)
}

// coversMemoryPressure reports whether the toleration covers the taint
// node.kubernetes.io/memory-pressure:NoSchedule, whose value is empty.
func (t Toleration) coversMemoryPressure() bool {
	if t.Effect != "" && t.Effect != "NoSchedule" {
		return false
	}
	if t.Key != "" && t.Key != memoryPressureTaint {
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
