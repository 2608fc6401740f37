package evict

import (
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Cold is a request for proactive reclaim: a soft memory threshold is met and its grace
// period has not ended. Memory that the kernel reclaims until then need not be freed by
// an eviction.
type Cold struct {
	Signal signal.Signal
	// Short is the missing amount in bytes. If it is 0, nothing is requested and the
	// other fields are empty.
	Short int64
	// Pods are the pods to reclaim memory from, in the order of eviction.
	Pods []Ranked
}

// Cold returns the proactive reclaim to do now. It is empty if a hard memory threshold
// is met or a victim is unsettled, so that proactive reclaim does not interfere with
// evictions.
func (p *Policy) Cold(pods []Pod, observed *signal.Observations, state *State, now time.Time) Cold {
	var cold Cold
	for i := range state.Victims {
		if state.Victims[i].Status == Unsettled {
			return Cold{}
		}
	}
	for i := range p.Thresholds {
		t := &p.Thresholds[i]
		timer := state.timer(t.Key())
		if timer == nil || !t.Signal.IsMemory() {
			continue
		}
		if t.Hard() || timer.Past {
			return Cold{}
		}
		o := observed[t.Signal]
		if short := t.Target(o.Capacity) - o.Available; o.Status == signal.Observed && short > cold.Short {
			cold = Cold{Signal: t.Signal, Short: short}
		}
	}
	if cold.Short > 0 {
		cold.Pods, _ = p.Rank(pods, cold.Signal, state, now)
	}
	return cold
}
