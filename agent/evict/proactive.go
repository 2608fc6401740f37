package evict

import (
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// ProactiveReclaim is a request for proactive reclaim: a soft memory threshold is met and its grace
// period has not ended. Memory that the kernel reclaims until then need not be freed by
// an eviction.
type ProactiveReclaim struct {
	Signal signal.Signal
	// Deficit is the missing amount in bytes. If it is 0, nothing is requested and the
	// other fields are empty.
	Deficit int64
	// Pods are the pods to reclaim memory from, in the order of eviction.
	Pods []Ranked
}

// ProactiveReclaim returns the proactive reclaim to do now. It is empty if a hard memory
// threshold is met or a victim is unsettled, so that proactive reclaim does not interfere
// with evictions.
func (p *Policy) ProactiveReclaim(pods []Pod, observed *signal.Observations, state *State, now time.Time) ProactiveReclaim {
	var reclaim ProactiveReclaim
	for i := range state.Victims {
		if state.Victims[i].Status == Unsettled {
			return ProactiveReclaim{}
		}
	}
	for i := range p.Thresholds {
		t := &p.Thresholds[i]
		timer := state.timer(t.Key())
		if timer == nil || !t.Signal.IsMemory() {
			continue
		}
		if t.Hard() || timer.Active {
			return ProactiveReclaim{}
		}
		o := observed[t.Signal]
		if deficit := t.Target(o.Capacity) - o.Available; o.Status == signal.Observed && deficit > reclaim.Deficit {
			reclaim = ProactiveReclaim{Signal: t.Signal, Deficit: deficit}
		}
	}
	if reclaim.Deficit > 0 {
		reclaim.Pods, _ = p.Rank(pods, reclaim.Signal, state, now)
	}
	return reclaim
}
