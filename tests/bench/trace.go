package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// traceDir is where tracefs usually is.
const traceDir = "/sys/kernel/tracing"

// tracing is a buffer of the kernel's own tracing, apart from those of others, with times of CLOCK_MONOTONIC. What it
// sees is seen the same whoever does it.
type tracing struct {
	dir     string
	mounted string // by us; "" if it was mounted already
}

// openTracing makes a buffer named name. What a benchmark that was killed left of that name is removed.
func openTracing(name string) (_ *tracing, err error) {
	t := &tracing{}
	root := traceDir
	if _, err := os.Stat(filepath.Join(root, "trace_clock")); err != nil {
		if root, err = os.MkdirTemp("", "evictd-tracefs-"); err != nil {
			return nil, err
		}
		if err := unix.Mount("tracefs", root, "tracefs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return nil, errors.Join(fmt.Errorf("mount tracefs: %w", err), os.Remove(root))
		}
		t.mounted = root
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("trace: %w", err), t.Close())
		}
	}()
	dir := filepath.Join(root, "instances", name)
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	t.dir = dir
	return t, t.set("trace_clock", "mono")
}

// Close removes the buffer.
func (t *tracing) Close() error {
	var errs []error
	if t.dir != "" {
		errs = append(errs, os.Remove(t.dir)) // an instance goes with one rmdir
	}
	if t.mounted != "" {
		errs = append(errs, unix.Unmount(t.mounted, 0), os.Remove(t.mounted))
	}
	return errors.Join(errs...)
}

func (t *tracing) set(file, text string) error {
	return os.WriteFile(filepath.Join(t.dir, file), []byte(text), 0)
}

// record has an event recorded, where filter, if there is one, fits.
func (t *tracing) record(event, filter string) error {
	if filter != "" {
		if err := t.set(filepath.Join("events", event, "filter"), filter); err != nil {
			return fmt.Errorf("trace %s: filter %q: %w", event, filter, err)
		}
	}
	if err := t.set(filepath.Join("events", event, "enable"), "1"); err != nil {
		return fmt.Errorf("trace %s: %w", event, err)
	}
	return nil
}

// clear forgets what was recorded. That takes O_TRUNC: to truncate(2) the kernel says yes and does nothing
// (kernel/trace/trace.c: tracing_open).
func (t *tracing) clear() error {
	f, err := os.OpenFile(filepath.Join(t.dir, "trace"), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func (t *tracing) read() ([]byte, error) { return os.ReadFile(filepath.Join(t.dir, "trace")) }

// event is one line of a trace.
type event struct {
	at      time.Duration // CLOCK_MONOTONIC
	pid     int           // of the thread it happened on; 0 is not known
	name    string
	details string
}

// parseEvents parses a buffer's text:
//
//	# tracer: nop
//	#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
//	            bash-1426    [001] d..1.  4201.202408: signal_generate: sig=9 errno=0 code=0 comm=hog pid=1447 grp=1 res=0
//
// A task's name may hold anything but a line's end, so that the time is looked for after the processor.
func parseEvents(text []byte) ([]event, error) {
	var events []event
	for line := range bytes.Lines(text) {
		s := strings.TrimRight(string(line), "\n")
		if s == "" || strings.HasPrefix(s, "#") || strings.HasPrefix(s, "CPU:") { // CPU:1 [LOST 3 EVENTS]
			continue
		}
		e, ok := parseEvent(s)
		if !ok {
			return nil, fmt.Errorf("parse trace: %q", s)
		}
		events = append(events, e)
	}
	return events, nil
}

func parseEvent(line string) (event, bool) {
	for at := strings.Index(line, "["); at >= 0; {
		fields := strings.Fields(line[at:])
		if len(fields) >= 4 && strings.HasSuffix(fields[0], "]") && strings.HasSuffix(fields[2], ":") && strings.HasSuffix(fields[3], ":") {
			if when, err := parseTraceTime(strings.TrimSuffix(fields[2], ":")); err == nil {
				_, details, _ := strings.Cut(line[at:], fields[3])
				task := strings.TrimSpace(line[:at])
				pid, _ := strconv.Atoi(task[strings.LastIndex(task, "-")+1:])
				return event{when, pid, strings.TrimSuffix(fields[3], ":"), strings.TrimSpace(details)}, true
			}
		}
		next := strings.Index(line[at+1:], "[")
		if next < 0 {
			break
		}
		at += 1 + next
	}
	return event{}, false
}

// parseTraceTime parses seconds and microseconds, as in 4201.202408.
func parseTraceTime(s string) (time.Duration, error) {
	whole, part, ok := strings.Cut(s, ".")
	seconds, err := strconv.ParseInt(whole, 10, 32)
	if err != nil || !ok || len(part) != 6 || seconds < 0 {
		return 0, fmt.Errorf("no time: %q", s)
	}
	micros, err := strconv.ParseUint(part, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("no time: %q", s)
	}
	return time.Duration(seconds)*time.Second + time.Duration(micros)*time.Microsecond, nil
}

// kill is a SIGKILL that was sent.
type kill struct {
	at     time.Duration
	pid    int
	kernel bool // the kernel sent it for itself, as its OOM killer does
	by     int  // the thread that sent it
}

// signalKernel is SI_KERNEL (include/uapi/asm-generic/siginfo.h).
const signalKernel = 0x80

// recordKills has every SIGKILL recorded (include/trace/events/signal.h: signal_generate).
func (t *tracing) recordKills() error { return t.record("signal/signal_generate", "sig==9") }

// recordRuns has it recorded when a real-time thread of evictd, whose priority is the lowest of those, gets a processor
// (include/trace/events/sched.h: sched_switch). 98 is that priority as the kernel counts.
func (t *tracing) recordRuns() error {
	return t.record("sched/sched_switch", `next_prio==98 && next_comm=="evictd"`)
}

// kills returns what was recorded of signals since clear.
func (t *tracing) kills() ([]kill, error) {
	kills, _, err := t.killsAndRuns()
	return kills, err
}

// killsAndRuns returns what was recorded since clear: the signals, and when which thread got a processor.
func (t *tracing) killsAndRuns() (kills []kill, runs []ran, err error) {
	text, err := t.read()
	if err != nil {
		return nil, nil, err
	}
	events, err := parseEvents(text)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range events {
		if e.name == "sched_switch" {
			r, err := parseRun(e)
			if err != nil {
				return nil, nil, err
			}
			runs = append(runs, r)
			continue
		}
		k, err := parseKill(e)
		if err != nil {
			return nil, nil, err
		}
		kills = append(kills, k)
	}
	return kills, runs, nil
}

// ran is a thread that gets a processor.
type ran struct {
	at  time.Duration
	pid int
}

// parseRun parses the details of an event:
//
//	prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=evictd next_pid=1426 next_prio=98
func parseRun(e event) (ran, error) {
	at := strings.LastIndex(e.details, " next_pid=")
	if at < 0 {
		return ran{}, fmt.Errorf("parse trace: %s: %q", e.name, e.details)
	}
	field, _, _ := strings.Cut(e.details[at+len(" next_pid="):], " ")
	pid, err := strconv.Atoi(field)
	if err != nil || pid <= 0 {
		return ran{}, fmt.Errorf("parse trace: %s: %q", e.name, e.details)
	}
	return ran{e.at, pid}, nil
}

// parseKill parses the details of an event:
//
//	sig=9 errno=0 code=128 comm=a pid=1 b pid=1447 grp=1 res=0
func parseKill(e event) (kill, error) {
	bad := fmt.Errorf("parse trace: %s: %q", e.name, e.details)
	// The name may hold anything, so that what is before it is looked for from the front and the rest from the back.
	head, _, ok := strings.Cut(e.details, " comm=")
	at := strings.LastIndex(e.details, " pid=")
	if !ok || at < len(head) {
		return kill{}, bad
	}
	k, found := kill{at: e.at, by: e.pid}, 0
	for _, f := range append(strings.Fields(head), strings.Fields(e.details[at:])...) {
		key, value, _ := strings.Cut(f, "=")
		n, err := strconv.Atoi(value)
		if err != nil {
			return kill{}, bad
		}
		switch key {
		case "code":
			k.kernel = n == signalKernel
			found++
		case "pid":
			k.pid = n
			found++
		}
	}
	if found != 2 || k.pid <= 0 {
		return kill{}, bad
	}
	return k, nil
}
