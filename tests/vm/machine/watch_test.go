package machine

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/tests/vm/protocol"
)

// step is an input of a watch, at a time since the start of the machine.
type step struct {
	at      time.Duration
	console string
	event   *protocol.Event
	ended   bool
	exit    error
}

func say(at time.Duration, e protocol.Event) step { return step{at: at, event: &e} }
func print(at time.Duration, line string) step    { return step{at: at, console: line} }
func check(at time.Duration) step                 { return step{at: at} }
func begin(at time.Duration, command string) step {
	return say(at, protocol.Event{Kind: protocol.Begin, Command: command})
}
func hello(at time.Duration) step {
	return say(at, protocol.Event{Kind: protocol.Hello, Text: "6.1.0-50-cloud-amd64"})
}
func beat(at time.Duration) step { return say(at, protocol.Event{Kind: protocol.Beat}) }
func end(at time.Duration, e protocol.Event) step {
	e.Kind, e.Command = protocol.End, "x"
	return say(at, e)
}
func leave(at time.Duration) step {
	return say(at, protocol.Event{Kind: protocol.Leave, Command: "x"})
}
func replay(w *watch, start time.Time, s ...step) error {
	for _, s := range s {
		now := start.Add(s.at)
		switch {
		case s.console != "":
			w.console(now, s.console)
		case s.event != nil:
			if err := w.event(now, *s.event); err != nil {
				return err
			}
		case s.ended:
			return w.ended(s.exit)
		default:
			if err := w.check(now); err != nil {
				return err
			}
		}
	}
	return nil
}

const s = time.Second

func TestWatch(t *testing.T) {
	limits := Limits{Boot: 60 * s, Silence: 10 * s}
	for _, tt := range []struct {
		name  string
		steps []step
		kind  error  // nil for none
		text  string // contained in the error
		done  bool
	}{
		{name: "success", steps: []step{print(s, "[    0.0] Linux version"), hello(15 * s), begin(16*s, "x"), beat(20 * s), check(25 * s), end(30*s, protocol.Event{}), say(31*s, protocol.Event{Kind: protocol.Done})}, done: true},
		{name: "still booting", steps: []step{check(59 * s)}},
		{name: "a boot that hangs", steps: []step{print(s, "[    0.0] Linux version"), print(59*s, "[   58.0] random: crng init done"), check(61 * s)}, kind: ErrHung, text: "not booted after 1m0s"},
		{name: "a machine that hangs", steps: []step{hello(15 * s), begin(16*s, "x"), beat(20 * s), check(29 * s), check(31 * s)}, kind: ErrHung, text: "silent for 10s"},
		{name: "a machine that is slow", steps: []step{hello(15 * s), beat(24 * s), check(30 * s), beat(33 * s), check(42 * s)}},
		{name: "a panic", steps: []step{hello(15 * s), begin(16*s, "x"), print(20*s, "[   20.1] Kernel panic - not syncing: sysrq triggered crash"), check(24 * s), check(26 * s)}, kind: ErrPanicked, text: "sysrq triggered crash"},
		{name: "a panic that ends QEMU", steps: []step{hello(15 * s), print(20*s, "[   20.1] Kernel panic - not syncing: sysrq triggered crash"), {at: 21 * s, ended: true}}, kind: ErrPanicked, text: "sysrq triggered crash"},
		{name: "a panic before the runner", steps: []step{print(5*s, "guest: mount /dev/vda: no such device"), print(6*s, "[    6.1] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100"), {at: 7 * s, ended: true}}, kind: ErrPanicked, text: "Attempted to kill init"},
		{name: "an oops before its panic", steps: []step{print(5*s, "[    5.1] BUG: kernel NULL pointer dereference, address: 00000000000000a8"), print(6*s, "[    6.1] Kernel panic - not syncing: Fatal exception"), {at: 7 * s, ended: true}}, kind: ErrPanicked, text: "NULL pointer dereference, address: 00000000000000a8; Kernel panic - not syncing: Fatal exception"},
		{name: "powered off too early", steps: []step{hello(15 * s), begin(16*s, "x"), {at: 17 * s, ended: true}}, kind: ErrDied, text: "before it was done"},
		{name: "powers itself off", steps: []step{hello(15 * s), begin(16*s, "x"), leave(17 * s), beat(20 * s), check(29 * s), {at: 30 * s, ended: true}}},
		{name: "QEMU fails during the power-off", steps: []step{hello(15 * s), begin(16*s, "x"), leave(17 * s), {at: 18 * s, ended: true, exit: errors.New("exit status 1")}}, kind: ErrDied, text: "QEMU: exit status 1"},
		{name: "hangs during the power-off", steps: []step{hello(15 * s), begin(16*s, "x"), leave(17 * s), check(28 * s)}, kind: ErrHung, text: "silent for 10s"},
		{name: "does not power itself off", steps: []step{hello(15 * s), begin(16*s, "x"), leave(17 * s), end(18*s, protocol.Event{ExitCode: -1, Text: "not powered off"}), say(19*s, protocol.Event{Kind: protocol.Done})}, done: true},
		{name: "exits after a failed power-off", steps: []step{hello(15 * s), begin(16*s, "x"), leave(17 * s), end(18*s, protocol.Event{ExitCode: -1}), {at: 19 * s, ended: true}}, kind: ErrDied, text: "before it was done"},
		{name: "QEMU fails", steps: []step{{at: s, ended: true, exit: errors.New("exit status 1")}}, kind: ErrDied, text: "QEMU: exit status 1"},
		{name: "events before hello", steps: []step{begin(s, "x")}, kind: ErrDied, text: "before hello"},
		{name: "two commands at once", steps: []step{hello(s), begin(2*s, "x"), begin(3*s, "y")}, kind: ErrDied, text: "while x runs"},
		{name: "an end without a command", steps: []step{hello(s), end(2*s, protocol.Event{})}, kind: ErrDied, text: "does not run"},
		{name: "done while a command runs", steps: []step{hello(s), begin(2*s, "x"), say(3*s, protocol.Event{Kind: protocol.Done})}, kind: ErrDied, text: "while a command runs"},
		{name: "beyond its budget", steps: []step{hello(s), begin(2*s, "x"), beat(69 * s), check(70 * s), beat(101 * s), check(101 * s)}, kind: ErrTimeout, text: "1m40s"},
	} {
		start := time.Unix(1000, 0)
		w := newWatch(start, limits, 40*s)
		err := replay(w, start, tt.steps...)
		if !errors.Is(err, tt.kind) || tt.kind != nil && !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v; want %v with %q", tt.name, err, tt.kind, tt.text)
		}
		if w.done != tt.done {
			t.Errorf("%s: done = %v; want %v", tt.name, w.done, tt.done)
		}
	}
}

func TestResults(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  protocol.Event
		want error // the Kind
		text string
	}{
		{name: "success", end: protocol.Event{Duration: s}},
		{name: "exit code", end: protocol.Event{ExitCode: 1}, want: ErrExit, text: "failed: exit code 1"},
		{name: "killed", end: protocol.Event{ExitCode: -1, Text: "killed by killed"}, want: ErrExit, text: "killed by"},
		{name: "timeout", end: protocol.Event{ExitCode: 2, TimedOut: true, Duration: time.Minute}, want: ErrTimeout, text: "after 1m0s"},
		{name: "the kernel kills another, and the command survives", end: protocol.Event{Trouble: protocol.KernelOOM, Text: "Out of memory: Killed process 7 (x)"}, want: ErrKernelOOM, text: "Killed process 7"},
		{name: "full disk", end: protocol.Event{ExitCode: 1, Trouble: protocol.DiskFull, Text: "the root disk is full: 0 bytes of 4 are free"}, want: ErrDiskFull, text: "0 bytes"},
		{name: "warning", end: protocol.Event{Trouble: protocol.Warning, Text: "WARNING: CPU: 1 PID: 4 at mm/x.c:1"}, want: ErrTrouble, text: "kernel warning: WARNING"},
	} {
		start := time.Unix(1000, 0)
		w := newWatch(start, DefaultLimits, 0)
		err := replay(w, start, hello(s), begin(2*s, "x"), say(3*s, protocol.Event{Kind: protocol.Line, Command: "x", Text: "working"}), end(4*s, tt.end))
		if err != nil {
			t.Errorf("%s: %v; want the machine to go on", tt.name, err)
			continue
		}
		got := w.report.Results[0]
		if diff := cmp.Diff([]string{"working"}, got.Output); diff != "" {
			t.Errorf("%s: output differs (-want +got):\n%s", tt.name, diff)
		}
		if !errors.Is(got.Err, tt.want) || tt.want != nil && !strings.Contains(got.Err.Error(), tt.text) {
			t.Errorf("%s: error = %v; want %v with %q", tt.name, got.Err, tt.want, tt.text)
		}
	}
}

// TestMachineErrorIsTheCommands: the error of a machine is also that of the running command, not of earlier ones.
func TestMachineErrorIsTheCommands(t *testing.T) {
	start := time.Unix(1000, 0)
	w := newWatch(start, DefaultLimits, 0)
	if err := replay(w, start, hello(s), begin(2*s, "x"), end(3*s, protocol.Event{}), begin(4*s, "y")); err != nil {
		t.Fatal(err)
	}
	lost := &Error{Kind: ErrHung}
	w.finish(lost)
	if got := w.report.Results; len(got) != 2 || got[0].Err != nil || got[1].Err != lost {
		t.Errorf("results = %+v; want none for x and the machine's for y", got)
	}
}

func TestDetailShowsTheConsole(t *testing.T) {
	start := time.Unix(1000, 0)
	w := newWatch(start, DefaultLimits, 0)
	for i := range 100 {
		w.console(start, fmt.Sprintf("line %d", i))
	}
	lines := w.tail.lines()
	if len(lines) != tailLength || lines[0] != "line 60" || lines[tailLength-1] != "line 99" {
		t.Errorf("console has %d lines, %q to %q; want the last %d", len(lines), lines[0], lines[len(lines)-1], tailLength)
	}
	e := &Error{Kind: ErrHung, Text: "silent for 30s", Console: lines, QEMU: "qemu: warning\n"}
	for _, want := range []string{"the machine hangs: silent for 30s\n", "| line 60\n", "| line 99\n", "output of QEMU: qemu: warning\n"} {
		if !strings.Contains(e.Detail(), want) {
			t.Errorf("Detail = %q; want %q in it", e.Detail(), want)
		}
	}
	if got := (&Error{Kind: ErrHung}).Detail(); !strings.Contains(got, "the console is empty") {
		t.Errorf("Detail without a console = %q; want it to say so", got)
	}
}
