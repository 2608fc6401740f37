package bpf

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
)

// Reclaim watches how the kernel reclaims the node's memory, and hurries the
// sampler on the same [Ring] up when that begins.
type Reclaim struct {
	hooked *hooked
	ring   *Ring
}

// ReclaimCounts are totals since the ring was opened.
type ReclaimCounts struct {
	KswapdWakes, KswapdSleeps uint64
	// DirectBegins and DirectEnds count reclaims by tasks that wanted memory
	// themselves; DirectTime is for how long those that ended have stalled.
	DirectBegins, DirectEnds uint64
	DirectTime               time.Duration
	// Throttles counts how often reclaim had to wait, also within a direct reclaim.
	Throttles    uint64
	ThrottleTime time.Duration
}

// Stall is how the tasks of one cgroup have stalled in direct reclaim.
type Stall struct {
	Cgroup        uint64 // inode number of the memory cgroup's directory
	Count         uint64
	Time, Longest time.Duration
	Last          time.Duration // when the latest ended
}

var reclaimHooks = []hook{
	{"vmscan", "mm_vmscan_kswapd_wake", reclaimProgKswapdWake, reclaimProgKswapdWakeClassic},
	{"vmscan", "mm_vmscan_kswapd_sleep", reclaimProgKswapdSleep, reclaimProgKswapdSleepClassic},
	{"vmscan", "mm_vmscan_direct_reclaim_begin", reclaimProgDirectBegin, reclaimProgDirectBeginClassic},
	{"vmscan", "mm_vmscan_direct_reclaim_end", reclaimProgDirectEnd, reclaimProgDirectEndClassic},
	{"vmscan", "mm_vmscan_throttled", reclaimProgThrottled, reclaimProgThrottledClassic},
}

// OpenReclaim attaches to the tracepoints of reclaim. An error wraps
// [ErrUnavailable].
func OpenReclaim(ring *Ring) (*Reclaim, error) {
	var hooked *hooked
	if _, err := reclaimObject.load(func(spec *ebpf.CollectionSpec) (err error) {
		hooked, err = attachEither(spec, ring, reclaimHooks)
		return err
	}); err != nil {
		return nil, unavailable("watch reclaim", err)
	}
	return &Reclaim{hooked, ring}, nil
}

// Via says how the programs are attached.
func (r *Reclaim) Via() Via { return r.hooked.via }

// Counts reads the totals, without a system call.
func (r *Reclaim) Counts() (ReclaimCounts, error) {
	if r.hooked.collection == nil {
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

// Stalls reads the totals of each cgroup that has stalled, in no order, into
// stalls from its beginning. Of more than 4096 cgroups the kernel forgets some, the
// longest ago first. It takes system calls for each cgroup and allocates.
func (r *Reclaim) Stalls(stalls []Stall) ([]Stall, error) {
	stalls = stalls[:0]
	if r.hooked.collection == nil {
		return stalls, fmt.Errorf("read stalls: %w", os.ErrClosed)
	}
	var id uint64
	var raw reclaimStall
	entries := r.hooked.collection.Maps[reclaimMapStalls].Iterate()
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

// Close detaches from the tracepoints. No other method may run at the same time.
// Further calls do nothing.
func (r *Reclaim) Close() error {
	if err := r.hooked.Close(); err != nil {
		return fmt.Errorf("close reclaim: %w", err)
	}
	return nil
}
