package evict

import "k8s.io/apimachinery/pkg/api/resource"

// QoS is a pod's quality-of-service class.
type QoS string

// The quality-of-service classes.
const (
	Guaranteed QoS = "Guaranteed"
	Burstable  QoS = "Burstable"
	BestEffort QoS = "BestEffort"
)

// SystemCriticalPriority is the lowest priority of critical pods
// (pkg/apis/scheduling/types.go).
const SystemCriticalPriority = 2_000_000_000

// QoSClass returns the class that the pod's source states; if it states none, the class
// computed from the CPU and memory resources (pkg/apis/core/v1/helper/qos/qos.go).
func (p *Pod) QoSClass() QoS {
	if p.QoS != "" {
		return p.QoS
	}
	var requests, limits Amounts
	guaranteed := true
	add := func(r Resources) {
		requests = plus(requests, positive(r.Requests))
		found := positive(r.Limits)
		limits = plus(limits, found)
		if found.CPU == nil || found.Memory == nil {
			guaranteed = false
		}
	}
	if p.Resources.Requests.podLevel() || p.Resources.Limits.podLevel() {
		add(p.Resources)
	} else {
		for _, cs := range [][]Container{p.Containers, p.InitContainers} {
			for i := range cs {
				add(cs[i].Resources)
			}
		}
	}
	switch {
	case requests.empty() && limits.empty():
		return BestEffort
	case guaranteed && equal(requests.CPU, limits.CPU) && equal(requests.Memory, limits.Memory):
		return Guaranteed
	}
	return Burstable
}

// positive returns the CPU and memory amounts above 0. Only they count for the class.
func positive(a Amounts) Amounts {
	keep := func(q *resource.Quantity) *resource.Quantity {
		if q == nil || q.Sign() <= 0 {
			return nil
		}
		return q
	}
	return Amounts{CPU: keep(a.CPU), Memory: keep(a.Memory)}
}

func equal(a, b *resource.Quantity) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Cmp(*b) == 0
}

// Critical reports whether the kubelet never evicts the pod: it is static, a mirror
// pod, or has a system-critical priority (pkg/kubelet/types/pod_update.go).
func (p *Pod) Critical() bool {
	return p.Static || p.Mirror || p.criticalPriority()
}

func (p *Pod) criticalPriority() bool {
	return p.Priority != nil && *p.Priority >= SystemCriticalPriority
}

func (p *Pod) priority() int32 {
	if p.Priority == nil {
		return 0
	}
	return *p.Priority
}

// Values of oom_score_adj (pkg/kubelet/qos/policy.go).
const (
	guaranteedOOMScoreAdj = -997
	bestEffortOOMScoreAdj = 1000
)

// OOMScoreAdj returns the oom_score_adj that the kubelet sets for a regular or init
// container of the pod. capacity is the node's memory in bytes.
func (p *Pod) OOMScoreAdj(c *Container, capacity int64) int {
	if p.Critical() && p.PriorityClassName == "system-node-critical" {
		return guaranteedOOMScoreAdj
	}
	switch p.QoSClass() {
	case Guaranteed:
		return guaranteedOOMScoreAdj
	case BestEffort:
		return bestEffortOOMScoreAdj
	}
	rest := p.unclaimedPerContainer()
	score := oomScore(saturatingAdd(memoryRequest(c), rest), capacity)
	if c.Sidecar && len(p.Containers) > 0 {
		smallest := memoryRequest(&p.Containers[0])
		for i := range p.Containers {
			smallest = min(smallest, memoryRequest(&p.Containers[i]))
		}
		score = min(score, oomScore(saturatingAdd(smallest, rest), capacity))
	}
	// From 3 to 999, so that a burstable pod differs from both other classes.
	switch {
	case score < bestEffortOOMScoreAdj+guaranteedOOMScoreAdj:
		return bestEffortOOMScoreAdj + guaranteedOOMScoreAdj
	case score == bestEffortOOMScoreAdj:
		return bestEffortOOMScoreAdj - 1
	}
	return int(score)
}

// oomScore returns 1000 minus the request's share of the capacity in thousandths.
func oomScore(request, capacity int64) int64 {
	if capacity <= 0 {
		return bestEffortOOMScoreAdj
	}
	if request > (1<<63-1)/1000 { // larger than any node; the product would overflow
		return 0
	}
	return bestEffortOOMScoreAdj - 1000*request/capacity
}

func memoryRequest(c *Container) int64 {
	if q := c.Resources.Requests.Memory; q != nil {
		return q.Value()
	}
	return 0
}

// unclaimedPerContainer returns the part of the pod-level memory request that the
// containers' requests do not use, divided by the number of containers.
func (p *Pod) unclaimedPerContainer() int64 {
	whole := p.Resources.Requests.Memory
	n := int64(len(p.Containers) + len(p.InitContainers))
	if whole == nil || whole.IsZero() || n == 0 {
		return 0
	}
	rest := whole.Value()
	if sum := p.aggregate(func(c *Container) Amounts { return c.Resources.Requests }).Memory; sum != nil {
		rest -= floor(sum)
	}
	return rest / n
}
