// Package cgroup reads the memory and the processes of cgroups, and freezes and
// kills them. It supports v1, v2 and hybrid hierarchies
// (Documentation/admin-guide/cgroup-v1, cgroup-v2.rst).
//
// [Find] finds the hierarchy of the memory controller, [Hierarchy.Open] opens one
// cgroup of it, [Hierarchy.OpenLimits] its limits of tasks and descendants, and
// [ReadMembership] returns the cgroups of a process. A [Cgroup] is
// identified by the descriptor of its directory: after it was removed, even if
// another cgroup has its path now, its methods return [ErrGone] and never the
// values of the other cgroup.
//
// The package has no policy. The caller decides whether a cgroup may be killed;
// only the root is refused here.
package cgroup
