package machine

import (
	"errors"
	"fmt"
	"strings"

	"github.com/evictd/evictd/tests/vm/protocol"
)

// The kinds of an *Error of a machine.
var (
	// ErrHung: the guest sends no events any more, or did not boot in time.
	ErrHung = errors.New("the machine hangs")
	// ErrPanicked: the kernel panicked.
	ErrPanicked = errors.New("the kernel panicked")
	// ErrDied: the machine ended before Done, or sent an invalid event.
	ErrDied = errors.New("the machine died")
)

// The kinds of an *Error of a command. The machine goes on.
var (
	ErrKernelOOM = errors.New("the kernel's OOM killer killed a process")
	ErrDiskFull  = errors.New("the disk of the machine is full")
	ErrTrouble   = errors.New("kernel problem")
	ErrTimeout   = errors.New("timed out")
	ErrExit      = errors.New("failed")
)

// Error is the failure of a machine or a command, with the end of the console.
type Error struct {
	// Kind is one of the errors above.
	Kind error
	// Text is the message of the kernel or the runner, or the time that was waited.
	Text string
	// Console are the last lines of the console, for the failure of a machine.
	Console []string
	// QEMU is the output of QEMU itself.
	QEMU string
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Kind.Error())
	if e.Text != "" {
		b.WriteString(": " + e.Text)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Kind }

// Detail returns the error with the console below it.
func (e *Error) Detail() string {
	var b strings.Builder
	b.WriteString(e.Error() + "\n")
	if e.QEMU != "" {
		fmt.Fprintf(&b, "  output of QEMU: %s\n", strings.TrimSpace(e.QEMU))
	}
	if len(e.Console) == 0 {
		b.WriteString("  the console is empty\n")
	} else {
		fmt.Fprintf(&b, "  the last %d lines on the console:\n", len(e.Console))
	}
	for _, line := range e.Console {
		b.WriteString("  | " + line + "\n")
	}
	return b.String()
}

// ofEnd returns the error of a command by its End event, nil for success.
func ofEnd(e protocol.Event) error {
	switch {
	case e.Trouble == protocol.KernelOOM:
		return &Error{Kind: ErrKernelOOM, Text: e.Text}
	case e.Trouble == protocol.DiskFull:
		return &Error{Kind: ErrDiskFull, Text: e.Text}
	case e.Trouble != "":
		return &Error{Kind: ErrTrouble, Text: string(e.Trouble) + ": " + e.Text}
	case e.TimedOut:
		return &Error{Kind: ErrTimeout, Text: fmt.Sprintf("after %v", e.Duration)}
	case e.Text != "":
		return &Error{Kind: ErrExit, Text: e.Text}
	case e.ExitCode != 0:
		return &Error{Kind: ErrExit, Text: fmt.Sprintf("exit code %d", e.ExitCode)}
	}
	return nil
}
