package machine

import (
	"fmt"
	"strings"
	"time"

	"github.com/evictd/evictd/tests/vm/protocol"
)

// Limits bound the waits for a machine, by the host's clock. They are long, because two emulated machines share two
// processors with other load.
type Limits struct {
	// Boot is the maximum time until the runner sends Hello.
	Boot time.Duration
	// Silence is the maximum time without an event after that: the runner sends a Beat each second.
	Silence time.Duration
}

// DefaultLimits are the limits of machines whose Config has none.
var DefaultLimits = Limits{Boot: 5 * time.Minute, Silence: time.Minute}

func (l Limits) orDefault() Limits {
	if l.Boot == 0 {
		l.Boot = DefaultLimits.Boot
	}
	if l.Silence == 0 {
		l.Silence = DefaultLimits.Silence
	}
	return l
}

// Report is the result of a machine.
type Report struct {
	// Release is the kernel's release, "" if the machine has not booted.
	Release string
	// Boot is the time from the start to Hello.
	Boot time.Duration
	// Results are of the commands that were begun.
	Results []Result
	// Troubles are the Kernel events, in order, including those that fail no command.
	Troubles []protocol.Event
}

// Result is the result of a command.
type Result struct {
	Command  string
	Duration time.Duration
	// Output has the printed lines.
	Output []string
	// Err is nil for success, or an *Error.
	Err error
}

// watch is the state of a machine, derived from its console and events. It has no clock: callers pass now.
type watch struct {
	limits  Limits
	budget  time.Duration
	started time.Time
	// lastEvent is the time of the last event, zero before the first; panicked is the time of a panic on the console.
	lastEvent, panicked time.Time
	panic               string
	tail                tail
	report              Report
	running             bool // the last result's command is running
	leaving             bool // that command has succeeded, and the machine powers itself off
	done                bool
}

func newWatch(now time.Time, limits Limits, budget time.Duration) *watch {
	return &watch{limits: limits, budget: budget, started: now}
}

// console processes a line of the console.
func (w *watch) console(now time.Time, line string) {
	w.tail.add(line)
	switch t := protocol.Classify(line); {
	case t == protocol.Panic && w.panicked.IsZero():
		w.panicked = now
		if w.panic != "" {
			w.panic += "; "
		}
		w.panic += message(line)
	case t == protocol.Oops && w.panic == "" && w.panicked.IsZero():
		w.panic = message(line) // more specific than the panic that follows (oops=panic)
	}
}

// event processes an event. It returns an error for one that is invalid in the current state.
func (w *watch) event(now time.Time, e protocol.Event) error {
	invalid := func(why string) error {
		return &Error{Kind: ErrDied, Text: fmt.Sprintf("its runner sent %s of %q %s", e.Kind, e.Command, why)}
	}
	if w.lastEvent.IsZero() && e.Kind != protocol.Hello {
		return invalid("before hello")
	}
	w.lastEvent = now
	results := w.report.Results
	switch e.Kind {
	case protocol.Hello:
		w.report.Release, w.report.Boot = e.Text, now.Sub(w.started)
	case protocol.Begin:
		if w.running {
			return invalid("while " + results[len(results)-1].Command + " runs")
		}
		w.running = true
		w.report.Results = append(results, Result{Command: e.Command})
	case protocol.Line, protocol.End, protocol.Leave:
		if !w.running || results[len(results)-1].Command != e.Command {
			return invalid("that does not run")
		}
		last := &results[len(results)-1]
		if e.Kind == protocol.Line {
			last.Output = append(last.Output, e.Text)
			break
		}
		last.Duration = e.Duration
		if w.leaving = e.Kind == protocol.Leave; w.leaving {
			break
		}
		last.Err = ofEnd(e)
		w.running = false
	case protocol.Kernel:
		w.report.Troubles = append(w.report.Troubles, e)
	case protocol.Done:
		if w.running {
			return invalid("while a command runs")
		}
		w.done = true
	}
	return nil
}

// panicDelay is the time for the console of a kernel that panics to print everything.
const panicDelay = 5 * time.Second

// check returns an error if the machine has panicked, hangs or exceeds its budget.
func (w *watch) check(now time.Time) error {
	switch {
	case !w.panicked.IsZero() && now.Sub(w.panicked) > panicDelay:
		return &Error{Kind: ErrPanicked, Text: w.panic}
	case !w.panicked.IsZero():
		return nil
	case w.lastEvent.IsZero() && now.Sub(w.started) > w.limits.Boot:
		return &Error{Kind: ErrHung, Text: fmt.Sprintf("not booted after %v", w.limits.Boot)}
	case !w.lastEvent.IsZero() && now.Sub(w.lastEvent) > w.limits.Silence:
		return &Error{Kind: ErrHung, Text: fmt.Sprintf("silent for %v", w.limits.Silence)}
	case w.budget > 0 && now.Sub(w.started) > w.limits.Boot+w.budget:
		return &Error{Kind: ErrTimeout, Text: fmt.Sprintf("not done after %v", w.limits.Boot+w.budget)}
	}
	return nil
}

// ended returns the error of a machine whose QEMU has exited.
func (w *watch) ended(err error) error {
	switch {
	case !w.panicked.IsZero():
		return &Error{Kind: ErrPanicked, Text: w.panic}
	case err != nil:
		return &Error{Kind: ErrDied, Text: "QEMU: " + err.Error()}
	case w.leaving:
		return nil
	}
	return &Error{Kind: ErrDied, Text: "powered off before it was done"}
}

// finish sets the machine's error as that of a running command.
func (w *watch) finish(err error) {
	if w.running && err != nil {
		w.report.Results[len(w.report.Results)-1].Err = err
	}
}

// message returns a line of the console without its timestamp.
func message(line string) string {
	if _, rest, ok := strings.Cut(line, "] "); ok && strings.HasPrefix(line, "[") {
		return rest
	}
	return line
}

func trimEnd(line string) string { return strings.TrimRight(line, "\r\n") }

// tailLength is the number of console lines in an error.
const tailLength = 40

// tail has the last lines.
type tail struct{ kept []string }

func (t *tail) add(line string) {
	if len(t.kept) == tailLength {
		t.kept = t.kept[1:]
	}
	t.kept = append(t.kept, line)
}

func (t *tail) lines() []string { return append([]string(nil), t.kept...) }
