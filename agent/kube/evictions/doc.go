// Package evictions connects the kills of a kubelet's pods with their fences (agent/podfence)
// and with the orders to evictd-kube ([kube.Orders]).
//
// [Evictions] implements [act.Fencer] and takes the reports of an execute.Executor. It kills
// nothing and speaks to no other program. It never blocks the decision loop or the hot path:
// [Evictions.Report] waits for no I/O, and [Evictions.Fence] runs on a goroutine of the
// eviction.
//
// # A hard eviction
//
//  1. SIGKILL was sent to the pod's containers (agent/hot, agent/act).
//  2. [Evictions.Fence] begins the order, which is saved soon after that; then it marks the fence,
//     with what the next evictd needs to make the order again, and sets it. agent/act kills what
//     has been started in the pod's cgroup.
//  3. No process of the containers is left: the order advances to its last stage, and
//     evictd-kube reports the pod Failed.
//  4. The kubelet removes the pod's cgroup, and the fence with it: the order ends once its answer
//     is final.
//
// While there are fences, [Evictions.Run] checks them every 500 ms. A limit that others wrote
// is set to 0 again. A fence that belongs to no eviction is lifted.
//
// A pod that is being deleted, or has ended by the kubelet's own verdict, is killed and fenced like
// any other. Its order is answered "terminating": evictd-kube writes nothing, and the fence stays
// until the kubelet has removed the pod's cgroup.
//
// # A refusal
//
// A pod that is refused before any of its containers has run is only reported
// ([Evictions.Refuse]): the order begins with its last stage, and nothing is killed or fenced. The
// kubelet stops the pod when it sees the report. The order ends when the answer has come and the
// runtime has no sandbox of the pod. If a container starts nevertheless, the decision evicts the pod, while
// there is pressure. The order is given up if it is not reported within 10 s then, at once for a pod that
// must not run twice: it would end a pod for a reason of the past.
//
// # Pods without a fence
//
// A pod has none if it has no cgroup of its own (the kubelet's cgroupsPerQOS is false), on v1
// without the pids controller or with another OCI runtime than runc, if the file of marks can't be
// written, and with CRI-O, with which a fence has not been tested. A pod that may run
// twice is then reported at once. Run finds the end of the pod in the runtime's list. If the
// kubelet has started a container again, this is counted. The eviction of a pod that must not
// run twice is then given up; of another pod if it is not reported within 10 s. The decision
// kills the pod again if it has to, with its back-off for revivals (agent/evict). Because the
// kubelet may start it while the report is on its way, a pod of a StatefulSet is not marked Failed
// but deleted: its controller replaces it when its containers have ended. Controllers of other pods
// do not wait for that.
//
// # Node shutdown
//
// When evictd stops the pods of a kubelet because the node shuts down (agent/shutdown), those that
// can be reported have an order at the stage stopping, as in an eviction with a grace period, and
// the kubelet stops them. [Evictions.Answered] tells the actuator whether it does. If evictd-kube
// does not answer in time, the runtime stops the pod, the pod is fenced, and its order stays
// pending: the answer may still come. While containers of a pod are in their grace period, its
// fence lets their processes fork ([podfence.Fence.SetForking]); on v1 it is set when the last one
// has stopped, and a container that the kubelet starts before that is stopped again. What can't be
// reported has a fence without an order: static pods, critical pods, pods without facts, and those
// whose report the API server forbids. If the shutdown is canceled, Run lifts these fences. An
// order that ends while the node shuts down, as in a clean stop or by a late refusal, leaves its
// fence without an order as well.
//
// A reboot ends orders and fences. What was not reported by then still says Running in the API. The
// kubelet starts those pods again after the boot, and no controller has replaced them before:
// reported then, they would be ended in their new life.
//
// # Restart
//
// After each restart [Evictions.Open] finds the fences, before a pod can be killed, and
// [Evictions.Restore] the orders. An evictd that was killed leaves both as they are; a clean
// stop waits for the end of the pods and for answers, withdraws all orders and lifts all
// fences, unless the node shuts down. What remains is, by the point at which evictd ended:
//
//	evictd ended               fence   order    pod's processes   then
//	1 before the order         –       –        dead, or newer    The kubelet starts it again, as after a crash.
//	2 before the order saved   set     mark     dead              As 9: the mark has the order, without the annotations
//	                                                              of the event.
//	3 the same                 set     mark     left              As 7 or 8; newer as 5, and the fence is lifted.
//	4 before the mark          –       killed   left, old         The loop kills the pod again if it knows the victim, else
//	                                                              [Options.Resume] does. It is fenced then.
//	5 the same                 –       killed   newer             The pod runs again: the order is void, and it is counted
//	                                                              as revived.
//	6 the same                 –       killed   dead              The pod is reported. If it must not run twice, the order is
//	                                                              void instead: nothing keeps it from running.
//	7 while processes exit     set     killed   left, listed      As 4.
//	8 the same                 set     killed   left, not listed  Their end is waited for, and the pod reported.
//	9 the same                 set     killed   dead              The pod is reported.
//	10 before the answer       set     ended    dead              The order is sent again, and evictd-kube finds in the pod
//	                                                              what it has done.
//	11 before the cgroup went  set     answered any               The cgroup's removal is waited for.
//	12 after the cgroup went   –       any      –                 The order ends with its answer.
//	13 in a grace period       –       stopping left              The loop resumes it. If it does not know the victim, the
//	                                                              order is void.
//	14 in a clean stop         lifted  any      any               As 4, 5, 6, 11 and 12 without a fence.
//	15 after a clean stop      lifted  –        any               Nothing: the kubelet may have started the pod again.
//	16 after a refusal         –       ended    none              As 10. The end of the sandbox is waited for.
//	17 the same                –       ended    newer             The order is void. The decision may refuse the pod again.
//	18 in a node shutdown      set     –        any               The fence stays, and the shutdown goes on.
//	19 in a clean stop then    set     –        any               As 18. Of a pod with an order, that is withdrawn, and the
//	                                                              mark no longer has it.
//	20 canceled since          set     –        any               The fence is lifted. The kubelet starts the pod again.
//
// The processes are those of the pod's containers, as far as they are not the sandbox's. "old"
// are those of containers that were created before the kill, "newer" of those created after it.
// In dry run by configuration, all fences of an earlier run are lifted and all orders are void.
// In dry run for another reason, an order is void once the pod would have to be killed again. If the
// reason is that no evictd-kube has connected yet, it waits until one has.
// The state of another boot has no orders, and its fences no effect.
//
// If evictd can't start, or starts without evictd-kube in its configuration, it lifts the
// fences that it finds. [Release] does so on request.
package evictions
