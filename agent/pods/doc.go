// Package pods is the inventory: it knows which pods run on this node, what
// they asked for, what they use, and which cgroups are theirs alone.
//
// The [Runtime] says what runs, and [Specifications], asked without I/O, what it is;
// neither waits for the other. [Inventory.Run] keeps the list fresh. What was known
// stays known while the runtime ([CRI]) does not answer, hangs or talks nonsense.
// [Inventory.Measure] reads what every listed pod uses through descriptors that are
// held open and does not ask the runtime, so that it can be called under pressure.
// Where a [Tree] walks the cgroups, it reads only what that finds to have moved, and
// the runtime is asked when a cgroup comes or goes.
//
// What a pod is said to be is believed by rank:
//
//   - whose it is, its QoS class and its grace come from what only a kubelet or
//     the operator writes; an annotation that its author could have forged is
//     reported by [Inventory.Describe] and not believed;
//   - without a specification, what it requested is computed back from the
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
