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
