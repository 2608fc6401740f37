// Package pods is the inventory: it knows which pods run on this node, what
// they asked for, what they use, and which cgroups are theirs alone.
//
// [Inventory.Run] keeps the list fresh from its sources, of which the container
// runtime ([CRI]) is the first. What was known stays known while a source does
// not answer, hangs or talks nonsense. [Inventory.Measure] reads what every
// listed pod uses through descriptors that are held open, waits for nobody and
// asks no source, so that it can be called under pressure. Where a [Tree] walks
// the cgroups, it reads only what that finds to have moved, and the sources are
// asked when a cgroup comes or goes.
//
// What a pod is said to be is believed by rank:
//
//   - whose it is, its QoS class and its grace come from what only a kubelet or
//     the operator writes; an annotation that its author could have forged is
//     reported by [Inventory.Describe] and not believed;
//   - what it requested is told by nobody here: it is computed back from the
//     score that the kubelet derives from it, and is marked as an estimate;
//   - a number that could not be read is not there: the pod then has no
//     statistics, and Describe says why.
//
// A container's cgroup is proven when the runtime names it, it is named after
// the container, the container's first process is in it, and no other container
// or sandbox is. A process that must live and was moved into it takes nothing from
// that; one that the container started makes it unproven. Only a proven cgroup is
// handed out to be killed. [evict.Guard] lists
// the processes that no kill may reach, by what they are.
package pods
