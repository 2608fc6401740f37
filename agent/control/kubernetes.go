package control

import "time"

// Kubernetes is the connection to evictd-kube and the state of its facts about pods.
type Kubernetes struct {
	// Connected is set while evictd-kube has a session; Software is its version and Node
	// the node that it reads.
	Connected bool   `json:"connected"`
	Software  string `json:"software,omitempty"`
	Node      string `json:"node,omitempty"`
	// Watching is set while evictd-kube watches the pods in the API server. Error is the
	// reason if it is not connected or does not watch, or why its facts are doubtful.
	Watching bool   `json:"watching"`
	Error    string `json:"error,omitempty"`
	// AgeSeconds is the time since the API server last confirmed the facts; null if
	// unknown.
	AgeSeconds *float64 `json:"ageSeconds"`
	// Pods counts the pods with facts, and Used those of them that run and whose facts are
	// in use.
	Pods int `json:"pods"`
	Used int `json:"used"`
	// Refusals counts the facts that were refused since the start, and Refused names up
	// to ten that are refused now.
	Refusals uint64        `json:"refusals"`
	Refused  List[Refusal] `json:"refused"`
	// CannotReport is why evictd-kube can't report evictions, as it last said; empty if it can.
	CannotReport string `json:"cannotReport,omitempty"`
	// AffinityAdmission has the numbers of pods with a node affinity during execution that have come to the node since
	// the start of evictd-kube, by result; absent if evictd-kube rejects none.
	AffinityAdmission map[string]uint64 `json:"affinityAdmission,omitzero"`
	// Orders are the evictions to report; absent if evictd reports none.
	Orders *Orders `json:"orders,omitempty"`
	// NodeObject is what evictd-kube maintains on the Node object; absent if nothing.
	NodeObject *NodeObject `json:"nodeObject,omitempty"`
	// Kubelet is what is known of the kubelet's configuration.
	Kubelet KubeletConfiguration `json:"kubelet"`
}

// NodeObject is what evictd-kube maintains on the Node object: conditions, and the taints of those
// that are true.
type NodeObject struct {
	// Decided is set once evictd has sent what it wants. Until then the Node is left as an
	// earlier evictd has set it.
	Decided bool `json:"decided"`
	// Conditions are those that evictd wants or the Node has; none in dry run.
	Conditions List[NodeCondition] `json:"conditions"`
	// UnwrittenSeconds is for how long the Node has not had the conditions that evictd wants;
	// null if it has them. Why is what evictd-kube last gave as the reason.
	UnwrittenSeconds *float64 `json:"unwrittenSeconds"`
	Why              string   `json:"why,omitempty"`
}

// NodeCondition is a condition of the Node object.
type NodeCondition struct {
	Type  string `json:"type"`
	Taint string `json:"taint"` // the key of the taint of the node while it is true
	// Status is what evictd wants: True, False, or Unknown if it does not maintain the condition,
	// since Since. Written is what the Node has, as evictd-kube has last reported; empty before
	// its first report.
	Status  string    `json:"status"`
	Since   time.Time `json:"since,omitzero"`
	Written string    `json:"written,omitempty"`
}

// KubeletConfiguration is what is known of the kubelet's configuration, as evictd-kube has read it.
type KubeletConfiguration struct {
	// Known is set once it was read, also by an earlier evictd, and AgeSeconds is the time since
	// the last read; null if there was none. Error is why it can't be read now.
	Known      bool     `json:"known"`
	AgeSeconds *float64 `json:"ageSeconds"`
	Error      string   `json:"error,omitempty"`
	// EvictionHard are its hard thresholds, and ShutsDown whether it stops the pods when the node
	// shuts down.
	EvictionHard map[string]string `json:"evictionHard,omitempty"`
	ShutsDown    bool              `json:"shutsDown"`
	// Left are the signals of evictd's thresholds that are left to the kubelet.
	Left List[string] `json:"leftToKubelet"`
	// Differences are the fields that do not fit evictd's configuration.
	Differences List[KubeletDifference] `json:"differences"`
}

// KubeletDifference is a field of the kubelet's configuration that does not fit evictd's.
type KubeletDifference struct {
	Field string `json:"field"`
	// Kubelet is the kubelet's value, and Want one that fits; empty for none.
	Kubelet     string `json:"kubelet,omitempty"`
	Want        string `json:"want,omitempty"`
	Consequence string `json:"consequence"`
	Remedy      string `json:"remedy"`
	// MemoryOverlap is set if the kubelet evicts for memory when evictd does.
	MemoryOverlap bool `json:"memoryOverlap,omitempty"`
}

// Orders are evictd's orders to evictd-kube: evictions to report to the API server. The counts
// without another remark are since the start.
type Orders struct {
	// Pending counts the orders that have not ended, and Unanswered those of them without a
	// final answer. UnansweredSeconds is the age of the oldest of those; null if there is none.
	Pending           int      `json:"pending"`
	Unanswered        int      `json:"unanswered"`
	UnansweredSeconds *float64 `json:"unansweredSeconds"`
	// Oldest are up to twenty pending orders, the oldest first, and those without a final answer
	// before the others, which only wait for the removal of the pod's cgroup.
	Oldest List[Order] `json:"oldest"`
	// Forbidden counts the pods that are not evicted because the API server has refused the
	// report of an eviction, also those that are gone; at most 1,000.
	Forbidden int `json:"forbiddenPods"`
	// Begun counts the orders, Revived the evicted pods of which the kubelet started a container
	// again, Rejected the evictions without an order because too many were pending, and TimedOut the
	// orders that ended after kube.fenceTimeout, because the final answer or the removal of the
	// pod's cgroup did not come.
	Begun    uint64 `json:"begun"`
	Revived  uint64 `json:"revived"`
	Rejected uint64 `json:"rejected"`
	TimedOut uint64 `json:"timedOut"`
	// Answers counts the answers of evictd-kube by kind. Undone counts the reports that the
	// kubelet has undone, and that were written again.
	Answers map[string]uint64 `json:"answers,omitempty"`
	Undone  uint64            `json:"undone"`
	// Fences counts the fences that are set now, without FencesUnlifted: those that could not be
	// lifted. FencesFailed counts the evictions without a fence because it could not be set,
	// FencesChanged the limits of fences that another program wrote, and FencesLifted the fences
	// that were lifted.
	Fences         int    `json:"fences"`
	FencesUnlifted int    `json:"fencesUnlifted"`
	FencesFailed   uint64 `json:"fencesFailed"`
	FencesChanged  uint64 `json:"fencesChanged"`
	FencesLifted   uint64 `json:"fencesLifted"`
}

// Order is an eviction that evictd-kube has to report.
type Order struct {
	Pod   string    `json:"pod"` // namespace/name
	UID   string    `json:"uid"`
	Stage string    `json:"stage"` // stopping, killed, waiting or ended
	Since time.Time `json:"since"` // of the kill if AwaitsProcesses is set
	// Answer is the last answer, or the first final one, and empty before the first. Why is its
	// reason.
	Answer string `json:"answer,omitempty"`
	Why    string `json:"why,omitempty"`
	// Exclusive is why two instances of the pod must not run at the same time; empty if they may.
	Exclusive string `json:"exclusive,omitempty"`
	// CgroupGone is set when the pod's cgroup was removed, so that only the answer is missing.
	CgroupGone bool `json:"cgroupGone,omitempty"`
	// Final is set when nothing more is expected of evictd-kube. AwaitsProcesses is set while
	// killed processes have not ended, of a pod that must not run twice: it is not reported
	// before.
	Final           bool `json:"final,omitempty"`
	AwaitsProcesses bool `json:"awaitsProcesses,omitempty"`
}

// Refusal is a fact about a pod that is not used, with the reason.
type Refusal struct {
	Pod string `json:"pod"`
	UID string `json:"uid"`
	Why string `json:"why"`
}

// Facts describes a candidate's facts from the API server.
type Facts struct {
	// Owner is the pod's controller as kind/name, or none.
	Owner string `json:"owner,omitempty"`
	// AgeSeconds is the time since the API server last confirmed the facts; null if
	// unknown.
	AgeSeconds *float64 `json:"ageSeconds"`
	// Refused is the reason if the facts are not used.
	Refused string `json:"refused,omitempty"`
	// Note is a remark, such as that the pod is no longer in the API.
	Note string `json:"note,omitempty"`
}

// Age returns the time since at in seconds; nil for the zero time.
func Age(at, now time.Time) *float64 {
	if at.IsZero() {
		return nil
	}
	return new(max(0, now.Sub(at).Seconds()))
}
