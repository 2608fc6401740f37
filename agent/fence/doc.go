// Package fence decides what happens to a node that no longer answers: when its machine is switched off, what proves
// that it is off, and when its pods and volumes are released.
//
// Its entry is [Step], as in agent/evict: the state of one fence, fresh observations and the time in; new state and
// orders out. The package does no I/O, reads no clock, starts no goroutine and imports no other package of evictd.
// agent/controller observes, saves the state in a NodeFence object, and then carries the orders out.
//
// One rule is above all others: no pod and no volume of a node is released before a separate reading has proven that
// its machine is off, or that it is cut off from the storage of the pod. There are three opt-ins: a person's word (an
// annotation with the UID of the fence), the bound of the node's own hardware watchdog, and the datagrams of its dump
// kernel, for pods without their volumes.
// Everything else follows:
//
//   - A state is saved before an order of it is carried out, but for the removal of the out-of-service taint. An act that
//     was saved and has no outcome is unknown: it is never repeated under the same id.
//   - That an act succeeded proves nothing. A reading counts as proof if it began after the last act ended, in a session of
//     its own, for each power device of the node, twice, [Timings.ProofInterval] apart, while the Lease did not change.
//   - A node that is cut off from storage may run. Only pods that use no other storage are released then, without a taint,
//     and its isolation is undone only after it has booted again.
//   - Unknown is not off, and it is not failed either: a late switch-off may take effect after the client has given up.
//   - Only a drill acts against a node that is Ready: one that a person asked for, and that is cordoned and empty.
//   - Only off and on are ever sent. A reboot is off, proof, release, on.
//
// The types that are saved in a NodeFence have JSON tags and the marker +kubebuilder:object:generate=true. After a
// change of them run make generate-api.
package fence
