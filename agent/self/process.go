// Package self is what evictd does about its own process: its priority, its place
// on the host, its garbage collector and its memory, which the pressure that it
// handles must not slow down.
package self

import (
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

// New returns evictd's process as procfs and h show it.
func New(procfs kernel.FS, h *cgroup.Hierarchy, log *slog.Logger) *Process {
	return &Process{procfs: procfs, hierarchy: h, log: log}
}

const (
	// hotPriority is the real-time priority of the hot path's thread: above all
	// normal tasks, below the kernel's own threads.
	hotPriority = 1
	// The longest that a real-time thread may run without waiting: the kernel
	// ends evictd then, so that a bug can't keep a core. A kill of many processes
	// takes some milliseconds.
	rtSoft, rtHard = time.Second, 2 * time.Second
)

// GiveRealTime gives the calling thread its priority. Where that is not to be had
// evictd is slower under pressure, and no less right.
func (p *Process) GiveRealTime() {
	_, err := process.SetRTTimeLimit(process.RTTimeLimit{Soft: rtSoft, Hard: rtHard})
	if err == nil {
		_, err = process.SetFIFO(hotPriority)
	}
	if err != nil {
		p.log.Info("a thread of the hot path waits for a processor like any other process", "error", err)
	}
}

// Rehearse goes the whole hot path at the cost of nobody: evictd's own cgroup stands
// in for a pod's.
func (p *Process) Rehearse(o hot.Options) {
	own, err := ownCgroup(p.procfs, p.hierarchy)
	if err != nil {
		p.log.Info("the hot path is not rehearsed", "error", err)
		return
	}
	if own.Cgroup == "/" {
		return // all processes of the node are in that
	}
	hold, err := act.Prepare(p.hierarchy, p.procfs, act.Job{Order: evict.Order{UID: "evictd"}, Containers: []evict.ContainerHandle{own}})
	if err != nil {
		p.log.Info("the hot path is not rehearsed", "error", err)
		return
	}
	defer hold.Close()
	if result := hot.Rehearse(o, hold); result != hot.Struck {
		p.log.Info("the rehearsal of the hot path did not come to its end", "result", result.String())
	}
}

// ownCgroup returns evictd's own cgroup as if it were a container's.
func ownCgroup(procfs kernel.FS, h *cgroup.Hierarchy) (evict.ContainerHandle, error) {
	membership, err := cgroup.Of(procfs, os.Getpid())
	if err != nil {
		return evict.ContainerHandle{}, err
	}
	path, err := membership.Memory(h)
	if err != nil {
		return evict.ContainerHandle{}, err
	}
	group, err := h.Open(path)
	if err != nil {
		return evict.ContainerHandle{}, err
	}
	defer group.Close()
	return evict.ContainerHandle{ID: "evictd", Name: "evictd", Cgroup: path, CgroupID: group.ID()}, nil
}

// leastProcs is how many threads may run Go code at once, whatever the cores: one
// that comes back from a wait must find a place free, also while others are busy.
const leastProcs = 8

// TuneRuntime sets Go's runtime up for a thread that must not wait for others.
func TuneRuntime() {
	runtime.GOMAXPROCS(max(leastProcs, runtime.GOMAXPROCS(0)))
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
}
