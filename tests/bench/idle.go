package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/tests/daemon"
	"github.com/evictd/evictd/tests/node"
)

// idleConfig has the kubelet's default threshold, which is far below available memory.
const idleConfig = `apiVersion: evictd.io/v1alpha1
kind: AgentConfiguration
runtimeEndpoint: %s
cgroupRoot: %s
evictionHard:
  memory.available: 100Mi
%s`

// idle is a step: it measures evictd on a node with idle pods, with all lanes and with polling alone.
func idle(ctx context.Context, s *testbed) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute+2*s.idle)
	defer cancel()
	fmt.Fprintf(s.out, "\nIdle, %d pods of one container:\n", s.pods)
	err := each(s.pods, func(i int) error {
		_, err := s.node.RunPod(ctx, node.PodSpec{Name: fmt.Sprintf("idle-%03d", i), Containers: []node.ContainerSpec{{}}})
		return err
	})
	if err != nil {
		return err
	}
	mine := evictds(s)
	var all []*idleCost
	for _, name := range []string{allLanes, pollAlone} {
		i, err := s.watchIdle(ctx, mine[name], s.pods, 0, s.idle)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, i)
	}
	_, err = fmt.Fprint(s.out, idleTable(all).text())
	return err
}

// cgroupCounts is the step cgroups: it measures an idle evictd by the number of empty cgroups below the pods' cgroup.
func cgroupCounts(ctx context.Context, s *testbed) error {
	fmt.Fprintf(s.out, "\nIdle, by the number of cgroups below the pods' cgroup:\n")
	var all []*idleCost
	for _, n := range s.cgroups {
		i, err := s.idleWithCgroups(ctx, n)
		if err != nil {
			return fmt.Errorf("%d cgroups: %w", n, err)
		}
		all = append(all, i)
	}
	_, err := fmt.Fprint(s.out, idleTable(all).text())
	return err
}

func (s *testbed) idleWithCgroups(ctx context.Context, n int) (_ *idleCost, err error) {
	undo, err := s.moreCgroups(n)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, undo()) }()
	return s.watchIdle(ctx, evictds(s)[allLanes], 0, n, s.idle/2)
}

// startupDelay is the time between the start of evictd and the measurement. It covers the work that evictd does once; the
// last of that, 10 s after the start, is to trim its memory and lock it again.
const startupDelay = 15 * time.Second

// watchIdle measures an idle evictd and adds its cost to the results.
func (s *testbed) watchIdle(ctx context.Context, e *evictdContender, pods, cgroups int, long time.Duration) (_ *idleCost, err error) {
	dir, err := os.MkdirTemp(s.dir, "i")
	if err != nil {
		return nil, err
	}
	i := &idleCost{origin: s.origin(), Lanes: e.title, Pods: pods, Cgroups: cgroups}
	cost, err := startBPFCost()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cost.Close()) }()
	began := time.Now()
	d, err := daemon.Start(daemon.Options{
		Executable: s.executable, Dir: dir, Config: fmt.Sprintf(idleConfig, s.node.Endpoint(), s.node.CgroupRoot(), e.notification()),
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Stop()) }()
	up, stop := context.WithTimeout(ctx, node.ScaleTimeout(time.Minute))
	defer stop()
	status, err := d.Await(up, func(st *control.Status) bool {
		return st.Pods.Count == pods && st.Signals[signal.MemoryAvailable].Status == control.Observed && e.lanesUp(st)
	})
	if err != nil {
		return nil, err
	}
	i.Ready, i.Version = time.Since(began), status.Version
	if err := sleep(ctx, startupDelay); err != nil {
		return nil, err
	}
	before, err := s.readConsumption(d.PID(), cost)
	if err != nil {
		return nil, err
	}
	began = time.Now()
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-d.Done():
		return nil, fmt.Errorf("evictd exited (%v): %s", d.Err(), d.LogTail())
	case <-time.After(long):
	}
	after, err := s.readConsumption(d.PID(), cost)
	if err != nil {
		return nil, err
	}
	i.Duration = time.Since(began)
	i.CPU = after.cpu - before.cpu
	i.Programs, i.Runs = after.programs.time-before.programs.time, after.programs.runs-before.programs.runs
	i.Timer, i.Ticks = after.timer.time-before.timer.time, after.timer.runs-before.timer.runs
	i.Resident, i.Anon, i.Threads, i.Files = after.resident, after.anonymous, after.threads, after.files
	return i, s.results.add(result{Idle: i})
}

// idleTable returns a table with a row per result.
func idleTable(all []*idleCost) *table {
	t := &table{head: []string{
		"", "pods", "empty cgroups", "CPU", "of it in BPF", "BPF timer", "other BPF runs", "resident", "anonymous", "threads", "files", "all pods listed after",
	}}
	for _, i := range all {
		rate := "–"
		if i.Ticks > 0 {
			rate = fmt.Sprintf("%.0f a second, %.1f µs each", float64(i.Ticks)/i.Duration.Seconds(), float64(i.Timer.Microseconds())/float64(i.Ticks))
		}
		t.add(i.Lanes, fmt.Sprint(i.Pods), fmt.Sprint(i.Cgroups),
			fmt.Sprintf("%.2f %%", i.share()), fmt.Sprintf("%.3f %%", 100*(i.Timer+i.Programs).Seconds()/i.Duration.Seconds()), rate, fmt.Sprint(i.Runs),
			fmt.Sprintf("%.1f MiB", mebibytes(i.Resident)), fmt.Sprintf("%.1f MiB", mebibytes(i.Anon)),
			fmt.Sprint(i.Threads), fmt.Sprint(i.Files), fmt.Sprintf("%d ms", i.Ready.Milliseconds()))
	}
	return t
}

// consumption is the resource usage of a process and its BPF programs.
type consumption struct {
	cpu                 time.Duration
	resident, anonymous int64 // bytes
	threads, files      int
	timer, programs     runTime
}

// readConsumption returns the current totals of evictd.
func (s *testbed) readConsumption(pid int, cost *bpfCost) (consumption, error) {
	c, err := readProcess(pid)
	if err != nil {
		return consumption{}, err
	}
	if c.programs, err = programsRunTime(pid); err != nil {
		return consumption{}, err
	}
	c.timer, err = cost.timer()
	return c, err
}

func readProcess(pid int) (consumption, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return consumption{}, err
	}
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return consumption{}, err
	}
	c := consumption{files: len(files)}
	if c.cpu, err = processorTime(pid); err != nil {
		return consumption{}, err
	}
	for key, into := range map[string]*int64{"VmRSS:": &c.resident, "RssAnon:": &c.anonymous} {
		kilobytes, err := statusField(status, key)
		if err != nil {
			return consumption{}, fmt.Errorf("parse %s/status: %w", dir, err)
		}
		*into = kilobytes << 10
	}
	threads, err := statusField(status, "Threads:")
	c.threads = int(threads)
	return c, err
}

// processorTime returns the CPU time of all threads of a process, including those that have exited, in nanoseconds. It
// reads the process's CPU-time clock, whose id is computed from the PID as by clock_getcpuclockid(3).
func processorTime(pid int) (time.Duration, error) {
	const scheduler = 2 // CPUCLOCK_SCHED (include/linux/posix-timers_types.h)
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduler), &ts); err != nil {
		return 0, fmt.Errorf("read CPU time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// statusField returns the number after a key in a file such as /proc/PID/status.
func statusField(status []byte, key string) (int64, error) {
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == key {
			return strconv.ParseInt(f[1], 10, 64)
		}
	}
	return 0, errors.New("no line " + key)
}
