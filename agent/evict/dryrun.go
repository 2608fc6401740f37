package evict

import "github.com/evictd/evictd/agent/signal"

// WouldFree returns, by signal and in its unit, what the pods of the state that
// dry run counts as gone are expected to free. A decision in dry run is made on
// what was read and this together.
func (p *Policy) WouldFree(state *State, pods []Pod) (sum [signal.Count]int64) {
	for i := range pods {
		if !state.pretends(pods[i].UID) {
			continue
		}
		for s := range sum {
			sum[s] = saturatingAdd(sum[s], pods[i].expected(signal.Signal(s), p.Layout))
		}
	}
	return sum
}
