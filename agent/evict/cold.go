package evict

import (
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Cold is memory that is short under a soft threshold whose grace period still
// runs: what the kernel takes back until it ends need not be evicted.
type Cold struct {
	Signal signal.Signal
	// Short is how much is missing, in bytes; 0 is nothing, and then the rest is
	// empty.
	Short int64
	// Pods are those whose memory comes first, in the order of eviction.
	Pods []Ranked
}

// Cold returns what the kernel may be asked to take back now. Where a hard
// threshold on memory is met, or a pod is on its way out already, that is nothing:
// nothing is to come in the way of those.
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
