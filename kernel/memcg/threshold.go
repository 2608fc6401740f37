package memcg

import (
	"strconv"

	"github.com/evictd/evictd/kernel/cgroup"
)

// Threshold is an armed threshold of a v1 cgroup's usage. Its descriptor becomes
// readable when the usage of the subtree crosses it, upwards or downwards: the
// usage must be read to know.
//
// The task that crosses it signals by itself, so that the news is there at once,
// but the kernel looks only each time that a CPU has charged or freed 128 pages
// in one cgroup (mm/memcontrol-v1.c: memcg1_check_events), and charges are made
// in batches of 64 pages. It comes that late, or that early.
type Threshold struct {
	notice
	bytes uint64
}

// ArmUsage arms a threshold at so many bytes of usage, which the kernel rounds
// down to whole pages. What is above it already is not told: whoever arms a
// threshold reads the usage afterwards.
//
// The kernel waits for an RCU grace period in this call, which takes
// milliseconds: it is nothing for a thread in a hurry.
//
// It is [kernel.ErrUnavailable] on v2 and on PREEMPT_RT kernels, and
// [cgroup.ErrGone] when the cgroup was removed.
func ArmUsage(h *cgroup.Hierarchy, c *cgroup.Cgroup, bytes uint64) (*Threshold, error) {
	return armUsage(place{h, c}, bytes)
}

func armUsage(p place, bytes uint64) (*Threshold, error) {
	n, err := p.notify("memory.usage_in_bytes", strconv.FormatUint(bytes, 10))
	if err != nil {
		return nil, p.failed("arm usage threshold", err)
	}
	return &Threshold{notice: n, bytes: bytes}, nil
}

// Bytes returns where it was armed.
func (t *Threshold) Bytes() uint64 { return t.bytes }

// Rearm arms another threshold of the same cgroup and returns it. This one stays
// armed until it is closed, so that no crossing is missed between the two:
//
//	next, err := t.Rearm(bytes)
//	// poll next.FD()
//	t.Close()
//
// It takes as long as [ArmUsage]. The [cgroup.Cgroup] may have been closed.
func (t *Threshold) Rearm(bytes uint64) (*Threshold, error) { return armUsage(t.place, bytes) }
