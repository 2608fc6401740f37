// Package affinity evicts pods that violate the node affinity that is enforced during execution. It observes pods and
// nodes, calls [affinity.Step] of the package agent/affinity, which decides, and carries its orders out by the eviction
// API. It runs in the controller that is the leader.
//
// What it adds to the decision:
//
//   - Pods come from a watch of its own. Of each pod only what is needed is kept, and of equal requirements one.
//   - A violation is only a reason to look: just before an eviction the pod, its Node, the Node's Lease, and the replicas
//     of a workload without a PodDisruptionBudget are read from the API server. An eviction whose pod or node differs
//     from what was decided on is not sent.
//   - Pods are evicted, never deleted, with a precondition on their UID.
//   - An object that can't be read is unknown, and unknown means no eviction.
package affinity
