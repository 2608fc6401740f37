package evict

import (
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// ReclaimReport says what a node-level reclaim did. Its JSON is that of the state file;
// the control socket has a form of its own, with times in seconds.
type ReclaimReport struct {
	At     time.Time     `json:"at"`
	Kind   ReclaimKind   `json:"kind"`
	Reason string        `json:"reason"`
	Signal signal.Signal `json:"signal"` // imagefs where it was for its usage or for age
	DryRun bool          `json:"dryRun,omitempty"`
	// Removed names what was removed, or would have been; the pod, of memory.
	Removed []string `json:"removed"`
	// Deficit is what the signal lacked when the reclaim began, in its unit; 0 where
	// the reclaim was for age or of memory.
	Deficit int64 `json:"deficit,omitempty"`
	// Freed is by how much more the filesystem has left than before, in the signal's
	// unit, which includes what other processes wrote or removed meanwhile; by how
	// much less the pod uses, of memory.
	Freed int64         `json:"freed"`
	Took  time.Duration `json:"tookNanoseconds"`
	// Note says why nothing was tried; Error what went wrong last.
	Note  string `json:"note,omitempty"`
	Error string `json:"error,omitempty"`
}

// ImageUse is when an image was seen first, and in use last. It survives restarts.
type ImageUse struct {
	ID    string    `json:"id"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last,omitzero"` // zero: never
}
