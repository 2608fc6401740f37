// Package extender answers kube-scheduler's question on which nodes a pod with the annotation of agent/affinity can be
// placed: it is the scheduling half of node affinity that is enforced during execution.
//
// [Handler] implements the verb filter of a scheduler extender, whose types are in k8s.io/kube-scheduler/extender/v1.
// Their fields have no JSON tags, so that they are Pod, Nodes and NodeNames on the wire. The scheduler asks after its own
// filters, in the scheduling cycle of every pod of the cluster. Hence:
//
//   - It answers from the labels in memory, and makes no request. A pod without the annotation gets back what it came
//     with, without allocating.
//   - Only the annotation is compared. The scheduler has compared nodeSelector and affinity before.
//   - A node that does not match is in FailedAndUnresolvableNodes: preempting other pods would not help. So is a node that
//     the cache does not know. It is not guessed whether it matches.
//   - A pod whose annotation does not parse matches no node, for the reason that the event NodeAffinityInvalid has.
//   - Pods of DaemonSets match all nodes: those that their DaemonSet makes for the others would wait for ever.
//   - Bodies, names, answers, times and requests in flight are bounded, the last for each client, so that a pod that can
//     connect does not keep the scheduler out. Answers have no data but the request's and what did not match: the
//     scheduler needs no credentials here. The server may ask for a certificate.
package extender
