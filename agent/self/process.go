// Package self adapts evictd's own process to the pressure that it handles: priority, OOM
// score, memory lock and garbage collector. It also checks that evictd sees the host's
// processes, cgroups and root directory, and that an earlier evictd has restored
// memory.high. A function that lacks a privilege logs what follows from that, and evictd
// goes on.
package self

import (
	"errors"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/hot"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/process"
)

// Process is evictd's own process.
type Process struct {
	procfs    kernel.FS
	hierarchy *cgroup.Hierarchy
	log       *slog.Logger
}

// New returns evictd's process, as found in procfs and h.
func New(procfs kernel.FS, h *cgroup.Hierarchy, log *slog.Logger) *Process {
	return &Process{procfs: procfs, hierarchy: h, log: log}
}

const (
	// hotPriority is the real-time priority of the hot path's threads: above all normal
	// tasks, below the kernel's own threads.
	hotPriority = 1
	// rtSoftLimit and rtHardLimit are how long a real-time thread may run without
	// blocking before the kernel kills evictd (RLIMIT_RTTIME), so that a bug can't occupy
	// a core. A kill of many processes takes some milliseconds.
	rtSoftLimit, rtHardLimit = time.Second, 2 * time.Second
)

// SetRealTime sets SCHED_FIFO for the calling thread. If that fails it logs why: evictd
// then kills the same pods, but later under pressure.
func (p *Process) SetRealTime() {
	_, err := process.SetRTTimeLimit(process.RTTimeLimit{Soft: rtSoftLimit, Hard: rtHardLimit})
	if err == nil {
		_, err = process.SetFIFO(hotPriority)
	}
	if err != nil {
		p.log.Info("could not set SCHED_FIFO; a hot path thread runs at normal priority", "error", err)
	}
}

const (
	// ownOOMScoreAdj makes evictd the last choice of the kernel's OOM killer.
	ownOOMScoreAdj = -999
	// ownNice is the nice value of evictd's threads without real-time priority: the hot
	// path may wait for them in the Go runtime, for example while Go stops the world. For
	// the same reason no thread is set below ordinary priority.
	ownNice = -20
)

// Protect sets evictd's oom_score_adj and nice values, and logs what it may not set: then
// the service manager has to (OOMScoreAdjust=, Nice= of the unit).
func (p *Process) Protect() {
	if err := setOwnScore(p.procfs); err != nil {
		p.log.Info("could not set oom_score_adj to -999; the kernel's OOM killer may choose evictd", "error", err)
	}
	if err := process.SetNice(ownNice); err != nil {
		p.log.Info("could not set nice to -20; evictd runs at normal priority", "error", err)
	}
	err := process.SetSessionNice(p.procfs, ownNice)
	if err != nil && !errors.Is(err, kernel.ErrUnavailable) {
		p.log.Info("could not set the nice value of the autogroup to -20; evictd's session runs at normal priority", "error", err)
	}
}

// ResetNice sets the nice value of the calling thread back to 0. The goroutine must
// be locked to the thread.
func ResetNice() error {
	now, err := process.ThreadScheduling()
	if err != nil || now.Nice >= 0 {
		return err
	}
	return process.SetThreadNice(0)
}

// setOwnScore writes evictd's oom_score_adj.
func setOwnScore(proc kernel.FS) error {
	score, err := process.OpenOOMScoreAdj(proc, os.Getpid())
	if err != nil {
		return err
	}
	defer score.Close()
	return score.Set(ownOOMScoreAdj)
}

// WarmUp runs the hot path once without sending a signal, with evictd's own cgroup as the
// pod's, so that its code and data are resident before the first alarm.
func (p *Process) WarmUp(o hot.Options) {
	own, err := ownCgroup(p.procfs, p.hierarchy)
	if err != nil {
		p.log.Info("hot path warm-up skipped: could not find evictd's own cgroup", "error", err)
		return
	}
	if own.Cgroup == "/" {
		return // that contains all processes of the node
	}
	handle, err := act.Prepare(p.hierarchy, p.procfs, act.Job{Order: evict.Order{UID: "evictd"}, Containers: []evict.RunningContainer{own}})
	if err != nil {
		p.log.Info("hot path warm-up skipped: could not open evictd's own cgroup", "error", err)
		return
	}
	defer handle.Close()
	if result := hot.WarmUp(o, handle); result != hot.Killed {
		p.log.Info("hot path warm-up ended early", "result", result.String())
	}
}

// ownCgroup returns evictd's own cgroup as the handle of a container.
func ownCgroup(procfs kernel.FS, h *cgroup.Hierarchy) (evict.RunningContainer, error) {
	membership, err := cgroup.ReadMembership(procfs, os.Getpid())
	if err != nil {
		return evict.RunningContainer{}, err
	}
	path, err := membership.MemoryPath(h)
	if err != nil {
		return evict.RunningContainer{}, err
	}
	group, err := h.Open(path)
	if err != nil {
		return evict.RunningContainer{}, err
	}
	defer group.Close()
	return evict.RunningContainer{ID: "evictd", Name: "evictd", Cgroup: path, CgroupID: group.ID()}, nil
}

// minProcs is the least GOMAXPROCS, whatever the number of CPUs: a thread that returns from
// a system call must find a free P while others run.
const minProcs = 8

// TuneRuntime sets GOMAXPROCS, and the GC's target and memory limit unless the environment
// does.
func TuneRuntime() {
	runtime.GOMAXPROCS(max(minProcs, runtime.GOMAXPROCS(0)))
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
}
