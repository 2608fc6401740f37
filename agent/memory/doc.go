// Package memory reads how much memory the node and its pods use: the signals
// memory.available and allocatableMemory.available as the kubelet computes them
// (pkg/kubelet/eviction/helpers.go), and the usage of single cgroups. It raises no
// alarm and makes no decision.
//
// A signal that can't be read is Unreadable with the reason, never a number. The other
// signal is still read. A [Reader] that confirms an alarm returns no value that is older
// than the alarm.
//
//   - [Memory] reads /proc/meminfo and the memory files of kubepods. These reads can block
//     while the kernel flushes its per-CPU counters.
//   - [AsyncReader] reads the same files on a thread of its own, with a deadline, for a caller
//     that must not block.
//   - [SamplerReader] reads kubepods from the BPF sampler that [SamplerReader.SetSampler] has
//     set, and from files without one. Like [AsyncReader] it does not allocate.
//   - [Tree] reads the usage of each cgroup below kubepods in one walk of the sampler.
//
// No reader is safe for concurrent use; each thread has its own. The lane that runs the
// sampler (agent/lanes) sets it on the one [SamplerReader], and may remove it during a reading.
package memory
