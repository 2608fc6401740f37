// Package kube connects evictd and evictd-kube. It has the protocol on their unix socket,
// the sessions of both sides, the facts about pods that evictd gets from it, the orders by
// which evictd-kube reports evictions to the API server, and the conditions and taints that it
// maintains on the Node object.
//
// # Two processes
//
// evictd is privileged, has its memory locked and links no API client. evictd-kube runs
// next to it without privileges and reads the cluster's API server (agent/kube/cluster).
// Tenants write pod objects, which can have 1.5 MB; evictd-kube decodes them, and sends
// only a [Pod] each, of about 1 KB.
//
// evictd listens and evictd-kube connects ([Server], [Feed]). The socket has mode 0660 and
// the group of evictd-kube; evictd also compares the peer's user ID (SO_PEERCRED). There is
// one session at a time. A new connection ends the old session, so that a restarted
// evictd-kube does not wait for the timeout of its predecessor. Two that run at once end each
// other's sessions, at the pace of their back-off: it begins again only after a session of
// [lastingSession].
//
// # Protocol
//
// Each line is a [Message]: one JSON object with exactly one key, the kind of the message.
// evictd reads lines of at most [maxPodSize] bytes, and evictd-kube of at most [maxLine].
// Unknown keys, a second value in a line and a line without its newline are errors, and an
// error ends the session. The list and its end have the same ID.
//
//	evictd-kube → evictd                             evictd → evictd-kube
//	{"hello":{"version":4,"node":"n1",…}}            {"hello":{"version":4,"lines":900,…}}
//	                                                 {"nodeState":{"number":7,"conditions":[…]}}
//	                                                 {"order":{"id":"…","stage":"killed",…}}  (each)
//	{"state":{"connected":true,"ageMilliseconds":9}}
//	{"list":{"id":1}}
//	{"pod":{"uid":"…","namespace":"…",…}}  (each)
//	{"listed":{"id":1}}                              {"accepted":{"pods":30,"refused":[…]}}
//	{"pod":{…}}, {"gone":{"uid":"…"}}      (changes)
//	                                                 {"want":{"uids":["…"]}}
//	                                                 {"resend":{}}
//	                                                 {"readKubelet":{"certificates":"…"}}
//	{"kubelet":{"evictionHard":{…},…}}
//	                                                 {"order":{"id":"…","stage":"ended",…}}   (changes)
//	{"report":{"id":"…","answer":"reported"}}        {"withdraw":{"id":"…"}}
//	{"nodeReport":{"number":7}}                      {"nodeState":{…}}                        (changes)
//	{"marksReport":{"number":9}}                     {"nodeMarks":{"number":9,…}}             (changes)
//
// hello is the first message of both sides. It is the only message whose unknown keys are
// ignored, so that a newer version can be recognized by its number. If the versions differ,
// the session ends, both sides report it, and evictd keeps its facts and its orders: an upgrade
// replaces the two programs one after the other.
//
// After each connect and after a resend evictd-kube sends the complete list, so that evictd
// need not remember a session. Changes may be sent within a list. It ends when each pod that was
// in the API at its begin has been sent, or has left the API. A state follows at least every
// [StateInterval]; evictd ends a session that is silent for [silenceTimeout].
//
// # Order
//
// A pod without facts is not evicted by default, and tenants can write pods faster than evictd
// reads facts. When the runtime first lists a pod without facts, evictd names its UID (want),
// and again every [wantInterval]. evictd-kube chooses the lines of each [chunk] anew: first
// what evictd wants, then pods whose containers have started and that this session or the list
// lacks, then pods that are gone, and then changes of pods whose containers have started and
// other pods by turns, the oldest first (queue). A pod that evictd knows and does not want is
// sent at most every [updateInterval], and once besides when it is deleted. evictd-kube keeps the
// facts of [maxQueued] pods, and drops those whose containers have not started first.
//
// evictd's hello says how much it reads at once. evictd-kube computes what evictd has read
// since, and stays below it with a reserve for what evictd needs, so that a wanted line does not
// wait in the socket. An evictd-kube that does not is slowed by evictd.
//
// In each session one goroutine reads and another writes, on both sides. evictd queues the ID
// of an order once, and writes the stage that the order then has; likewise the NodeState. Neither
// its callers nor its reading wait for a peer that is stopped; the session ends when a write takes
// longer than [writeTimeout]. Both sides send orders and reports at once, not with the next facts: with
// neither under load it took 70 µs (median) from [Orders.Ended] to the handler in evictd-kube,
// and 100 µs to its answer in evictd (BenchmarkOrder). A NodeState takes as long from [Node.Set]
// (BenchmarkNodeState).
//
// # Facts
//
// The container runtime reports which containers run and where. A fact describes the pod:
// priority, class, requests, limits, owner. [Facts] implements agent/pods' Specifications:
// it is called without I/O for each running pod. A fact is used only if it agrees with what
// the kubelet passed to the runtime:
//
//   - the namespace, the name and the UID are those of the sandbox;
//   - the QoS class is that of the pod's cgroup;
//   - a container with oom_score_adj −997 outside the class Guaranteed belongs to a
//     node-critical pod (pkg/kubelet/qos/policy.go), so a fact with a lower priority is
//     wrong. If no cgroup shows the class (cgroupsPerQOS: false), it is the fact's: the fact
//     is used, and the pod exempt;
//   - priority, priority class and owner of a UID never change: those of the first fact
//     stay, and the rest of a later fact is used. Both the removal and the addition of an
//     owner are changes.
//
// A fact does not lift an exemption: static, node-critical and protected pods stay exempt,
// also if only the labels on the sandbox protect them. A fact that does not agree is
// refused, counted, and shown in the status with the reason. A pod without facts has an
// unknown priority.
//
// A pod with a deletionTimestamp, or that has left the API, ends without evictd
// ([evict.Pod].Ending). The kubelet reports its own victims only when their containers have
// ended, so evictd does not know of them before. A pod of which the runtime has listed no
// container yet is an arrival ([Facts.Arrivals]) if it was bound, and evictd first had facts
// about it, after a given time. The latter is saved. It is unknown of a pod that may have been there
// before its facts, which is no arrival, nor is one whose facts are reduced.
//
// Nothing of the runtime contradicts a wrong first priority of a Guaranteed pod, or of one
// of the class system-cluster-critical outside kube-system: evictd believes it.
//
// # Orders
//
// An [Order] asks evictd-kube to report the eviction of one pod. evictd kills and fences the
// pod itself and waits for nothing of this. The order says how far evictd is ([Stage]), and
// evictd-kube decides what to write at that stage. [Orders] has the orders and their timers:
//
//	Begin with a grace period        ─▶ stopping
//	Begin without one                ─▶ killed, at first or after stopping
//	Begin of a pod not started       ─▶ ended
//	killed, 10 s, must not run twice ─▶ waiting
//	killed, 300 ms, may run twice    ─▶ ended
//	any, Ended or CgroupGone         ─▶ ended
//	ended, Begin without a grace period, must not run twice, no final answer, cgroup not gone ─▶ killed
//
// An order ends, and is withdrawn, when
//
//   - the pod's cgroup is gone and the answer is final, in whichever order: this is the success;
//   - the pod was not evicted, for example because no process could be signalled (Refused);
//   - the answer is forbidden: the fence is lifted, and the pod is not evicted again while
//     evictd runs, or until evictd-kube can report again after it could not (Forbidden);
//   - FenceTimeout has passed since its begin and its grace period, and since the first final
//     answer: the fence is lifted;
//   - the pod runs again and is evicted again: the next order replaces it under another ID;
//   - evictd stops (Stop), which then lifts all fences.
//
// Invariants:
//
//  1. A UID has at most one order. An ID is never used again.
//  2. The order of a pod that must not run twice reaches the stage ended only when no process
//     of the pod's containers is left, as evictd itself has seen. No answer changes a stage.
//  3. A fence is lifted after its order has ended here, and the withdrawal is sent at once: evictd-kube
//     is not to report a pod as Failed that its kubelet may start again. A request that the API server
//     has received before may still take effect, and one of an evictd-kube that has not read the
//     withdrawal yet. evictd-kube withdraws all orders itself when it had no session for [ordersKept].
//  4. Orders survive a restart of either side. evictd saves them (agent/state) and sends them
//     all at the beginning of each session. evictd-kube finds in the pod's object what it has done,
//     by Order.Decided, which therefore stays as it is when the wall clock is set. The timers
//     go on by the clock of the boot. A reboot ends the orders, as it ends the fences.
//
// # The Node object
//
// A [NodeState] has the conditions that evictd-kube maintains on the Node object, with a taint for
// each that is true ([NodeConditions]). [Node] sends it at the beginning of each session, and in the
// iteration of the decision loop in which a condition changes; of several changes that are not sent
// yet only the newest is. A [NodeReport] says which state was written last, and why the Node does not
// have all of the newest one: also later, if a heartbeat fails or a taint can't be put back, and in
// dry run, if what an earlier evictd has left can't be removed.
//
//   - In dry run, and when evictd stops, the state has no conditions: evictd-kube removes the taints
//     and sets the conditions that exist to Unknown. A clean stop waits for that ([Node.Stop]). A
//     node that shuts down keeps the condition and the taint of that.
//   - After a start nothing is sent until evictd has decided: the restored state of the decision has
//     the conditions within their transition period, so that a restart under pressure removes no
//     taint. While evictd has not listed the pods, or evictd-kube has not said whether it may report
//     evictions, the mode is not known yet and nothing is sent either.
//   - evictd-kube keeps what it has written while it has no session, and calls it stale after
//     [ordersKept] (SetNode(nil)), also if evictd never connects. In a session evictd sends the state
//     again each minute while its loop measures; without one for [stateKept] it is stale, too, also if
//     evictd crashes again and again in that time. Sessions are looked at when they begin and then each
//     [StateInterval].
//   - evictd saves neither states nor numbers. Numbers begin at the time since the boot. evictd-kube
//     keeps the lastTransitionTime of a condition while its status stays the same
//     ([NodeCondition]).
//
// The order for a pod of a DaemonSet names the taint (Order.Taint), because the state may come
// later: the order begins with the fence, and the state is sent at the end of an iteration.
//
// # Marks
//
// [NodeMarks] are annotations of the Node object: the advert of the watchdog and the mark of a planned shutdown
// (agent/selffence). They are sent at the beginning of each session and when they change. evictd-kube writes an advert as
// it is, with a test of the value that it replaces, and not in place of a newer one of the same boot: of what is newer, a
// request that was delayed changes nothing. After the session evictd-kube begins no further attempt. One that has begun goes
// on, with at most three reads and three writes. A [MarksReport] without a reason says that the API server
// has accepted the marks; evictd counts from when it made the advert.
//
// The state has the number of nodes that cannot reach the API server, if evictd-kube asks the others
// (agent/selffence/peers), with the time since the boot at which it was counted.
//
// # Bounds
//
// evictd-kube may be compromised, and tenants write the pods that it describes. evictd does not
// collect garbage while a threshold is met, and locks its memory. Invariants:
//
//  1. The facts take at most [MaxPods] pods and [maxFactsSize] bytes, and those of one pod at
//     most [maxPodSize] bytes. The size of a fact ([Pod.cost]) is at least the memory that both
//     of its forms take; that of the message does not matter.
//
//  2. A peer can send one complete list at once, and then [lineRate] lines and [decodeRate]
//     bytes a second, in all sessions together. Empty elements count as what they become, and sessions
//     as their buffers. In one minute at these rates, which begins with a complete list,
//     decoding makes at most 56 MiB of garbage, the facts included (TestPeerMakesBoundedGarbage).
//     The test compares that with the limit of agent/self for the whole heap, and does not show
//     what a longer time needs.
//
//  3. While the mutex of the facts is locked, nothing is written, texts about at most one pod
//     are formatted, and all facts are visited at most three times. A peer causes that at most
//     once a second each, at the end of a list and at a state. At the bounds each line that
//     changes the facts of a running pod visits all facts once for each pod that it deletes, and
//     once more if there is none to delete.
//
//  4. Texts are names, of a closed set, or plain ASCII that JSON does not escape. The saved
//     facts, which are written one pod at a time, are therefore not larger than the facts, and
//     every file that evictd saves can be loaded.
//
//  5. A pod that the runtime lists has facts within about a second if the API has it, whatever
//     else a tenant writes (TestFactsInTime, TestRunningPodsHaveFacts).
//
//  6. There are at most [MaxOrders] orders. Begin fails for more: such a pod is killed, but
//     neither fenced nor reported. An order takes at most [maxMessage] and [maxAnnotations]
//     bytes besides names, a session's queue has at most [maxOutgoing] messages, and the pods
//     whose report was forbidden are remembered up to [maxUIDs].
//
//  7. A report is a line as any other for the rates of invariant 2. Its reason has at most
//     [maxWhy] bytes. It is saved, logged and acted on once for each order, when it is the
//     first final one; delays are logged at most every [logInterval]. Reports never call
//     Changed. Those of unknown orders are counted: the order may have been withdrawn.
//
//  8. A NodeReport is such a line, too. It changes the status, is never saved, and a failure is
//     logged at most every [logInterval]. That of a state that was not sent is ignored and counted;
//     evictd remembers up to [maxSent] states that were sent.
//
// A compromised evictd-kube can answer what it wants, to the orders that evictd has sent it:
//
//   - A false success (reported, deleted, gone, terminating) means that the pod is not
//     reported. Its fence stays until the pod's cgroup is gone, or until FenceTimeout after the
//     answer, which is at most twice FenceTimeout in all. A later answer does not change that.
//   - No answer, or one that is not final, means the same for FenceTimeout.
//   - forbidden lifts the fence of one pod that evictd has just killed. The kubelet starts it
//     again, and evictd does not evict it again until its own restart, or until evictd-kube
//     says that it can report again after it could not. So it can protect each pod after its
//     first eviction, as it can by a fact that says the pod is critical. Each is shown in the
//     status, counted, and logged at most every [logInterval].
//   - A false MarksReport keeps the watchdog fed without an advert that the API server has accepted. The node can then run
//     although a controller has taken it for reset, and has released its pods. So does a false count of the nodes that
//     cannot reach the API server, with selfFencing.peers.
//   - A false NodeReport changes what the status and the metrics say about the Node object, and how
//     long a clean stop waits (at most 5 s). evictd's decisions do not depend on it.
//
// It can't begin or advance an order, name a pod that evictd does not evict, or have a fence
// lifted earlier in any other way.
//
// evictd-kube leaves out what evictd would refuse (labels, tolerations, volumes whose texts are
// not plain), and reduces the facts of a pod that take more than [maxPodSize] bytes: it first
// leaves out the labels (evictd then uses those of the sandbox), then tolerations and volumes,
// then it adds up the containers. Above [maxFactsSize] less [smallSize] evictd stores further
// facts in that smallest form. At the bound it refuses the facts of pods that the runtime does
// not list; for those of a pod that it lists it deletes facts of pods that it does not list,
// the largest first. When facts have expired after some were refused, evictd asks for the complete
// list, at most every [askInterval]. The facts of several hundred running
// pods fit, however large each is (TestRunningPodsHaveFacts).
//
// A deleted fact no longer pins priority, class and owner of its UID. Only facts of pods that
// did not run are deleted.
//
// # Rights
//
// evictd-kube says with its state why it can't report evictions ([State.CannotReport]): a right
// that it lacks, or an API server that is too old. evictd uses that after the complete list,
// saves it with the facts, and evicts a kubelet's pods only if nothing is in the way
// ([Facts.CannotReport]).
//
// # The kubelet's configuration
//
// evictd asks for it (ReadKubelet) at the beginning of each session, when another kubelet runs than
// before, and when it could not be read for [failureInterval]. evictd-kube reads it then, and every
// five minutes, at https://NODE:PORT/configz. Any user of the node can listen there while the kubelet
// does not run, and would get a token that can write the status of pods. evictd-kube therefore sends
// its credentials only to a server with one of the certificates that evictd, as root, has found in
// the kubelet's directory, or with a serving certificate of the cluster's CA for this node.
//
// The last known configuration stays in use, also over a restart ([Facts.Kubelet]). A compromised
// evictd-kube can send a false one. With it, it can do this, and the status shows the thresholds and
// what is left to the kubelet:
//
//   - Thresholds that are too high take disk and PID signals away from evictd, but only while a kubelet
//     has sandboxes and with kubelet: auto, and for a shortage of at most five minutes, of PIDs one
//     minute: then evictd evicts ([evict.KubeletTimeout]). Memory is never left to the kubelet.
//   - Thresholds that are too low, and one that evictd does not understand, make evictd evict for a
//     signal for which the kubelet evicts too, as without a known configuration.
//   - A false shutdownGracePeriod makes evictd wrong about who stops the pods at a node shutdown.
//   - The differences and remedies that evictctl probe shows may be wrong.
//
// Bounds: each map and list has at most [maxEntries] entries, each text at most [maxEntry] bytes of plain
// text, and all of it fits into a line. A value that is not valid is not an error: evictd acts as if
// the kubelet had no such threshold.
//
// # Age
//
// The age of the facts is the time since the API server last confirmed them: with a list, a
// watch event or a bookmark, but not by opening a watch. Facts do not expire. They are saved to
// disk with their time, and evictd uses them after a restart while the API server or evictd-kube
// is away. While the API server is away, no new pod can be bound to the node. While only
// evictd-kube is away, new pods run without facts. The facts of a pod that is no longer in the API are kept while the
// runtime lists the pod, because a deletion with grace period 0 removes the object before the
// containers. Changed facts are saved within [saveInterval]; while a threshold is met, or a victim is
// in flight, every [ageSaveInterval] only.
package kube
