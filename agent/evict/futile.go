package evict

import "github.com/evictd/evictd/agent/signal"

// Evicting pods for a disk or inode signal is pointless while all eligible pods
// together cover less than 1/negligibleDivisor (5 %) of the deficit and less than
// negligibleBytes or negligibleInodes: a log or an image store outside the pods fills
// the disk, and every pod of the node would be evicted in turn for a few KiB each.
// Memory has no such rule, because the alternative to an eviction is the kernel's OOM
// killer.
const (
	negligibleDivisor = 20
	negligibleBytes   = 256 << 20
	negligibleInodes  = 10_000
)

// negligible reports whether the ranked pods together cover so little of the deficit of
// a disk signal that none of them is evicted. It returns false while the disk usage of
// one of them is unknown, because that pod may use the missing space.
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
	return sum < limit && sum*negligibleDivisor < deficit
}

// coverage returns what evicting all ranked pods is expected to free.
func coverage(ranked []Ranked) (sum int64) {
	for i := range ranked {
		sum = saturatingAdd(sum, max(0, ranked[i].Expected))
	}
	return sum
}

// noteFutile records that a signal is futile. If a victim was chosen, it starts or
// doubles the back-off before the next one. If none was, there is no back-off, so that
// a pod that grows is chosen in the Step that observes it.
func (d *decision) noteFutile(t *Threshold, deficit int64, ranked []Ranked, victims int) {
	b := d.backoff(group(t.Signal))
	b.NoVictim = victims == 0
	if victims > 0 {
		if b.Soft && t.Hard() {
			b.Delay = 0 // a hard threshold starts its own back-off
		}
		b.Soft = !t.Hard()
		b.Delay = min(max(2*b.Delay, futileBackoffMin), futileBackoffMax)
		b.Until = d.now.Add(b.Delay)
	}
	d.out.Futile = append(d.out.Futile, Futility{Signal: t.Signal, Deficit: deficit, Coverage: coverage(ranked), Until: b.Until})
}
