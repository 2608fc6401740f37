package evict

import "github.com/evictd/evictd/agent/signal"

// WouldFree returns, for each signal in its unit, what the dry-run victims of the state
// are expected to free. A decision in dry run adds it to the observations.
func (p *Policy) WouldFree(state *State, pods []Pod) (sum [signal.Count]int64) {
	for i := range pods {
		if !state.isDryRunVictim(pods[i].UID) {
			continue
		}
		for s := range sum {
			sum[s] = saturatingAdd(sum[s], pods[i].expected(signal.Signal(s), p.Layout))
		}
	}
	return sum
}
