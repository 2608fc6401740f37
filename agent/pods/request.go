package pods

import (
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/evict"
)

// The values of oom_score_adj that do not identify a request: the kubelet limits those of
// Burstable containers to 3 to 999 (pkg/kubelet/qos/policy.go), so both ends stand for all
// requests beyond them.
const (
	lowestScore, highestScore = 3, 999
	guaranteedScore           = -997
	// guaranteedScoreOnce is the value of older kubelets.
	guaranteedScoreOnce = -998
	bestEffortScore     = 1000
)

// requestRange returns the smallest and the largest memory request, in bytes, for which the
// kubelet gives a Burstable container this oom_score_adj on a node with that much memory:
// 1000 − 1000·request/capacity, in integers. ok is false if the score does not identify a
// request.
func requestRange(score int, capacity int64) (low, high int64, ok bool) {
	if score <= lowestScore || score >= highestScore || capacity <= 0 || capacity > math.MaxInt64/1000 {
		return 0, 0, false
	}
	share := int64(bestEffortScore - score)
	low, high = (share*capacity+999)/1000, ((share+1)*capacity-1)/1000
	// On a node of less than a thousand bytes no request gives some scores.
	return low, high, low <= high
}

// memoryRequest is the memory request that is assumed for a container.
type memoryRequest struct {
	amount *resource.Quantity // nil for none
	origin string             // for explain
	text   string             // for messages; empty if the amount is exact
}

// request returns the memory request of a container: from its oom_score_adj, else its limit.
func (d *deduction) request(c *Container, qos evict.QoS) memoryRequest {
	if qos == evict.BestEffort {
		return memoryRequest{origin: "none, as the pod is BestEffort"}
	}
	reason := ""
	switch {
	case c.Err != nil && c.OOMScoreAdj == nil:
		reason = "its status is not known"
	case qos == evict.Guaranteed:
	case c.OOMScoreAdj == nil:
		reason = "the runtime reports no oom_score_adj"
	case d.capacityErr != nil:
		reason = "the node's memory is not known"
	default:
		if low, high, ok := requestRange(*c.OOMScoreAdj, d.capacity); ok {
			return memoryRequest{
				amount: bytes(high), text: "about " + mebibytes(high) + ", from oom_score_adj",
				origin: fmt.Sprintf("estimated from oom_score_adj %d: %s-%s", *c.OOMScoreAdj, mebibytes(low), mebibytes(high)),
			}
		}
		reason = fmt.Sprintf("oom_score_adj %d does not identify one", *c.OOMScoreAdj)
	}
	if c.MemoryLimit != nil {
		m := memoryRequest{amount: bytes(*c.MemoryLimit), origin: "limit"}
		if qos != evict.Guaranteed { // whose requests equal its limits
			m.text = "not known, its limit is " + m.amount.String()
		}
		return m
	}
	if reason == "" {
		reason = "no limit"
	}
	return memoryRequest{origin: "unknown, counts as 0: " + reason, text: "not known"}
}

func bytes(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }

// mebibytes formats bytes: whole Mi, or Ki below 10 Mi.
func mebibytes(n int64) string {
	if n < 10<<20 {
		return fmt.Sprintf("%dKi", n>>10)
	}
	return fmt.Sprintf("%dMi", n>>20)
}
