package evict

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// ReclaimReport is the result of one node-level reclaim. Its JSON is that of the state
// file. The control socket has its own form, with times in seconds.
type ReclaimReport struct {
	At     time.Time     `json:"at"` // when it began
	Kind   ReclaimKind   `json:"kind"`
	Reason string        `json:"reason"`
	Signal signal.Signal `json:"signal"` // of the image filesystem for image GC by usage or age
	DryRun bool          `json:"dryRun,omitempty"`
	// Removed lists what was removed, in dry run what would have been. For memory it is
	// the pod. RemovedMore is the number of further objects whose names are not kept; see
	// [ReclaimReport.Bounded].
	Removed     []string `json:"removed"`
	RemovedMore int      `json:"removedMore,omitempty"`
	// Deficit is the signal's deficit when the reclaim began, in its unit; 0 for image
	// GC by age and for memory.
	Deficit int64 `json:"deficit,omitempty"`
	// Freed is the increase of the filesystem's available amount in the signal's unit,
	// including what other processes wrote or removed during the reclaim. For memory it
	// is the decrease of the pod's usage.
	Freed    int64         `json:"freed"`
	Duration time.Duration `json:"tookNanoseconds"`
	// Note is why nothing was attempted, or that this is the rest of an earlier reclaim.
	// Error is the last error.
	Note  string `json:"note,omitempty"`
	Error string `json:"error,omitempty"`
}

// maxRemovedNames is how many names a bounded report has. A reclaim can remove thousands of
// containers, and reports stay in memory, in the state file and in the control socket's
// response.
const maxRemovedNames = 50

// Bounded returns the report with at most maxRemovedNames names.
func (r ReclaimReport) Bounded() ReclaimReport {
	if more := len(r.Removed) - maxRemovedNames; more > 0 {
		r.Removed = slices.Clone(r.Removed[:maxRemovedNames]) // so that the rest can be freed
		r.RemovedMore += more
	}
	return r
}

// ImageUse is when an image was first seen and last in use. It survives restarts.
type ImageUse struct {
	ID    string    `json:"id"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last,omitzero"` // zero: never
}
