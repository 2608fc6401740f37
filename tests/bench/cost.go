package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/trace"
)

// runTime is a total of CPU time and the number of runs that it is from.
type runTime struct {
	time time.Duration
	runs int
}

// bpfCost measures the CPU time of BPF programs, which the kernel charges to no process. The kernel counts the runs of
// programs while a descriptor of BPF_ENABLE_STATS is open. It does not count the callbacks of BPF timers
// (kernel/bpf/helpers.c: bpf_timer_cb); their begin and end are in the trace of hrtimers.
type bpfCost struct {
	stats      io.Closer
	timers     *trace.Instance
	timerTotal runTime
}

// startBPFCost starts the measurement.
func startBPFCost() (_ *bpfCost, err error) {
	c := &bpfCost{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if c.stats, err = ebpf.EnableStats(unix.BPF_STATS_RUN_TIME); err != nil {
		return nil, fmt.Errorf("count the runs of BPF programs: %w", err)
	}
	if c.timers, err = trace.Open("evictd-bench-timers"); err != nil {
		return nil, err
	}
	// The trace has all timers of the machine: some hundred events per second and CPU.
	if err := c.timers.Set("buffer_size_kb", "16384"); err != nil {
		return nil, err
	}
	if err := c.timers.Record("timer/hrtimer_expire_entry", ""); err != nil {
		return nil, err
	}
	return c, c.timers.Record("timer/hrtimer_expire_exit", "")
}

// Close ends the measurement.
func (c *bpfCost) Close() error {
	var errs []error
	if c.timers != nil {
		errs = append(errs, c.timers.Close())
	}
	if c.stats != nil {
		errs = append(errs, c.stats.Close())
	}
	return errors.Join(errs...)
}

// timer returns the total of the callbacks of BPF timers since the start.
func (c *bpfCost) timer() (runTime, error) {
	text, err := c.timers.Read()
	if err != nil {
		return runTime{}, err
	}
	if err := c.timers.Clear(); err != nil {
		return runTime{}, err
	}
	events, err := trace.ParseEvents(text)
	if err != nil {
		return runTime{}, err
	}
	more := timerTime(events)
	c.timerTotal.time += more.time
	c.timerTotal.runs += more.runs
	return c.timerTotal, nil
}

// timerTime adds up the callbacks of BPF timers in a trace:
//
//	hrtimer_expire_entry: hrtimer=00000000d0ba2bf5 function=bpf_timer_cb now=4201202408000
//	hrtimer_expire_exit: hrtimer=00000000d0ba2bf5
//
// The callback of a timer does not run twice at once, so its name is enough to find the end.
func timerTime(events []trace.Event) (s runTime) {
	running := make(map[string]time.Duration)
	for _, e := range events {
		timer, rest, _ := strings.Cut(e.Details, " ")
		switch e.Name {
		case "hrtimer_expire_entry":
			if strings.Contains(rest, "function=bpf_timer_cb ") {
				running[timer] = e.At
			}
		case "hrtimer_expire_exit":
			if from, ok := running[timer]; ok {
				s.time += e.At - from
				s.runs++
				delete(running, timer)
			}
		}
	}
	return s
}

// programsRunTime returns the total of the BPF programs of which a process has a descriptor, or a descriptor of a link.
func programsRunTime(pid int) (sum runTime, err error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fdinfo")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return runTime{}, err
	}
	seen := make(map[int64]bool)
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			continue // closed in between
		}
		id, err := statusField(text, programID)
		if err != nil || seen[id] {
			continue // not a program, or counted already
		}
		seen[id] = true
		s, err := programRunTime(ebpf.ProgramID(id))
		if err != nil {
			return runTime{}, err
		}
		sum.time += s.time
		sum.runs += s.runs
	}
	return sum, nil
}

// programID is a key in the fdinfo of a BPF program and of a link (kernel/bpf/syscall.c: bpf_prog_show_fdinfo,
// bpf_link_show_fdinfo).
const programID = "prog_id:"

func programRunTime(id ebpf.ProgramID) (_ runTime, err error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return runTime{}, fmt.Errorf("open BPF program %d: %w", id, err)
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	stats, err := p.Stats()
	if err != nil {
		return runTime{}, fmt.Errorf("read stats of BPF program %d: %w", id, err)
	}
	return runTime{stats.Runtime, int(stats.RunCount)}, nil
}
