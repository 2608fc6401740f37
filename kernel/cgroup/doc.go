// Package cgroup reads memory, processes and their places in the kernel's
// control groups, and freezes and kills them: cgroup v1, v2 and both side by
// side (Documentation/admin-guide/cgroup-v1, cgroup-v2.rst).
//
// [Find] tells which tree carries the memory controller, [Hierarchy.Open] holds
// one cgroup of it and [Of] tells in which cgroups a process is. A [Cgroup] is
// named by its directory's descriptor: when it is removed, and also when another
// takes its path, it answers [ErrGone] and never with the other's numbers.
//
// The package does not judge. Whether a cgroup may be killed is for its caller
// to know; only the root of the tree is refused here.
package cgroup
