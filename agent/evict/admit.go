package evict

import (
	"slices"

	"github.com/evictd/evictd/agent/signal"
)

// memoryPressureTaint is the taint that the control plane puts on a node under
// memory pressure.
const memoryPressureTaint = "node.kubernetes.io/memory-pressure"

// Admit reports whether a node under these conditions takes a new pod, as the
// kubelet decides it: a critical pod always; under memory pressure alone also
// a pod that is not BestEffort or that tolerates the pressure.
func Admit(conditions []signal.Condition, pod *Pod) bool {
	if len(conditions) == 0 || pod.Critical() {
		return true
	}
	if len(conditions) > 1 || conditions[0] != signal.MemoryPressure {
		return false
	}
	return pod.QoSClass() != BestEffort || slices.ContainsFunc(pod.Tolerations, Toleration.memoryPressure)
}

// memoryPressure reports whether the toleration covers the taint
// node.kubernetes.io/memory-pressure:NoSchedule, whose value is empty.
func (t Toleration) memoryPressure() bool {
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
