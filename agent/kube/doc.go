// Package kube connects evictd and evictd-kube. It has the protocol on their unix socket,
// the sessions of both sides, and the facts about pods that evictd gets from it.
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
// evictd-kube does not wait for the timeout of its predecessor.
//
// # Protocol
//
// Each line is a [Message]: one JSON object with exactly one key, the kind of the message.
// evictd reads lines of at most [maxPodSize] bytes, and evictd-kube of at most [maxLine].
// Unknown keys, a second value in a line and a line without its newline are errors, and an
// error ends the session. The sender of a list sets its ID, and the answer repeats it.
//
//	evictd-kube → evictd                             evictd → evictd-kube
//	{"hello":{"version":1,"node":"n1",…}}            {"hello":{"version":1,…}}
//	{"state":{"connected":true,"ageMilliseconds":9}}
//	{"list":{"id":1}}
//	{"pod":{"uid":"…","namespace":"…",…}}  (each)
//	{"listed":{"id":1}}                              {"accepted":{"id":1,"pods":30,"refused":[…]}}
//	{"pod":{…}}, {"gone":{"uid":"…"}}      (changes)
//	                                                 {"resend":{}}
//
// hello is the first message of both sides. It is the only message whose unknown keys are
// ignored, so that a newer version can be recognized by its number. If the versions differ,
// the session ends, both sides report it, and evictd keeps its facts: an upgrade replaces
// the two programs one after the other.
//
// After each connect and after a resend evictd-kube sends the complete list, so that evictd
// need not remember a session. A state follows at least every [StateInterval]; evictd ends a
// session that is silent for [silenceTimeout].
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
//     wrong;
//   - priority, priority class and owner of a UID never change: those of the first fact
//     stay, and the rest of a later fact is used. Both the removal and the addition of an
//     owner are changes.
//
// A fact does not lift an exemption: static, node-critical and protected pods stay exempt,
// also if only the labels on the sandbox protect them. A fact that does not agree is
// refused, counted, and shown in the status with the reason. A pod without facts has an
// unknown priority.
//
// Nothing of the runtime contradicts a wrong first priority of a Guaranteed pod, or of one
// of the class system-cluster-critical outside kube-system: evictd believes it.
//
// # Bounds
//
// evictd-kube may be compromised, and tenants write the pods that it describes. evictd does not
// collect garbage while a threshold is met, and locks its memory. Invariants:
//
//  1. The facts take at most [MaxPods] pods and [maxFactsSize] bytes, and those of one pod at
//     most [maxPodSize] bytes. The size of a fact ([Pod.cost]) is at least the memory that both
//     of its forms take; that of the message does not matter.
//  2. A peer can send one complete list at once, and then [lineRate] lines and [decodeRate]
//     bytes a second, in all sessions together. Empty elements count as what they become, and sessions
//     as their buffers. This bounds the garbage of decoding (TestPeerMakesBoundedGarbage).
//  3. The mutex of the facts is locked for at most three visits of all facts, and for a peer at
//     most once a second, at the end of a list, at a state or at the bounds. The facts of a
//     running pod that had none may take more, once. While it is locked, texts about at most
//     one pod are formatted, and nothing is written.
//  4. Texts are names, of a closed set, or plain ASCII that JSON does not escape. The saved
//     facts, which are written one pod at a time, are therefore not larger than the facts, and
//     every file that evictd saves can be loaded.
//  5. A pod that the runtime lists has facts if the API has it, whatever else a tenant writes:
//     a pod without facts is not evicted by default. See below.
//
// evictd-kube leaves out what evictd would refuse (labels, tolerations, volumes whose texts are
// not plain), and reduces the facts of a pod that take more than [maxPodSize] bytes: it first
// leaves out the labels (evictd then uses those of the sandbox), then tolerations and volumes,
// then it adds up the containers. Above [maxFactsSize] less [smallSize] evictd stores further
// facts in that smallest form. At the bound it refuses the facts of pods that the runtime does
// not list; for those of a pod that it lists it deletes facts of pods that it does not list,
// the largest first. When a running pod lacks facts after that, or facts have expired, evictd
// asks for the complete list, at most every [askInterval]. The facts of several hundred running
// pods fit, however large each is (TestRunningPodsHaveFacts).
//
// A deleted fact no longer pins priority, class and owner of its UID. Only facts of pods that
// did not run are deleted.
//
// # Age
//
// The age of the facts is the time since the API server last confirmed them: with a list, a
// watch event or a bookmark. Facts do not expire. They are saved to disk with their time,
// and evictd uses them after a restart while the API server or evictd-kube is away. While the
// API server is away, no new pod can be bound to the node. While only evictd-kube is away, new
// pods run without facts. The facts of a pod that is no longer in the API are kept while the
// runtime lists the pod, because a deletion with grace period 0 removes the object before the
// containers. While a threshold is met, changed facts are saved every [ageSaveInterval] only.
package kube
