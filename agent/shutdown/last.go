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

// ClassifyLastBoot determines how the previous boot ended. before is nil if nothing is known
// of it. trace is the path of a panic trace that appeared since before.At; empty
// for none. Without before, a trace may be from any boot.
func ClassifyLastBoot(before *PreviousRun, trace string) LastBoot {
	clean, unclean := true, false
	switch {
	case before == nil:
		return LastBoot{Reason: LastUnknown, Detail: trace}
	case trace != "":
		return LastBoot{Clean: &unclean, Reason: LastPanic, Detail: trace}
	case before.GoingDown && before.Stopped:
		return LastBoot{Clean: &clean, Reason: LastShutdown, Detail: lastSaved(before)}
	case before.GoingDown:
		return LastBoot{Clean: &unclean, Reason: LastInterrupted, Detail: lastSaved(before)}
	case before.Stopped:
		return LastBoot{Reason: LastNotRunning, Detail: lastSaved(before)}
	}
	return LastBoot{Clean: &unclean, Reason: LastLost, Detail: lastSaved(before)}
}

func lastSaved(b *PreviousRun) string {
	return "last state saved at " + b.At.UTC().Format(time.RFC3339)
}
