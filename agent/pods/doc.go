// Package pods is the inventory of the pods that run on this node: what they requested,
// what they use, and which cgroups are theirs alone.
//
// The [Runtime] lists what runs. [Specifications] describe what the pods are, and answer
// without I/O. Neither waits for the other. [Inventory.Run] keeps the list current. While
// the runtime ([CRI]) does not answer, hangs or returns malformed data, the last known list
// stays in use. [Inventory.Measure] reads the usage of each listed pod through open
// descriptors and does not call the runtime, so it can be called under pressure. With a
// [Tree], which walks the cgroups, it reads only the files of cgroups whose usage has
// changed, and the runtime is listed when a cgroup is created or removed.
//
// The sources of a pod's properties are ranked:
//
//   - the owner, the QoS class and the grace period come from what only a kubelet or the
//     operator can write; an annotation that the pod's author could have forged is ignored
//     and reported by [Inventory.Describe];
//   - without a specification, the memory request is computed from the oom_score_adj that
//     the kubelet derives from it, and is marked as an estimate;
//   - a value that could not be read is absent: the pod then has no statistics, and
//     Describe has the reason.
//
// A container's cgroup is proven if the runtime names it, its name contains the
// container's ID, the container's first process is in it, and no other container or
// sandbox is. A protected process that was moved into it does not matter; one that the
// container started makes it unproven. Only a proven cgroup is killed. [evict.Guard] lists
// the processes that no kill may reach, by identity and not by name.
package pods
