package shutdown

import "time"

// Last is how the node's previous boot ended, as far as known.
type Last struct {
	// Clean is nil if unknown.
	Clean  *bool      `json:"clean"`
	Reason LastReason `json:"reason"`
	// Detail is for people: the path of a panic trace, or a time.
	Detail string `json:"detail,omitempty"`
}

// LastReason is the reason for the value of Clean.
type LastReason string

// The reasons.
const (
	// LastUnknown: no state of an earlier boot exists.
	LastUnknown LastReason = "unknown"
	// LastNotRunning: evictd was stopped before the node ended.
	LastNotRunning LastReason = "not-running"
	// LastShutdown: the node shut down in order. Clean.
	LastShutdown LastReason = "shutdown"
	// LastInterrupted: the node was shutting down in order and did not complete it.
	// Not clean, like the following.
	LastInterrupted LastReason = "interrupted"
	// LastPanic: the kernel has left the trace of a panic.
	LastPanic LastReason = "panic"
	// LastLost: the node ended without notice: power loss, reset, hang, kexec or a
	// forced reboot.
	LastLost LastReason = "lost"
)

// Before is what the last run of the previous boot saved.
type Before struct {
	At time.Time // when it was saved
	// GoingDown reports that the node was shutting down. Stopped reports that the
	// run was asked to end and did.
	GoingDown, Stopped bool
}

// Judge determines how the previous boot ended. before is nil if nothing is known
// of it. trace is the path of a panic trace that appeared since before.At; empty
// for none. Without before, a trace may be from any boot.
func Judge(before *Before, trace string) Last {
	clean, unclean := true, false
	switch {
	case before == nil:
		return Last{Reason: LastUnknown, Detail: trace}
	case trace != "":
		return Last{Clean: &unclean, Reason: LastPanic, Detail: trace}
	case before.GoingDown && before.Stopped:
		return Last{Clean: &clean, Reason: LastShutdown, Detail: lastSaved(before)}
	case before.GoingDown:
		return Last{Clean: &unclean, Reason: LastInterrupted, Detail: lastSaved(before)}
	case before.Stopped:
		return Last{Reason: LastNotRunning, Detail: lastSaved(before)}
	}
	return Last{Clean: &unclean, Reason: LastLost, Detail: lastSaved(before)}
}

func lastSaved(b *Before) string { return "last state saved at " + b.At.UTC().Format(time.RFC3339) }
