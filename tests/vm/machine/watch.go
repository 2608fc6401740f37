package machine

import (
	"fmt"
	"strings"
	"time"

	"github.com/evictd/evictd/tests/vm/protocol"
)

// Limits say how long to wait for a machine. All are of the host's clock, and generous: two emulated machines share
// two processors with whatever else runs.
type Limits struct {
	// Boot is the time until the runner says that it is there.
	Boot time.Duration
	// Silence is how long nothing may come after that: the runner sends something each second.
	Silence time.Duration
}

// DefaultLimits are those of machines that nothing else is said of.
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

// Report is what is known of a machine.
type Report struct {
	// Release is the kernel's, "" if the machine has not booted.
	Release string
	// Boot is the time from the start until the runner was there.
	Boot time.Duration
	// Results are of the commands that were begun.
	Results []Result
	// Troubles are what the kernel told, in order, also where it failed nothing.
	Troubles []protocol.Event
}

// Result is what became of a command.
type Result struct {
	Command  string
	Duration time.Duration
	// Output is what it printed, by lines.
	Output []string
	// Err is nil if all went well, or an *Error.
	Err error
}

// watch draws conclusions from what a machine says. It has no clock: now is given.
type watch struct {
	limits  Limits
	budget  time.Duration
	started time.Time
	// heard is when the last event came, zero before the first; panicked when the console told of a panic.
	heard, panicked time.Time
	panic           string
	tail            tail
	report          Report
	running         bool // the last result is of a command that runs
	leaving         bool // that command has ended, and the machine goes down for it
	done            bool
}

func newWatch(now time.Time, limits Limits, budget time.Duration) *watch {
	return &watch{limits: limits, budget: budget, started: now}
}

// console takes a line of the console.
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
		w.panic = message(line) // the panic that follows (oops=panic) says less
	}
}

// event takes an event. The error is of one that makes no sense where it comes.
func (w *watch) event(now time.Time, e protocol.Event) error {
	nonsense := func(why string) error {
		return &Error{Kind: ErrDied, Text: fmt.Sprintf("its runner sent %s of %q %s", e.Kind, e.Command, why)}
	}
	if w.heard.IsZero() && e.Kind != protocol.Hello {
		return nonsense("before hello")
	}
	w.heard = now
	results := w.report.Results
	switch e.Kind {
	case protocol.Hello:
		w.report.Release, w.report.Boot = e.Text, now.Sub(w.started)
	case protocol.Begin:
		if w.running {
			return nonsense("while " + results[len(results)-1].Command + " runs")
		}
		w.running = true
		w.report.Results = append(results, Result{Command: e.Command})
	case protocol.Line, protocol.End, protocol.Leave:
		if !w.running || results[len(results)-1].Command != e.Command {
			return nonsense("that does not run")
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
			return nonsense("while a command runs")
		}
		w.done = true
	}
	return nil
}

// farewell is how long the console of a kernel that panics may take to tell it all.
const farewell = 5 * time.Second

// check says whether the machine is lost.
func (w *watch) check(now time.Time) error {
	switch {
	case !w.panicked.IsZero() && now.Sub(w.panicked) > farewell:
		return &Error{Kind: ErrPanicked, Text: w.panic}
	case !w.panicked.IsZero():
		return nil
	case w.heard.IsZero() && now.Sub(w.started) > w.limits.Boot:
		return &Error{Kind: ErrHung, Text: fmt.Sprintf("not booted after %v", w.limits.Boot)}
	case !w.heard.IsZero() && now.Sub(w.heard) > w.limits.Silence:
		return &Error{Kind: ErrHung, Text: fmt.Sprintf("silent for %v", w.limits.Silence)}
	case w.budget > 0 && now.Sub(w.started) > w.limits.Boot+w.budget:
		return &Error{Kind: ErrTimeout, Text: fmt.Sprintf("not done after %v", w.limits.Boot+w.budget)}
	}
	return nil
}

// ended says what it means that QEMU is gone.
func (w *watch) ended(err error) error {
	switch {
	case !w.panicked.IsZero():
		return &Error{Kind: ErrPanicked, Text: w.panic}
	case err != nil:
		return &Error{Kind: ErrDied, Text: "QEMU: " + err.Error()}
	case w.leaving:
		return nil
	}
	return &Error{Kind: ErrDied, Text: "switched off before it was done"}
}

// finish gives a command that was running the machine's error.
func (w *watch) finish(err error) {
	if w.running && err != nil {
		w.report.Results[len(w.report.Results)-1].Err = err
	}
}

// message is a line of the console without its time.
func message(line string) string {
	if _, rest, ok := strings.Cut(line, "] "); ok && strings.HasPrefix(line, "[") {
		return rest
	}
	return line
}

func trimEnd(line string) string { return strings.TrimRight(line, "\r\n") }

// tailLength is how many lines of the console an error shows.
const tailLength = 40

// tail keeps the last lines.
type tail struct{ kept []string }

func (t *tail) add(line string) {
	if len(t.kept) == tailLength {
		t.kept = t.kept[1:]
	}
	t.kept = append(t.kept, line)
}

func (t *tail) lines() []string { return append([]string(nil), t.kept...) }
