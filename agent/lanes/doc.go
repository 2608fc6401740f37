// Package lanes detects memory pressure. A lane watches the node in one way and raises an
// alarm when a signal falls below a threshold, or may have. The receiver confirms the
// alarm with a fresh reading (agent/memory) and decides.
//
// [Poll] is the lane that works everywhere: it reads memory periodically, more often the
// less is left above the nearest threshold. A [Set] has the other lanes. Each may be
// missing or fail without affecting the others:
//
//	bpf      a BPF timer that samples what the signals are computed from
//	memcg    cgroup v1 usage thresholds and notifications of critical reclaim
//	events   cgroup v2 memory.events.local counters
//	psi      PSI triggers: stalls, which no signal shows
//	reclaim  tracepoints of the kernel's reclaim and OOM killer
//	forks    the kernel's count of tasks, for pid.available only
//
// One thread of the caller, a [Waiter], polls the descriptors of all lanes. The [Set]
// opens, arms and supervises the lanes on a goroutine of its own. It compares the alarms
// of a lane with the crossings that polling saw and with the lane's own samples, and
// checks that a sampling lane still samples. A lane that missed an alarm or has stopped
// is degraded: closed, and opened again after a back-off. A failure that concerns only
// kubepods or one container degrades that part of the lane, and not the node's.
package lanes
