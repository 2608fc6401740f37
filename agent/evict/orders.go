package evict

import (
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Inputs is what one step decides on.
type Inputs struct {
	Policy       *Policy
	Observations signal.Observations
	// Pods are those that run, in any order. Step does not keep them.
	Pods []Pod
	// Unlisted tells that it is not known yet what runs, so that Pods is empty
	// and nobody has left.
	Unlisted bool
	// Outcomes are those of orders since the step before.
	Outcomes []Outcome
	// Fired are the evictions that were carried out since the step before on the
	// verdict of a Table, in their order.
	Fired []Fired
	// Contention lists where stalls on memory go on.
	Contention []Contention
	// Measured tells that the pods' usage is read from what runs, so that a
	// victim's progress can be told from it. Without, a victim is waited for
	// and then believed to have returned everything.
	Measured bool
	// Unexplained is how much memory, in bytes, all pods hold that none accounts
	// for and that is nothing new.
	Unexplained int64
	// DryRun makes a victim count as gone at once, and be named once in an
	// episode.
	DryRun bool
	// ReclaimStalled tells that the kernel's reclaim makes no headway, so that
	// a crossing that file cache brought is acted upon at once.
	ReclaimStalled bool
	// PodsReclaimStalled is ReclaimStalled for the limit of all pods together: it
	// concerns allocatableMemory.available alone.
	PodsReclaimStalled bool
	// Answered lists the hard memory thresholds whose crossing a lane has answered by
	// its own readings since the step before.
	Answered []Key
	// Drift is how many bytes per-CPU counters may hold back; it matters where
	// Measured is set.
	Drift int64
	// NothingReclaimed lists the thresholds for which the last node-level reclaims
	// brought nothing, until another attempt is due. Until then a reclaim is ordered for
	// them only where a pod would be evicted after it.
	NothingReclaimed []Key
}

// Orders is what a step wants done, and what it found.
type Orders struct {
	// Evict lists the pods to evict, in this order.
	Evict []Order
	// Adopted are the orders of the Fired, in their order: they have been carried
	// out and are only to be followed and told.
	Adopted []Order
	// Harden lists, by UID, pods whose grace period ends now.
	Harden []string
	// Reclaim asks for a node-level reclaim; nil asks for none. Its Outcome
	// must come with a later step.
	Reclaim *Reclaim

	// Met lists the signals with a threshold met, in order; Conditions the
	// published ones, sorted.
	Met        []signal.Signal
	Conditions []signal.Condition
	// Waiting lists the hard memory thresholds that file cache brought below and
	// that wait for that.
	Waiting []Key
	// Acted is the threshold acted upon, nil where none was.
	Acted *Threshold
	// Ranking and Exempt are filled where a pod had to be chosen.
	Ranking []Ranked
	Exempt  []Exempt
	// Futile lists the signals for which evicting does not help enough.
	Futile []Futility
	// Unreadable lists the signals that could not be read.
	Unreadable []signal.Signal
	// Revived lists, by UID, evicted pods that came back.
	Revived []string
	// Stuck lists, by UID, victims that became stuck in this step.
	Stuck []string
}

// Order is the eviction of one pod.
type Order struct {
	UID string `json:"uid"`
	Pod string `json:"pod"`
	// Cause is the signal's name, or the limit that the pod exceeded.
	Cause string        `json:"cause"`
	Hard  bool          `json:"hard"`
	Grace time.Duration `json:"grace"`
	// Threshold, Available and Deficit are what was decided on, in the
	// signal's unit; 0 for a pod's own limits.
	Threshold int64 `json:"threshold"`
	Available int64 `json:"available"`
	Deficit   int64 `json:"deficit"`
	// Expected is what the eviction is expected to bring back, in that unit.
	Expected    int64             `json:"expected"`
	Futile      bool              `json:"futile,omitempty"`
	Reason      string            `json:"reason"`
	Message     string            `json:"message"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// ReclaimKind is what a node-level reclaim removes.
type ReclaimKind string

// The kinds.
const (
	ReclaimContainers ReclaimKind = "containers" // dead containers and sandboxes
	ReclaimImages     ReclaimKind = "images"     // unused images
	ReclaimMemory     ReclaimKind = "memory"     // cold memory of pods; nobody orders it, see Cold
)

// Reclaim is an order to free a resource of the node without evicting a pod.
type Reclaim struct {
	Kind    ReclaimKind   `json:"kind"`
	Signal  signal.Signal `json:"signal"`
	Deficit int64         `json:"deficit"`
}

// Outcome tells what became of an order: of the eviction of a pod, or of the
// reclaim where UID is empty.
type Outcome struct {
	UID string
	// Err is set where the order could not be carried out.
	Err error
}

// Futility tells that a signal stays low whatever is evicted.
type Futility struct {
	Signal   signal.Signal `json:"signal"`
	Deficit  int64         `json:"deficit"`
	Coverage int64         `json:"coverage"` // what all eligible pods would bring
	Until    time.Time     `json:"until"`    // no further victim before
}
