// Package lanes learns of pressure. A lane watches the node in its own way and
// raises the alarm when a signal falls below a mark, or may have; what is done
// about it is decided elsewhere, on a fresh reading (agent/memory).
//
// [Poll] is the lane that works everywhere: it takes the reading again and again,
// the more often the less is left. A [Set] has the others, each of which may be
// missing or fail without the rest:
//
//	bpf      a timer in the kernel that samples what the signals are made of
//	memcg    cgroup v1's thresholds of usage, and its notice of critical reclaim
//	events   cgroup v2's counts of what happens at limits
//	psi      triggers on stalls, which no signal shows
//	reclaim  tracepoints of the kernel's reclaim and of its OOM killer
//	forks    the kernel's count of tasks, for pid.available alone
//
// Their descriptors are polled by one thread that the caller brings, a [Waiter];
// the [Set] itself opens, arms, and watches over them on a goroutine of its own.
// What polling saw crossed, and what the sampler's own figures say, is held against
// what they raised, and the sampler's ticks are its heart: a lane that missed
// something, or stands still, is closed and opened again after a while. What is
// amiss with the pods' cgroup, or with a container's, takes that part from a lane
// and not the node's.
package lanes
