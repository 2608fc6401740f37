// Package podfence keeps an evicted pod from running again. The kubelet starts a killed
// container again within 0.2 to 1.7 s, with or without the API server; a fence in the
// pod's cgroup makes that fail until the pod is reported Failed.
//
// # What a fence is
//
// Two limits of the pod's cgroup, the parent of its containers' cgroups, are set to 0:
//
//   - pids.max (v1, and v2 with the pids controller). The runtime's init process is moved
//     into the container's cgroup and can't fork (kernel/cgroup/pids.c: pids_can_fork), so
//     no container starts. systemd writes it back at daemon-reload, daemon-reexec and when a
//     property of the slice is set, as a resize does (src/core/cgroup.c:
//     cgroup_context_apply).
//   - cgroup.max.descendants (v2). The cgroup of a new container can't be made
//     (kernel/cgroup/cgroup.c: cgroup_check_hierarchy_limits). systemd does not write it.
//
// A process of a fenced pod can't fork, and a thread can't be made. A pod that is stopped in order
// must not be hindered: while containers of it are in their grace period, [Fence.SetForking] sets
// only cgroup.max.descendants, with which no container can start either. v1 has no such limit.
//
// Both were measured with runc. crun 1.8.1 forks before it moves the process into the container's cgroup,
// and nothing after that: on v1 it started a program that makes no thread in a pod whose pids.max was 0.
// The caller has to look for containers that have started in spite of the fence.
//
// The kubelet writes pids.max only when it makes the pod's cgroup
// (pkg/kubelet/cm/pod_container_manager_linux.go: EnsureExists).
//
// A fence that outlives its eviction keeps the pod in CrashLoopBackOff for ever. So the
// fence is marked before it is set: a record with the old limits and the order in a file below
// /run, which an evictd that starts after a crash reads. The cgroup's removal ends its fence.
//
// # Who calls what
//
//   - [Open] at start, before anything is killed. It returns the fences that an earlier
//     evictd of this boot left. The caller keeps those of pods whose eviction is pending
//     and lifts the others.
//   - [Table.Prepare], [Fence.Set] and [Fence.Close], one after the other, right after the
//     kill, on a goroutine that may block (act.Fencer). Nothing need be opened before: all
//     three were measured to take 16 µs (99 % up to 40 µs). Close leaves a fence that is set
//     as it is. Set opens nothing, allocates nothing unless it fails, and takes no mutex. The
//     write to cgroup.max.descendants waits for the kernel's cgroup_mutex
//     (cgroup_max_descendants_write); pids.max is written before it and waits for nothing. From
//     the first SIGKILL to the fence it takes 0.3 ms (measured on Linux 6.18). In an emulated
//     machine with Linux 6.12 on a busy host it took a median of 8 ms, and up to 250 ms: the
//     threads of evictd wait for a CPU, in every step, while the victim's processes exit. Of 24
//     kills that were traced there, pids.max was 0 after 7 ms (median; at most 110 ms), and the
//     write to cgroup.max.descendants took 0.2 ms (at most 46 ms, of which 37 ms in the queue
//     for a CPU). If Set fails, there is no fence, or with [ErrPartial] a part of it, and the
//     caller has to expect the pod to run again. [ErrBusy] means that the fence is being lifted.
//   - [Table.Check] every 500 ms, on one goroutine that may block. It sets limits again
//     that others changed, and repairs the file of marks.
//   - [Fence.Lift] when the pod may run after all, and [Table.LiftAll] at a clean stop, on
//     goroutines that may block.
//
// # Marks
//
// The file has a fixed number of records of one size, and is written in full when it is
// made. A mark is one pwrite(2) of 1 to 2 µs into a page that is in memory, because the file is
// also mapped and locked. The mapping is never accessed: a file that another program
// truncates must not become a SIGBUS. Each record has a checksum over itself and the boot
// id. A record of another boot, or one that was written in part, is therefore never taken
// for a mark.
package podfence
