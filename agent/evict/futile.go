package evict

import "github.com/evictd/evictd/agent/signal"

// Evicting for a disk or inode signal is pointless while all eligible pods
// together cover less than a 20th (5 %) of the deficit and less than this many
// bytes or inodes: a log or an image store outside the pods fills the disk, and
// every pod of the node would go in turn for a few KiB each. Memory has no such
// rule: there the alternative to an eviction is the kernel's OOM killer.
const (
	negligibleShare  = 20
	negligibleBytes  = 256 << 20
	negligibleInodes = 10_000
)

// negligible reports whether all ranked pods together cover so little of the
// deficit of a disk signal that none of them is evicted. It is false while the
// disk usage of one of them is not known: that pod may use the missing space.
func (d *decision) negligible(s signal.Signal, deficit int64, ranked []Ranked) bool {
	for i := range ranked {
		if d.in.Pods[ranked[i].index].DiskUnknown {
			return false
		}
	}
	limit := int64(negligibleBytes)
	if s.IsInodes() {
		limit = negligibleInodes
	}
	sum := coverage(ranked)
	return sum < limit && sum*negligibleShare < deficit
}

// coverage sums what the evictions of all ranked pods are expected to free.
func coverage(ranked []Ranked) (sum int64) {
	for i := range ranked {
		sum = saturatingAdd(sum, max(0, ranked[i].Expected))
	}
	return sum
}

// giveUp notes that a signal is futile. Where victims were chosen, it starts or
// lengthens the back-off before the next one; where none was, there is nothing to
// wait for, and a pod that grows is chosen in the step that sees it.
func (d *decision) giveUp(t *Threshold, deficit int64, ranked []Ranked, victims int) {
	b := d.backoff(group(t.Signal))
	b.None = victims == 0
	if victims > 0 {
		if b.Soft && t.Hard() {
			b.Delay = 0 // the back-off of the hard threshold begins anew
		}
		b.Soft = !t.Hard()
		b.Delay = min(max(2*b.Delay, firstBackoff), longestBackoff)
		b.Until = d.now.Add(b.Delay)
	}
	d.out.Futile = append(d.out.Futile, Futility{Signal: t.Signal, Deficit: deficit, Coverage: coverage(ranked), Until: b.Until})
}
