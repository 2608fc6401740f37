// Package memcg subscribes to the kernel's notifications about the memory of a
// cgroup.
//
// v1 has usage thresholds and reclaim pressure levels, which signal an eventfd
// ([ArmUsage], [ArmPressure]; mm/memcontrol-v1.c, mm/vmpressure.c). v2 counts
// events in files that can be polled ([OpenEvents]; mm/memcontrol.c). Each fails
// with [kernel.ErrUnavailable] on the other version.
//
// Files are opened below the directory of the given [cgroup.Cgroup] after a check
// of its inode number. If the cgroup was removed, even if another one has its path
// now, the error is [cgroup.ErrGone].
package memcg
