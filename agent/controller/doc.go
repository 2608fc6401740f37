// Package controller fences dead nodes of a cluster: it observes Nodes and their Leases, asks agent/fence what to do,
// saves the state in a NodeFence object, and then carries out the orders. It decides nothing itself. Its subdirectory
// affinity evicts pods that violate their node affinity, and its subdirectory serving is the HTTPS server of the mutating
// webhook. Only these import controller-runtime, and cmd/evictd-controller is the only program that links it.
//
// What it adds to the decision:
//
//   - Decisions are made with [liveReader], a type of its own, never with the cache. The cache only says which nodes
//     are looked at: those that are not Ready, whose Lease is too old, or that have a NodeFence. For other nodes there is
//     no request besides the watches and the list of all Leases.
//   - A state is saved with the resourceVersion that it was computed from before an order of it is carried out. After a
//     conflict, state and orders are thrown away; outcomes and readings are kept until a state that has them was
//     accepted.
//   - Just before a device switches off or on, and with no Step of the node in between, the Node, its Lease, the
//     NodeFence, the objects of other remediators, and the Lease that they share are read again. See [executor].
//   - What a person sets at the Node or in the configuration ends a release that has begun: see [withdrawn].
//   - If the proof is missing in the saved state, no out-of-service taint is set and no pod is deleted, whatever was
//     ordered.
//   - The process waits at its start until it has all rights: see [awaitPrerequisites].
//   - An object that can't be read is unknown. Without the Node or the NodeFence there is no decision at all.
package controller
