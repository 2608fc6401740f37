package affinity

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// State is what Step remembers. Its zero value is that of a process that has just started. It is not saved.
type State struct {
	// Began is the time of the first step.
	Began time.Time
	// Violations are the pods that violate now, by UID.
	Violations map[types.UID]Violation
	// Workloads are those with an eviction in flight or a back-off, by [Pod.Workload].
	Workloads map[string]Backoff
	// Evicted are the times of the last accepted evictions, oldest first, as far as a rate needs them.
	Evicted []time.Time
	// Storm is the id of the storm that is going on, empty if there is none. Of several it is that of the nodes, else
	// that of the first key.
	Storm string
	// Storms are all that are going on, by the label key that no node has; that of too many nodes has the empty key.
	Storms map[string]Storm
	// PausedUntil is when evictions go on after the API server throttled one.
	PausedUntil time.Time
	// Events counts those of the minute that began at EventsSince.
	EventsSince time.Time
	Events      int
}

// Storm is a number of violations with probably one cause, which is not in the pods.
type Storm struct {
	ID    string
	Since time.Time
	// Reported is when it was reported last.
	Reported time.Time
}

// Violation is a pod that violates on a node, and how far its eviction is.
type Violation struct {
	Pod  PodKey
	Node string
	// Since is when the violation was observed first. Steady is when the debounce began: later than Since if the node
	// was not Ready, fenced or drained in between, or an eviction found that pod or node had changed.
	Since, Steady time.Time
	// TerminatingSince is when the pod was first seen terminating.
	TerminatingSince time.Time
	// Held is why the pod is not evicted now; empty if its eviction is in flight.
	Held Hold
	// Next is when the eviction is tried again after a refusal.
	Next time.Time
	// Refusals counts those in a row, and the evictions that were not sent because pod or node had changed. Refused and
	// RefusedMessage are the last one.
	Refusals       int
	Refused        OutcomeKind
	RefusedMessage string
	// InFlight is the id of the eviction that was ordered and has no outcome.
	InFlight string
	// Reported is when a hold was reported last, and ReportedHold which.
	Reported     time.Time
	ReportedHold Hold
	// Announced says that the violation was reported, and WouldEvict that its eviction was in dry run.
	Announced, WouldEvict bool
	// Compared is when the requirement was compared with the other nodes last.
	Compared time.Time
}

// Backoff is what is remembered of a workload between two evictions.
type Backoff struct {
	// InFlight is the pod whose eviction has no outcome, or was accepted and is not gone.
	InFlight types.UID
	// ID is that of the eviction in flight, OrderedAt when it was ordered, and Accepted whether it was accepted.
	ID        string
	OrderedAt time.Time
	Accepted  bool
	// Pod is that of the last eviction.
	Pod PodKey
	// DoubtedAt is when the request of the last eviction failed, which may have been carried out.
	DoubtedAt time.Time
	// Node is the node of the last eviction, and EvictedAt when the last one was accepted.
	Node      string
	EvictedAt time.Time
	// Binding is the back-off that the pod in flight has in common with others, if it violated at its binding.
	Binding string
	// Loops counts replacements in a row that were bound to a node that violated already. LoopOf is the EvictedAt of
	// the last eviction that was counted.
	Loops  int
	LoopOf time.Time
	// Again are the times of the accepted evictions of replacements, oldest first, as far as oftenWindow needs them:
	// of pods made after Began, the first eviction. Replaced says that the pod in flight is one.
	Again    []time.Time
	Began    time.Time
	Replaced bool
	// Often counts the back-offs in a row because of too many of them, and OftenUntil is the end of the last one.
	Often      int
	OftenUntil time.Time
	// Until is when the next eviction may follow a loop.
	Until time.Time
	// RefusedUntil is when the next eviction may follow a refusal, and Refusals counts those in a row.
	RefusedUntil time.Time
	Refusals     int
	// NotReadySince is since when a pod is held because replicas are not ready, or could not be read.
	NotReadySince time.Time
	// NotReadyReported and LoopReported are when these were reported last.
	NotReadyReported, LoopReported time.Time
	// Seen is when a pod of the workload violated last.
	Seen time.Time
}

// Flights returns the pods of which the next step needs to know whether they are still there: see [Inputs.Present].
func (s State) Flights() []PodKey {
	var pods []PodKey
	for _, b := range s.Workloads {
		if b.Pod.UID != "" && (b.InFlight == b.Pod.UID || !b.DoubtedAt.IsZero()) {
			pods = append(pods, b.Pod)
		}
	}
	return pods
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
	HoldNotCompared      Hold = "NotCompared"      // with the other nodes in this step, because of their number
	HoldNoNodeFits       Hold = "NoNodeFits"       // no other node matches
	HoldWorkloadInFlight Hold = "WorkloadInFlight" // another eviction of the workload
	HoldWorkloadNotReady Hold = "WorkloadNotReady" // a replica is missing or not ready, and there is no PodDisruptionBudget
	HoldWorkloadUnknown  Hold = "WorkloadUnknown"  // its replicas could not be read
	HoldNodeInFlight     Hold = "NodeInFlight"     // another eviction on the node
	HoldRate             Hold = "Rate"             // evictions per minute in the cluster
	HoldLoop             Hold = "Loop"             // the replacement came back to a node that violates
	HoldRefused          Hold = "Refused"          // by the eviction API, until the next attempt
	HoldDryRun           Hold = "DryRun"           // --affinity=observe: it would be evicted
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
	// StormConfirmed is the id of a storm that a person has confirmed. Several are separated by commas.
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
