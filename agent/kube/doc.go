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
// Each line is a [Message]: one JSON object of at most [MaxLine] bytes with exactly one
// key, the kind of the message. Unknown keys, a second value in a line and a line without
// its newline are errors, and an error ends the session. The sender of a list sets its ID,
// and the answer repeats it.
//
//	evictd-kube → evictd                             evictd → evictd-kube
//	{"hello":{"version":1,"node":"n1",…}}            {"hello":{"version":1,…}}
//	{"state":{"connected":true,"ageMilliseconds":9}}
//	{"list":{"id":1}}
//	{"pod":{"uid":"…","namespace":"…",…}}  (each)
//	{"listed":{"id":1}}                              {"accepted":{"id":1,"pods":30,"refused":[…]}}
//	{"pod":{…}}, {"gone":{"uid":"…"}}      (changes)
//
// hello is the first message of both sides. It is the only message whose unknown keys are
// ignored, so that a newer version can be recognized by its number. If the versions differ,
// the session ends, both sides report it, and evictd keeps its facts: an upgrade replaces
// the two programs one after the other.
//
// After each connect evictd-kube sends the complete list, so that evictd need not remember
// a session. A state follows at least every [StateInterval]; evictd ends a session that is
// silent for [silenceTimeout].
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
// The facts take at most [MaxPods] pods and [maxFactsSize] bytes. evictd-kube reduces the
// facts of a pod that have more than [maxPodSize] bytes or [maxParts] parts: it first leaves
// out the labels (evictd then uses those of the sandbox), then tolerations and volumes, then
// it adds up the containers. No tenant can write a pod without facts, because such a pod is
// not evicted by default: values that evictd would refuse are replaced. evictd reads at most
// [maxRate] lines and [maxByteRate] bytes a second.
//
// # Age
//
// The age of the facts is the time since the API server last confirmed them: with a list, a
// watch event or a bookmark. Facts do not expire. They are saved to disk with their time,
// and evictd uses them after a restart while the API server or evictd-kube is away; no new
// pod can be bound to the node during that time. The facts of a pod that has left the API
// are kept while the runtime lists the pod, because a deletion with grace period 0 removes
// the object before the containers.
package kube
