package node

// QoS is a pod's class of service, by Kubernetes' names.
type QoS string

// The three classes.
const (
	Guaranteed QoS = "Guaranteed"
	Burstable  QoS = "Burstable"
	BestEffort QoS = "BestEffort"
)

// qosCgroup is the parent of the pods of a class, as a kubelet names it.
func (n *Node) qosCgroup(q QoS) string {
	switch q {
	case Burstable:
		return n.Child(n.Kubepods(), "burstable")
	case BestEffort:
		return n.Child(n.Kubepods(), "besteffort")
	}
	return n.Kubepods()
}

// oomScoreAdj is the kubelet's (pkg/kubelet/qos/policy.go). A Burstable container loses a thousandth per
// thousandth of the node's memory that it requests, and stays between the other two classes.
func (q QoS) oomScoreAdj(request, capacity int64) int64 {
	switch q {
	case Guaranteed:
		return -997
	case BestEffort:
		return 1000
	}
	return min(max(1000-1000*request/capacity, 3), 999)
}
