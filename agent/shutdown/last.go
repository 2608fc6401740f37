package shutdown

import "time"

// LastBoot is how the node's previous boot ended, as far as known.
type LastBoot struct {
	// Clean is nil if unknown.
	Clean  *bool         `json:"clean"`
	Reason BootEndReason `json:"reason"`
	// Detail is for people: the path of a panic trace, or a time.
	Detail string `json:"detail,omitempty"`
}

// BootEndReason is the reason for the value of Clean.
type BootEndReason string

// The reasons.
const (
	// LastUnknown: no state of an earlier boot exists.
	LastUnknown BootEndReason = "unknown"
	// LastNotRunning: evictd was stopped before the node ended.
	LastNotRunning BootEndReason = "not-running"
	// LastShutdown: the node shut down in order. Clean.
	LastShutdown BootEndReason = "shutdown"
	// LastInterrupted: the node was shutting down in order and did not complete it.
	// Not clean, like the following.
	LastInterrupted BootEndReason = "interrupted"
	// LastPanic: the kernel has left the trace of a panic.
	LastPanic BootEndReason = "panic"
	// LastLost: the node ended without notice: power loss, reset, hang, kexec or a
	// forced reboot.
	LastLost BootEndReason = "lost"
)

// PreviousRun is what the last run of the previous boot saved.
type PreviousRun struct {
	At time.Time // when it was saved
	// GoingDown reports that the node was shutting down. Stopped reports that the
	// run was asked to end and did.
	GoingDown, Stopped bool
}

// ClassifyLastBoot determines how the previous boot ended. previous is nil if
// nothing is known of it. trace is the path of a panic trace that appeared since
// previous.At; empty for none. Without previous, a trace may be from any boot.
func ClassifyLastBoot(previous *PreviousRun, trace string) LastBoot {
	clean, unclean := true, false
	switch {
	case previous == nil:
		return LastBoot{Reason: LastUnknown, Detail: trace}
	case trace != "":
		return LastBoot{Clean: &unclean, Reason: LastPanic, Detail: trace}
	case previous.GoingDown && previous.Stopped:
		return LastBoot{Clean: &clean, Reason: LastShutdown, Detail: lastSaved(previous)}
	case previous.GoingDown:
		return LastBoot{Clean: &unclean, Reason: LastInterrupted, Detail: lastSaved(previous)}
	case previous.Stopped:
		return LastBoot{Reason: LastNotRunning, Detail: lastSaved(previous)}
	}
	return LastBoot{Clean: &unclean, Reason: LastLost, Detail: lastSaved(previous)}
}

func lastSaved(r *PreviousRun) string {
	return "last state saved at " + r.At.UTC().Format(time.RFC3339)
}
