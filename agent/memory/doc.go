// Package memory reads how much memory the node and its pods use: the signals
// memory.available and allocatableMemory.available as the kubelet computes them
// (pkg/kubelet/eviction/helpers.go), and the usage of single cgroups. It raises no
// alarm and decides nothing.
//
// A signal that can't be read is Unreadable with the reason, never a number, and
// does not keep the other signal from being read. In what a [Reader] reads for an alarm
// no figure is older than the alarm.
//
//	[Memory]  reads /proc/meminfo and the files of the pods' cgroup. These may wait for
//	          the kernel to sum up its counters.
//	[Apart]   does so for a thread that must not wait: a thread of its own reads the
//	          pods' files, with a deadline.
//	[Quick]   takes the pods' figures from the BPF sampler where [Quick.SetSampler] has
//	          named one, and else from files. Like Apart it allocates nothing.
//	[Tree]    has what each of the pods' cgroups uses, by one walk of the sampler.
//
// None of the readers is safe for concurrent use; each thread has its own. The lane
// that runs the sampler (agent/lanes) gives it to the one Quick and takes it away
// while others read.
package memory
