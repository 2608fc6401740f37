// Package memcg lets the kernel tell when a cgroup's memory crosses a line.
//
// A v1 tree has thresholds of usage and levels of reclaim, which speak through
// an eventfd ([ArmUsage], [ArmPressure]; mm/memcontrol-v1.c, mm/vmpressure.c).
// A v2 tree counts events in files that can be polled ([OpenEvents];
// mm/memcontrol.c). Neither has the other's: that is [kernel.ErrUnavailable].
//
// Everything is opened below the directory of the [cgroup.Cgroup] that was
// asked for, after a look at its inode: one that was removed is
// [cgroup.ErrGone], also when another has taken its path.
package memcg
