package affinity

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// State is what Step remembers. Its zero value is that of a process that has just started. It is not saved.
type State struct {
	// Violations are the pods that violate now, by UID.
	Violations map[types.UID]Violation
	// Workloads are those with an eviction in flight or a back-off, by [Pod.Workload].
	Workloads map[string]Backoff
	// Evicted are the times of the last accepted evictions, oldest first, as far as a rate needs them.
	Evicted []time.Time
	// Storm is the id of the storm that is going on, empty if there is none.
	Storm string
}

// Violation is a pod that violates, and how far its eviction is.
type Violation struct {
	Pod PodKey
	// Since is when the violation was observed first.
	Since time.Time
	// Held is why the pod is not evicted now; empty if nothing holds it back.
	Held Hold
	// Next is when the eviction is tried again after a refusal.
	Next time.Time
	// Refusals counts those in a row.
	Refusals int
	// InFlight is the id of the eviction that was ordered and has no outcome.
	InFlight string
	// Reported is when Held was reported last.
	Reported time.Time
}

// Backoff is what is remembered of a workload between two evictions.
type Backoff struct {
	// InFlight is the pod whose eviction has no outcome, or was accepted and is not gone.
	InFlight types.UID
	// Node is the node of the last eviction, and EvictedAt its time.
	Node      string
	EvictedAt time.Time
	// Loops counts replacements in a row that were bound to a node that violated already.
	Loops int
	// Until is when the next eviction may follow.
	Until time.Time
}

// PodKey identifies a pod.
type PodKey struct {
	Namespace, Name string
	UID             types.UID
}

// Hold is why a pod that violates is not evicted now. It is a label of a metric.
type Hold string

// The holds, in the order in which they are checked.
const (
	HoldDryRun           Hold = "DryRun"           // --affinity=observe
	HoldStatic           Hold = "Static"           // a mirror pod
	HoldDaemonSet        Hold = "DaemonSet"        // it would come back here
	HoldCompleted        Hold = "Completed"        // Succeeded or Failed
	HoldTerminating      Hold = "Terminating"      // it is going already
	HoldBare             Hold = "Bare"             // nothing would bring it back
	HoldNodeNotReady     Hold = "NodeNotReady"     // its labels are out of date
	HoldNodeStale        Hold = "NodeStale"        // so are those of a node whose Lease is not renewed
	HoldNodeFenced       Hold = "NodeFenced"       // the fence decides
	HoldNodeGone         Hold = "NodeGone"         // the Node object is deleted
	HoldNodeDrained      Hold = "NodeDrained"      // cordoned or shutting down: left to that
	HoldDebounce         Hold = "Debounce"         // observed for less than the debounce
	HoldStorm            Hold = "Storm"            // too many nodes at once, or one key gone everywhere
	HoldNoNodeFits       Hold = "NoNodeFits"       // no other node matches
	HoldWorkloadInFlight Hold = "WorkloadInFlight" // another eviction of the workload
	HoldWorkloadNotReady Hold = "WorkloadNotReady" // a replica is missing or not ready, and there is no PodDisruptionBudget
	HoldWorkloadUnknown  Hold = "WorkloadUnknown"  // its replicas could not be read
	HoldNodeInFlight     Hold = "NodeInFlight"     // another eviction on the node
	HoldRate             Hold = "Rate"             // evictions per minute in the cluster
	HoldLoop             Hold = "Loop"             // the replacement came back to a node that violates
	HoldRefused          Hold = "Refused"          // by the eviction API, until the next attempt
)

// Config bounds evictions.
type Config struct {
	// Enforce is false in dry run.
	Enforce bool
	// EnforceIgnored treats requiredDuringSchedulingIgnoredDuringExecution like the annotation.
	EnforceIgnored bool
	// EvictBare evicts pods without a controller.
	EvictBare bool
	// EvictUnplaceable evicts pods that fit no other node.
	EvictUnplaceable bool
	// Debounce is how long a pod violates before it is evicted.
	Debounce time.Duration
	// StormPercentage of the nodes, rounded down, may have pods that violate; at least one node may.
	StormPercentage int
	// StormConfirmed is the id of a storm that a person has confirmed.
	StormConfirmed string
	// PerMinute bounds the accepted evictions in the cluster.
	PerMinute int
	// ProgressTimeout is when a workload that does not become ready is reported.
	ProgressTimeout time.Duration
}

// DefaultConfig returns the configuration of a controller that names nothing: dry run.
func DefaultConfig() Config {
	return Config{
		Debounce: 30 * time.Second, StormPercentage: 20, PerMinute: 20, ProgressTimeout: 10 * time.Minute,
	}
}
