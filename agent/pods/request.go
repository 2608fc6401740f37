package pods

import (
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/evict"
)

// The scores that say nothing about a request: the kubelet cuts a Burstable
// container's off to 3 to 999 (pkg/kubelet/qos/policy.go), so that the ends
// stand for whatever lies beyond too.
const (
	lowestScore, highestScore = 3, 999
	guaranteedScore           = -997
	// guaranteedScoreOnce is what older kubelets gave.
	guaranteedScoreOnce = -998
	bestEffortScore     = 1000
)

// invert returns the least and the largest memory request, in bytes, for which
// the kubelet gives a Burstable container this oom_score_adj on a node with that
// much memory: 1000 − 1000·request/capacity, in whole numbers. ok is false where
// the score does not tell.
func invert(score int, capacity int64) (low, high int64, ok bool) {
	if score <= lowestScore || score >= highestScore || capacity <= 0 || capacity > math.MaxInt64/1000 {
		return 0, 0, false
	}
	share := int64(bestEffortScore - score)
	low, high = (share*capacity+999)/1000, ((share+1)*capacity-1)/1000
	// On a node of less than a thousand bytes no request gives some scores.
	return low, high, low <= high
}

// memoryRequest is the memory that a container is taken to have requested.
type memoryRequest struct {
	amount *resource.Quantity // nil for none
	origin string             // for explain
	text   string             // for messages; empty where the amount is right
}

// request returns the memory that a container is taken to have requested.
func (d *deduction) request(c *Container, qos evict.QoS) memoryRequest {
	if qos == evict.BestEffort {
		return memoryRequest{origin: "none, as the pod is BestEffort"}
	}
	why := ""
	switch {
	case c.Err != nil && c.OOMScoreAdj == nil:
		why = "its status is not known"
	case qos == evict.Guaranteed:
	case c.OOMScoreAdj == nil:
		why = "the runtime tells no oom_score_adj"
	case d.capacityErr != nil:
		why = "the node's memory is not known"
	default:
		if low, high, ok := invert(*c.OOMScoreAdj, d.capacity); ok {
			return memoryRequest{
				amount: bytes(high), text: "about " + mebibytes(high) + ", from oom_score_adj",
				origin: fmt.Sprintf("estimated from oom_score_adj %d: %s-%s", *c.OOMScoreAdj, mebibytes(low), mebibytes(high)),
			}
		}
		why = fmt.Sprintf("oom_score_adj %d does not tell", *c.OOMScoreAdj)
	}
	if c.MemoryLimit != nil {
		m := memoryRequest{amount: bytes(*c.MemoryLimit), origin: "limit"}
		if qos != evict.Guaranteed { // whose requests equal its limits
			m.text = "not known, its limit is " + m.amount.String()
		}
		return m
	}
	if why == "" {
		why = "no limit"
	}
	return memoryRequest{origin: "unknown, counts as 0: " + why, text: "not known"}
}

func bytes(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }

// mebibytes prints bytes for people: whole Mi, or Ki where there are few.
func mebibytes(n int64) string {
	if n < 10<<20 {
		return fmt.Sprintf("%dKi", n>>10)
	}
	return fmt.Sprintf("%dMi", n>>20)
}
