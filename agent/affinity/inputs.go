package affinity

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Inputs are what was observed.
type Inputs struct {
	// Violating are the pods that are bound to a node and whose requirement it does not match, in any order.
	Violating []Pod
	// Nodes are all nodes.
	Nodes []Node
	// Workloads are those of the pods in Violating, by [Pod.Workload]. One that is missing could not be read.
	Workloads map[string]Workload
	// Present are the pods of [State.Flights] that are in the API, whether they violate or not.
	Present map[types.UID]bool
	// Outcomes are those of evictions that have ended.
	Outcomes []Outcome
	Config   Config
}

// Pod is a pod that violates.
type Pod struct {
	PodKey
	Node string
	// Since is when the violation began, zero if the caller does not know more than Step, which then takes the time at
	// which it learned of it. A later one than before is another violation, with a debounce of its own.
	Since   time.Time
	Created time.Time
	// Bound is when it was bound to its node, the transition of its condition PodScheduled. Created is used if it is
	// zero: a replacement that was Pending for longer than a minute is then not recognized as a loop.
	Bound time.Time
	// AtBinding says that the pod violated when it was first seen on its node, right after its binding. Bound says less:
	// it is of another clock.
	AtBinding bool
	// Own says that the violation began with a change of the pod, its binding or its annotation, and not with one of the
	// node. It is set with AtBinding, too.
	Own bool
	// Requirement is what the pod requires of a node, and Verdict the comparison with its own.
	Requirement *Requirement
	Verdict     Verdict
	Tolerations []corev1.Toleration
	// Workload identifies the controller that replaces the pod: its kind, namespace, name and UID. It is empty for a
	// pod without one. Pods of one Deployment have one Workload, also from two ReplicaSets.
	Workload string
	// GenerateName is the begin of the name of a pod whose name was generated. Without a Workload it identifies what
	// makes such pods.
	GenerateName string
	// What is never evicted.
	Mirror, DaemonSet, Completed, Terminating bool
	// EvictBare is the annotation of that name.
	EvictBare bool
}

// Node is a node.
type Node struct {
	// Object has name, UID, labels, taints and unschedulable; the rest may be missing.
	Object *corev1.Node
	Ready  bool
	// Stale says that its Lease is not renewed, or could not be read.
	Stale bool
	// Fenced says that it has a fence that has not ended, or its quarantine taint.
	Fenced bool
	// ShuttingDown says that it shuts down, or has a mark of another program that drains it.
	ShuttingDown bool
}

// Workload is what is known of the replicas of a workload.
type Workload struct {
	// Desired and Ready count replicas. Ready ones are bound, Ready and not terminating.
	Desired, Ready int
	// Budget says that a PodDisruptionBudget selects its pods.
	Budget bool
}

// OutcomeKind is how an eviction ended.
type OutcomeKind string

// The outcomes. It is a label of a metric.
const (
	Accepted     OutcomeKind = "accepted"      // 201
	Gone         OutcomeKind = "gone"          // 404, or 409: another UID
	Changed      OutcomeKind = "changed"       // not sent: pod or node differ from what was decided on
	NotRenewed   OutcomeKind = "not-renewed"   // not sent: the node's Lease is not renewed
	Budgeted     OutcomeKind = "budget"        // 429 of a PodDisruptionBudget
	Throttled    OutcomeKind = "throttled"     // 429 of the API server
	ManyBudgets  OutcomeKind = "many-budgets"  // 500: more than one PodDisruptionBudget
	Forbidden    OutcomeKind = "forbidden"     // 403
	RequestError OutcomeKind = "request-error" // no answer, or another error
)

// Outcome is how an eviction ended.
type Outcome struct {
	ID      string
	Pod     types.UID
	Kind    OutcomeKind
	Message string
	// RetryAfter is the least time to the next attempt that the API server asked for.
	RetryAfter time.Duration
	// At is when it ended.
	At time.Time
}

// Orders are what the controller does.
type Orders struct {
	// Evict are the evictions to be sent, in order.
	Evict []Eviction
	// Events are reported at the pods and in the log.
	Events []Event
	// Wake is when Step must be called again at the latest; zero if nothing is due.
	Wake time.Time
}

// Eviction is one request to the eviction API. Pod and Node are read again just before it is sent.
type Eviction struct {
	ID  string
	Pod Pod
	// Since is when the violation was observed first.
	Since time.Time
}

// Event is reported at a pod.
type Event struct {
	Pod             PodKey
	Warning         bool
	Reason, Message string
}
