// Package trace reads events of the kernel's tracing: which thread sent a SIGKILL to which process, and when.
package trace

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

// traceDir is the usual mount point of tracefs.
const traceDir = "/sys/kernel/tracing"

// Instance is an instance of the kernel's tracing, with a buffer of its own and times of CLOCK_MONOTONIC.
type Instance struct {
	dir     string
	mounted string // the tracefs that Open mounted; "" if one was mounted already
}

// Open creates an instance. It removes one of the same name, which a killed benchmark may have left.
func Open(name string) (_ *Instance, err error) {
	t := &Instance{}
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
	return t, t.Set("trace_clock", "mono")
}

// Close removes the instance.
func (t *Instance) Close() error {
	var errs []error
	if t.dir != "" {
		errs = append(errs, os.Remove(t.dir)) // rmdir removes an instance with its files
	}
	if t.mounted != "" {
		errs = append(errs, unix.Unmount(t.mounted, 0), os.Remove(t.mounted))
	}
	return errors.Join(errs...)
}

func (t *Instance) Set(file, text string) error {
	return os.WriteFile(filepath.Join(t.dir, file), []byte(text), 0)
}

// Record enables an event, with a filter unless it is "".
func (t *Instance) Record(event, filter string) error {
	if filter != "" {
		if err := t.Set(filepath.Join("events", event, "filter"), filter); err != nil {
			return fmt.Errorf("trace %s: filter %q: %w", event, filter, err)
		}
	}
	if err := t.Set(filepath.Join("events", event, "enable"), "1"); err != nil {
		return fmt.Errorf("trace %s: %w", event, err)
	}
	return nil
}

// Clear empties the buffer. It needs O_TRUNC: truncate(2) succeeds without effect (kernel/trace/trace.c: tracing_open).
func (t *Instance) Clear() error {
	f, err := os.OpenFile(filepath.Join(t.dir, "trace"), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func (t *Instance) Read() ([]byte, error) { return os.ReadFile(filepath.Join(t.dir, "trace")) }

// Event is one line of a trace.
type Event struct {
	At      time.Duration // CLOCK_MONOTONIC
	PID     int           // of the thread; 0 if not known
	Name    string
	Details string
}

// ParseEvents parses a buffer's text:
//
//	# tracer: nop
//	#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
//	            bash-1426    [001] d..1.  4201.202408: signal_generate: sig=9 errno=0 code=0 comm=hog pid=1447 grp=1 res=0
//
// A task's name may contain any character but a newline, so the time is searched for after the CPU.
func ParseEvents(text []byte) ([]Event, error) {
	var events []Event
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

func parseEvent(line string) (Event, bool) {
	for at := strings.Index(line, "["); at >= 0; {
		fields := strings.Fields(line[at:])
		if len(fields) >= 4 && strings.HasSuffix(fields[0], "]") && strings.HasSuffix(fields[2], ":") && strings.HasSuffix(fields[3], ":") {
			if when, err := parseTraceTime(strings.TrimSuffix(fields[2], ":")); err == nil {
				_, details, _ := strings.Cut(line[at:], fields[3])
				task := strings.TrimSpace(line[:at])
				pid, _ := strconv.Atoi(task[strings.LastIndex(task, "-")+1:])
				return Event{when, pid, strings.TrimSuffix(fields[3], ":"), strings.TrimSpace(details)}, true
			}
		}
		next := strings.Index(line[at+1:], "[")
		if next < 0 {
			break
		}
		at += 1 + next
	}
	return Event{}, false
}

// parseTraceTime parses seconds and microseconds, as in 4201.202408.
func parseTraceTime(s string) (time.Duration, error) {
	whole, part, ok := strings.Cut(s, ".")
	seconds, err := strconv.ParseInt(whole, 10, 32)
	if err != nil || !ok || len(part) != 6 || seconds < 0 {
		return 0, fmt.Errorf("parse time of event %q", s)
	}
	micros, err := strconv.ParseUint(part, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("parse time of event %q", s)
	}
	return time.Duration(seconds)*time.Second + time.Duration(micros)*time.Microsecond, nil
}

// Kill is a SIGKILL that was sent.
type Kill struct {
	At     time.Duration // CLOCK_MONOTONIC
	PID    int
	Kernel bool // the kernel sent it, as its OOM killer does
	By     int  // the thread that sent it
}

// signalKernel is SI_KERNEL (include/uapi/asm-generic/siginfo.h).
const signalKernel = 0x80

// RecordKills records every SIGKILL (include/trace/events/signal.h: signal_generate).
func (t *Instance) RecordKills() error { return t.Record("signal/signal_generate", "sig==9") }

// RecordRuns records when a real-time thread of evictd gets a CPU (include/trace/events/sched.h: sched_switch). evictd's
// threads have the lowest real-time priority, which is 98 in the kernel.
func (t *Instance) RecordRuns() error {
	return t.Record("sched/sched_switch", `next_prio==98 && next_comm=="evictd"`)
}

// Kills returns the signals recorded since Clear.
func (t *Instance) Kills() ([]Kill, error) {
	kills, _, err := t.KillsAndRuns()
	return kills, err
}

// KillsAndRuns returns the signals recorded since Clear, and the times at which threads of evictd got a CPU.
func (t *Instance) KillsAndRuns() (kills []Kill, runs []Run, err error) {
	text, err := t.Read()
	if err != nil {
		return nil, nil, err
	}
	events, err := ParseEvents(text)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range events {
		if e.Name == "sched_switch" {
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

// Run is the event of a thread that gets a CPU.
type Run struct {
	At  time.Duration // CLOCK_MONOTONIC
	PID int
}

// parseRun parses the details of an event:
//
//	prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=evictd next_pid=1426 next_prio=98
func parseRun(e Event) (Run, error) {
	at := strings.LastIndex(e.Details, " next_pid=")
	if at < 0 {
		return Run{}, fmt.Errorf("parse trace: %s: %q", e.Name, e.Details)
	}
	field, _, _ := strings.Cut(e.Details[at+len(" next_pid="):], " ")
	pid, err := strconv.Atoi(field)
	if err != nil || pid <= 0 {
		return Run{}, fmt.Errorf("parse trace: %s: %q", e.Name, e.Details)
	}
	return Run{e.At, pid}, nil
}

// parseKill parses the details of an event:
//
//	sig=9 errno=0 code=128 comm=a pid=1 b pid=1447 grp=1 res=0
func parseKill(e Event) (Kill, error) {
	bad := fmt.Errorf("parse trace: %s: %q", e.Name, e.Details)
	// The name may contain any character, so the fields before it are searched for from the front and those after it from
	// the back.
	head, _, ok := strings.Cut(e.Details, " comm=")
	at := strings.LastIndex(e.Details, " pid=")
	if !ok || at < len(head) {
		return Kill{}, bad
	}
	k, found := Kill{At: e.At, By: e.PID}, 0
	for _, f := range append(strings.Fields(head), strings.Fields(e.Details[at:])...) {
		key, value, _ := strings.Cut(f, "=")
		n, err := strconv.Atoi(value)
		if err != nil {
			return Kill{}, bad
		}
		switch key {
		case "code":
			k.Kernel = n == signalKernel
			found++
		case "pid":
			k.PID = n
			found++
		}
	}
	if found != 2 || k.PID <= 0 {
		return Kill{}, bad
	}
	return k, nil
}
