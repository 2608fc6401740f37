package memcg

import (
	"strconv"

	"github.com/evictd/evictd/kernel/cgroup"
)

// Threshold is an armed usage threshold of a v1 cgroup. Its descriptor becomes
// readable when the usage of the subtree crosses it in either direction; read the
// usage to find out which.
//
// The kernel signals from the task that crosses the threshold, without a delay. But
// it compares only after a CPU has charged or freed 128 pages in one cgroup
// (mm/memcontrol-v1.c: memcg1_check_events), and charges are made in batches of 64
// pages, so the crossing is inexact by these amounts.
type Threshold struct {
	notifier
	bytes uint64
}

// ArmUsage arms a threshold at a usage in bytes, which the kernel rounds down to
// whole pages. Usage that is above it already is not signalled: read the usage
// after ArmUsage.
//
// It fails with [kernel.ErrUnavailable] on v2 and on PREEMPT_RT kernels, and with
// [cgroup.ErrGone] if the cgroup was removed. The kernel waits for an RCU grace
// period in this call, which takes milliseconds, so the hot path must not call it.
func ArmUsage(h *cgroup.Hierarchy, c *cgroup.Cgroup, bytes uint64) (*Threshold, error) {
	return armUsage(target{h, c}, bytes)
}

func armUsage(t target, bytes uint64) (*Threshold, error) {
	n, err := t.register("memory.usage_in_bytes", strconv.FormatUint(bytes, 10))
	if err != nil {
		return nil, t.wrap("arm usage threshold", err)
	}
	return &Threshold{notifier: n, bytes: bytes}, nil
}

// Bytes returns the usage at which the threshold is armed.
func (t *Threshold) Bytes() uint64 { return t.bytes }

// Rearm arms another threshold of the same cgroup and returns it. The old one stays
// armed until it is closed, so that no crossing is missed in between:
//
//	next, err := t.Rearm(bytes)
//	// poll next.FD()
//	t.Close()
//
// It takes as long as [ArmUsage]. The [cgroup.Cgroup] may be closed by then.
func (t *Threshold) Rearm(bytes uint64) (*Threshold, error) { return armUsage(t.target, bytes) }
