package node

// QoS is a pod's quality of service class. Its values are those of Kubernetes.
type QoS string

// The three classes.
const (
	Guaranteed QoS = "Guaranteed"
	Burstable  QoS = "Burstable"
	BestEffort QoS = "BestEffort"
)

// qosCgroup returns the parent cgroup of the pods of a class, as a kubelet names it.
func (n *Node) qosCgroup(q QoS) string {
	switch q {
	case Burstable:
		return n.ChildCgroup(n.Kubepods(), "burstable")
	case BestEffort:
		return n.ChildCgroup(n.Kubepods(), "besteffort")
	}
	return n.Kubepods()
}

// oomScoreAdj returns a container's oom_score_adj by the kubelet's formula (pkg/kubelet/qos/policy.go). For Burstable
// it is 1000 minus the request in thousandths of the node's memory, clamped between the values of the other classes.
func (q QoS) oomScoreAdj(request, capacity int64) int64 {
	switch q {
	case Guaranteed:
		return -997
	case BestEffort:
		return 1000
	}
	return min(max(1000-1000*request/capacity, 3), 999)
}
