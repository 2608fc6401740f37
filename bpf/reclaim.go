package bpf

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
)

// Reclaim counts how the kernel reclaims the node's memory. When reclaim begins, it
// makes the sampler on the same [Ring] use its shortest period for a while.
type Reclaim struct {
	attached *attachedObject
	ring     *Ring
}

// ReclaimCounts are totals since the ring was opened.
type ReclaimCounts struct {
	KswapdWakes, KswapdSleeps uint64
	// DirectBegins and DirectEnds count direct reclaims, in which a task that allocates
	// reclaims memory itself. DirectTime is the stall time of those that have ended.
	DirectBegins, DirectEnds uint64
	DirectTime               time.Duration
	// Throttles counts how often reclaim was throttled, in direct reclaim too.
	Throttles    uint64
	ThrottleTime time.Duration
}

// Stall is the total of the stalls of one cgroup's tasks in direct reclaim.
type Stall struct {
	Cgroup        uint64 // inode number of the memory cgroup's directory
	Count         uint64
	Time, Longest time.Duration
	Last          time.Duration // end of the latest stall, of CLOCK_MONOTONIC
}

var reclaimHooks = []hook{
	{"vmscan", "mm_vmscan_kswapd_wake", reclaimProgKswapdWake, reclaimProgKswapdWakeClassic},
	{"vmscan", "mm_vmscan_kswapd_sleep", reclaimProgKswapdSleep, reclaimProgKswapdSleepClassic},
	{"vmscan", "mm_vmscan_direct_reclaim_begin", reclaimProgDirectBegin, reclaimProgDirectBeginClassic},
	{"vmscan", "mm_vmscan_direct_reclaim_end", reclaimProgDirectEnd, reclaimProgDirectEndClassic},
	{"vmscan", "mm_vmscan_throttled", reclaimProgThrottled, reclaimProgThrottledClassic},
}

// OpenReclaim attaches to the tracepoints of reclaim. The error wraps [ErrUnavailable]
// if a retry can't help.
func OpenReclaim(ring *Ring) (*Reclaim, error) {
	var attached *attachedObject
	if _, err := reclaimObject.load(func(spec *ebpf.CollectionSpec) (err error) {
		attached, err = attachEither(spec, ring, reclaimHooks)
		return err
	}); err != nil {
		return nil, unavailable("watch reclaim", err)
	}
	return &Reclaim{attached, ring}, nil
}

// Attachment returns how the programs are attached.
func (r *Reclaim) Attachment() Attachment { return r.attached.attachment }

// Counts returns the totals. It takes no system call, and fails after Close.
func (r *Reclaim) Counts() (ReclaimCounts, error) {
	if r.attached.collection == nil {
		return ReclaimCounts{}, fmt.Errorf("read reclaim counts: %w", os.ErrClosed)
	}
	p := r.ring.pressure.first()
	return ReclaimCounts{
		KswapdWakes:  atomic.LoadUint64(&p.KswapdWakes),
		KswapdSleeps: atomic.LoadUint64(&p.KswapdSleeps),
		DirectBegins: atomic.LoadUint64(&p.DirectBegins),
		DirectEnds:   atomic.LoadUint64(&p.DirectEnds),
		DirectTime:   time.Duration(atomic.LoadUint64(&p.DirectTime)),
		Throttles:    atomic.LoadUint64(&p.Throttles),
		ThrottleTime: time.Duration(atomic.LoadUint64(&p.ThrottleTime)),
	}, nil
}

// Stalls returns the totals of each cgroup that has stalled, in no order. It reuses the
// memory of stalls. The map has room for 4096 cgroups; the kernel then evicts the least
// recently used. It takes system calls for each cgroup and allocates.
func (r *Reclaim) Stalls(stalls []Stall) ([]Stall, error) {
	stalls = stalls[:0]
	if r.attached.collection == nil {
		return stalls, fmt.Errorf("read stalls: %w", os.ErrClosed)
	}
	var id uint64
	var raw reclaimStall
	entries := r.attached.collection.Maps[reclaimMapStalls].Iterate()
	for entries.Next(&id, &raw) {
		stalls = append(stalls, Stall{
			Cgroup: id, Count: raw.Count,
			Time: time.Duration(raw.Time), Longest: time.Duration(raw.Longest), Last: time.Duration(raw.Last),
		})
	}
	if err := entries.Err(); err != nil {
		return stalls, fmt.Errorf("read stalls: %w", err)
	}
	return stalls, nil
}

// Close detaches the programs. It must not run concurrently with another method. Further
// calls do nothing.
func (r *Reclaim) Close() error {
	if err := r.attached.Close(); err != nil {
		return fmt.Errorf("close reclaim: %w", err)
	}
	return nil
}
