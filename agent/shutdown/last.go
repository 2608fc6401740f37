package shutdown

import "time"

// Last is what became of the node's last shutdown, as far as that can be told.
type Last struct {
	// Clean is nil where it can't.
	Clean  *bool      `json:"clean"`
	Reason LastReason `json:"reason"`
	// Detail says more, for people: a trace, a time.
	Detail string `json:"detail,omitempty"`
}

// LastReason says what is known of a last shutdown.
type LastReason string

// The reasons.
const (
	// LastUnknown: there is nothing of an earlier boot to judge by.
	LastUnknown LastReason = "unknown"
	// LastNotRunning: evictd had been stopped before the node ended.
	LastNotRunning LastReason = "not-running"
	// LastShutdown: the node went down in order, and evictd with it. Clean.
	LastShutdown LastReason = "shutdown"
	// LastInterrupted: it was going down in order, and did not come to the end of
	// it. Not clean, and so are these:
	LastInterrupted LastReason = "interrupted"
	// LastPanic: the kernel has left the trace of a panic.
	LastPanic LastReason = "panic"
	// LastLost: it ended without a word: power, a reset, a hang, kexec or a
	// forced reboot.
	LastLost LastReason = "lost"
)

// Before is what the last run of the boot before left behind.
type Before struct {
	At time.Time // when it wrote that
	// GoingDown tells that the node was on its way down, Stopped that the run
	// was asked to end and did.
	GoingDown, Stopped bool
}

// Judge concludes what became of the boot before, of which before is nil where
// nothing is known, and trace names what a panic has left since then; empty is
// nothing. A trace alone may be of any boot.
func Judge(before *Before, trace string) Last {
	clean, unclean := true, false
	switch {
	case before == nil:
		return Last{Reason: LastUnknown, Detail: trace}
	case trace != "":
		return Last{Clean: &unclean, Reason: LastPanic, Detail: trace}
	case before.GoingDown && before.Stopped:
		return Last{Clean: &clean, Reason: LastShutdown, Detail: last(before)}
	case before.GoingDown:
		return Last{Clean: &unclean, Reason: LastInterrupted, Detail: last(before)}
	case before.Stopped:
		return Last{Reason: LastNotRunning, Detail: last(before)}
	}
	return Last{Clean: &unclean, Reason: LastLost, Detail: last(before)}
}

func last(b *Before) string { return "last heard of at " + b.At.UTC().Format(time.RFC3339) }
