package fencing

import (
	"fmt"
	"time"
)

// Kind is what happened.
type Kind string

// The kinds of events.
const (
	Lost              Kind = "node lost"
	FenceCreated      Kind = "NodeFence created"
	FenceChanged      Kind = "NodeFence"
	FenceDeleted      Kind = "NodeFence deleted"
	Quarantined       Kind = "quarantined"
	Unquarantined     Kind = "quarantine removed"
	OutOfService      Kind = "out-of-service taint"
	InService         Kind = "out-of-service taint removed"
	CommandOff        Kind = "BMC: off"
	CommandOn         Kind = "BMC: on"
	Booted            Kind = "booted"
	PodCreated        Kind = "pod created"
	PodBound          Kind = "pod bound"
	PodDeleted        Kind = "pod deleted"
	PodRemoved        Kind = "pod removed"
	PodRuns           Kind = "pod runs"
	AttachmentCreated Kind = "VolumeAttachment created"
	AttachmentDeleted Kind = "VolumeAttachment deleted"
	AttachmentGone    Kind = "VolumeAttachment gone"
)

// Event is something that happened.
type Event struct {
	// At is when it began: when the API server received the request, or when the command took effect.
	At time.Time
	// Done is when it had ended, if it was a request.
	Done time.Time
	Kind Kind
	// Object is the name of the object or the machine, Node the node that it belongs to, if that is known.
	Object, Node string
	// By is who did it: the name of a component, or of a user.
	By string
	// Detail is for people, except that of FenceChanged, which is step, status and phase, separated by a slash.
	Detail string
	// Ignored is set if a BMC did not carry out the command.
	Ignored bool
}

// String returns the event without its time.
func (e Event) String() string {
	s := fmt.Sprintf("%-28s %s", e.Kind, e.Object)
	if e.Node != "" && e.Node != e.Object {
		s += " on " + e.Node
	}
	if e.By != "" {
		s += ", by " + e.By
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Ignored {
		s += " (ignored)"
	}
	return s
}
