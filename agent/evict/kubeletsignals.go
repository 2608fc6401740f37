package evict

import (
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// kubeletDiskTimeout and kubeletPIDTimeout are how long a threshold that is left to the kubelet
// may be met until Step evicts for it. The kubelet evaluates its signals every 10 s and evicts
// one pod at a time; for disks it first deletes images, which can take minutes
// (pkg/kubelet/eviction/eviction_manager.go).
const kubeletDiskTimeout, kubeletPIDTimeout = 5 * time.Minute, time.Minute

// KubeletTimeout returns how long a threshold on a signal that is left to the kubelet may be met
// until evictd evicts for it.
func KubeletTimeout(s signal.Signal) time.Duration {
	if s == signal.PIDAvailable {
		return kubeletPIDTimeout
	}
	return kubeletDiskTimeout
}

// EvictedFirst returns the hard threshold of a kubelet that is not below t: what is available below
// the value of t is also below the kubelet's, so that both would evict pods for the same shortage. It
// returns nil if there is none, for memory, which evictd relieves long before the kubelet looks, and
// if the two can't be compared because one is a percentage of an unknown capacity.
func (t *Threshold) EvictedFirst(kubelet []Threshold, o *signal.Observation) *Threshold {
	if t.Signal.IsMemory() {
		return nil
	}
	for i := range kubelet {
		if k := &kubelet[i]; k.Signal == t.Signal && NotBelow(k.Value, t.Value, o) {
			return k
		}
	}
	return nil
}

// NotBelow reports whether the value a of a threshold is at least b, for a signal with this
// observation. It returns false if they can't be compared.
func NotBelow(a, b signal.Value, o *signal.Observation) bool {
	capacity := o.Capacity
	if o.Status != signal.Observed {
		if a.IsPercentage() != b.IsPercentage() {
			return false
		}
		capacity = 1 << 50 // any will do
	}
	return a.Amount(capacity) >= b.Amount(capacity)
}

// evictedByKubelet reports whether a threshold that is met since then is left to the kubelet. If it
// stays met for longer than KubeletTimeout, the kubelet does not relieve it, because it is stopped,
// its victims free too little, or its configuration is not what evictd was told. Until evictd acts,
// the threshold is met below its value only: the kubelet's minimum reclaim may be less than evictd's.
func (d *decision) evictedByKubelet(c *thresholdCalc, since time.Time) bool {
	return d.now.Sub(since) < KubeletTimeout(c.Signal) && c.EvictedFirst(d.in.KubeletHard, &d.in.Observations[c.Signal]) != nil
}
