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
)

// spent is processor time, and how often it was spent.
type spent struct {
	time time.Duration
	runs int
}

// cost measures what BPF costs where no process is charged for it. The kernel counts the runs of programs while
// somebody holds BPF_ENABLE_STATS; it does not count what a BPF timer calls (kernel/bpf/helpers.c: bpf_timer_cb), of
// which its tracing of timers tells the begin and the end.
type cost struct {
	stats  io.Closer
	timers *tracing
	so     spent
}

// openCost begins to count.
func openCost() (_ *cost, err error) {
	c := &cost{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if c.stats, err = ebpf.EnableStats(unix.BPF_STATS_RUN_TIME); err != nil {
		return nil, fmt.Errorf("count the runs of BPF programs: %w", err)
	}
	if c.timers, err = openTracing("evictd-bench-timers"); err != nil {
		return nil, err
	}
	// Every timer of the machine is in it: some hundred a second and processor.
	if err := c.timers.set("buffer_size_kb", "16384"); err != nil {
		return nil, err
	}
	if err := c.timers.record("timer/hrtimer_expire_entry", ""); err != nil {
		return nil, err
	}
	return c, c.timers.record("timer/hrtimer_expire_exit", "")
}

// Close ends it.
func (c *cost) Close() error {
	var errs []error
	if c.timers != nil {
		errs = append(errs, c.timers.Close())
	}
	if c.stats != nil {
		errs = append(errs, c.stats.Close())
	}
	return errors.Join(errs...)
}

// timer returns what BPF timers took since the count began.
func (c *cost) timer() (spent, error) {
	text, err := c.timers.read()
	if err != nil {
		return spent{}, err
	}
	if err := c.timers.clear(); err != nil {
		return spent{}, err
	}
	events, err := parseEvents(text)
	if err != nil {
		return spent{}, err
	}
	more := timerTime(events)
	c.so.time += more.time
	c.so.runs += more.runs
	return c.so, nil
}

// timerTime adds up the callbacks of BPF timers in a trace:
//
//	hrtimer_expire_entry: hrtimer=00000000d0ba2bf5 function=bpf_timer_cb now=4201202408000
//	hrtimer_expire_exit: hrtimer=00000000d0ba2bf5
//
// A timer does not run twice at once, so that its name is enough to find the end.
func timerTime(events []event) (s spent) {
	running := make(map[string]time.Duration)
	for _, e := range events {
		timer, rest, _ := strings.Cut(e.details, " ")
		switch e.name {
		case "hrtimer_expire_entry":
			if strings.Contains(rest, "function=bpf_timer_cb ") {
				running[timer] = e.at
			}
		case "hrtimer_expire_exit":
			if from, ok := running[timer]; ok {
				s.time += e.at - from
				s.runs++
				delete(running, timer)
			}
		}
	}
	return s
}

// ofPrograms adds up what the BPF programs took that a process holds, itself or by what they are attached to.
func ofPrograms(pid int) (sum spent, err error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fdinfo")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return spent{}, err
	}
	seen := make(map[int64]bool)
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		id, err := statusField(text, programID)
		if err != nil || seen[id] {
			continue // it is no program's
		}
		seen[id] = true
		s, err := ofProgram(ebpf.ProgramID(id))
		if err != nil {
			return spent{}, err
		}
		sum.time += s.time
		sum.runs += s.runs
	}
	return sum, nil
}

// programID is in the fdinfo of a BPF program, and in that of a link to one (kernel/bpf/syscall.c: bpf_prog_show_fdinfo,
// bpf_link_show_fdinfo).
const programID = "prog_id:"

func ofProgram(id ebpf.ProgramID) (_ spent, err error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return spent{}, fmt.Errorf("hold BPF program %d: %w", id, err)
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	stats, err := p.Stats()
	if err != nil {
		return spent{}, fmt.Errorf("ask for BPF program %d: %w", id, err)
	}
	return spent{stats.Runtime, int(stats.RunCount)}, nil
}
