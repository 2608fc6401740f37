package machine

import (
	"errors"
	"fmt"
	"strings"

	"github.com/evictd/evictd/tests/vm/protocol"
)

// What may become of a machine. Each is the Kind of an *Error.
var (
	// ErrHung is a machine that says nothing any more, or never said that it has booted.
	ErrHung = errors.New("the machine hangs")
	// ErrPanicked is a kernel that gave up.
	ErrPanicked = errors.New("the kernel panicked")
	// ErrDied is a machine that ended before it was done, or speaks nonsense.
	ErrDied = errors.New("the machine died")
)

// What may become of a command of a machine that goes on. Each is the Kind of an *Error as well.
var (
	ErrKernelOOM = errors.New("the kernel had no memory left and killed")
	ErrDiskFull  = errors.New("the disk of the machine is full")
	ErrTrouble   = errors.New("the kernel is in trouble")
	ErrTimeout   = errors.New("timed out")
	ErrExit      = errors.New("failed")
)

// Error says how a machine or a command ended, and what there was to see.
type Error struct {
	// Kind is one of the errors above.
	Kind error
	// Text is what the kernel or the runner said about it, or how long was waited.
	Text string
	// Console are the last lines of the machine's console, if the machine has ended by this.
	Console []string
	// QEMU is what QEMU itself said.
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

// Detail is the error with the console below it.
func (e *Error) Detail() string {
	var b strings.Builder
	b.WriteString(e.Error() + "\n")
	if e.QEMU != "" {
		fmt.Fprintf(&b, "  QEMU said: %s\n", strings.TrimSpace(e.QEMU))
	}
	if len(e.Console) == 0 {
		b.WriteString("  nothing on the console\n")
	} else {
		fmt.Fprintf(&b, "  the last %d lines on the console:\n", len(e.Console))
	}
	for _, line := range e.Console {
		b.WriteString("  | " + line + "\n")
	}
	return b.String()
}

// ofEnd returns what was wrong with a command by its last event, nil if nothing was.
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
