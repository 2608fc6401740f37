package evict

import (
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Inputs is the input of one Step.
type Inputs struct {
	Policy       *Policy
	Observations signal.Observations
	// Pods are the running pods, in any order. Step does not retain them.
	Pods []Pod
	// Arrivals are pods that have come to the node and of which no container has started. They
	// are not among Pods.
	Arrivals []Pod
	// PodsUnknown is set until the pods have been listed for the first time. Pods is empty
	// then, which does not mean that earlier pods are gone.
	PodsUnknown bool
	// Outcomes are the outcomes of orders since the last Step.
	Outcomes []Outcome
	// HotKills are the hot path's kills since the last Step, in their order.
	HotKills []HotKill
	// Contention lists the ongoing stalls on memory.
	Contention []Contention
	// Measured is set if the usage of pods is measured, so that a victim's progress
	// shows in it. If it is not set, a victim is assumed to have freed everything after
	// the settle timeout.
	Measured bool
	// UnaccountedBaseline is the memory of kubepods, in bytes, that no listed pod accounts for
	// and that earlier lists left unaccounted too (see the type [UnaccountedBaseline]).
	UnaccountedBaseline int64
	// DryRun makes Step count a victim as gone at once and report it once per episode.
	DryRun bool
	// ReclaimStalled is set while the kernel's reclaim makes no progress. A crossing
	// that file cache caused is then acted on at once.
	ReclaimStalled bool
	// PodsReclaimStalled is ReclaimStalled for reclaim at the memory limit of all pods.
	// It affects allocatableMemory.available only.
	PodsReclaimStalled bool
	// ActNow lists the hard memory thresholds for which a lane has found from its own
	// readings since the last Step that the crossing must be acted on.
	ActNow []ThresholdKey
	// CounterDrift is by how many bytes per-CPU counters may lag. It is used if Measured is
	// set.
	CounterDrift int64
	// NothingReclaimed lists the thresholds whose last node-level reclaims freed
	// nothing, until the next attempt is due. Step then orders a reclaim for them only
	// if it would evict a pod after it.
	NothingReclaimed []ThresholdKey
	// KubeletHard are the hard thresholds of a kubelet that evicts the same pods, with the
	// derived ones; nil if there is none or they are not known. Step leaves disk and PID signals
	// to it for which it evicts first, see [Threshold.EvictedFirst].
	KubeletHard []Threshold
}

// Orders is the result of one Step: what to do, and what was found.
type Orders struct {
	// Evict lists the pods to evict, in this order.
	Evict []Order
	// Adopted are the orders for the hot path's kills, in their order. They have been
	// carried out; the caller only follows and records them.
	Adopted []Order
	// Refuse lists the pods of Arrivals that are refused. Nothing of them is killed.
	Refuse []Order
	// Escalate lists the UIDs of victims whose grace period ends now.
	Escalate []string
	// Reclaim is the node-level reclaim to do, or nil. Its Outcome must be in the
	// inputs of a later Step.
	Reclaim *Reclaim

	// Met lists the signals with a threshold that is met, in order. Conditions lists
	// the published conditions, sorted.
	Met        []signal.Signal
	Conditions []signal.Condition
	// Waiting lists the hard memory thresholds that are met because of file cache and
	// are not acted on yet.
	Waiting []ThresholdKey
	// ActedOn is the threshold that was acted on, or nil.
	ActedOn *Threshold
	// Ranking and Exempt are set if pods were ranked.
	Ranking []Ranked
	Exempt  []Exempt
	// Futile lists the signals that evicting can't relieve.
	Futile []Futility
	// Unreadable lists the signals that could not be read.
	Unreadable []signal.Signal
	// Revived lists the UIDs of evicted pods that were started again.
	Revived []string
	// Stuck lists the UIDs of victims that became stuck in this Step.
	Stuck []string
}

// Order is the eviction of one pod.
type Order struct {
	UID string `json:"uid"`
	Pod string `json:"pod"`
	// Cause is the name of the signal, of the contention condition, or of the limit
	// that the pod exceeded.
	Cause string        `json:"cause"`
	Hard  bool          `json:"hard"`
	Grace time.Duration `json:"grace"`
	// Threshold, Available and Deficit are the amounts that the decision was made on,
	// in the signal's unit; 0 for a pod's own limits.
	Threshold int64 `json:"threshold"`
	Available int64 `json:"available"`
	Deficit   int64 `json:"deficit"`
	// Expected is the amount that the eviction is expected to free, in that unit.
	Expected    int64             `json:"expected"`
	Futile      bool              `json:"futile,omitempty"`
	Reason      string            `json:"reason"`
	Message     string            `json:"message"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// ReclaimKind is a kind of node-level reclaim.
type ReclaimKind string

// The kinds of node-level reclaim.
const (
	ReclaimContainers ReclaimKind = "containers" // dead containers and sandboxes
	ReclaimImages     ReclaimKind = "images"     // unused images
	ReclaimMemory     ReclaimKind = "memory"     // pods' memory, through memory.reclaim; never ordered by Step, see [ProactiveReclaim]
)

// Reclaim is an order to free a resource of the node without evicting a pod.
type Reclaim struct {
	Kind    ReclaimKind   `json:"kind"`
	Signal  signal.Signal `json:"signal"`
	Deficit int64         `json:"deficit"`
}

// Outcome is the result of an order: of the eviction of a pod or, if UID is empty, of
// the node-level reclaim.
type Outcome struct {
	UID string
	// Err is set if the order could not be carried out.
	Err error
}

// Futility is a signal that evicting can't relieve.
type Futility struct {
	Signal   signal.Signal `json:"signal"`
	Deficit  int64         `json:"deficit"`
	Coverage int64         `json:"coverage"` // expected of all eligible pods together
	Until    time.Time     `json:"until"`    // no next victim before
}
