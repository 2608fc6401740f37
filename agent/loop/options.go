package loop

import (
	"context"
	"log/slog"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/hot"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/reclaim"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// Options are everything that a Loop uses.
type Options struct {
	Log    *slog.Logger
	Config *config.Config // in force until Reload
	// State is the decision's state of an earlier run. The evictions of its victims that
	// had not failed are resumed.
	State evict.State

	Memory    Memory
	Inventory Inventory
	Disks     Disks
	Tasks     Tasks
	DiskUsage *DiskUsage
	Reclaimer Reclaimer
	// LargestDirectories returns the largest directories outside the pods on the filesystem of
	// a disk signal. It must not block.
	LargestDirectories func(signal.Signal) []evict.DirectoryUsage
	Lanes              Lanes
	// ModeFacts returns what the mode depends on besides the snapshot of the pods and the
	// configuration.
	ModeFacts func(*config.Config) Facts
	// KubeletThresholds returns the hard thresholds of the kubelet, or nil if they are not known;
	// nil for never.
	KubeletThresholds func() []signal.Threshold
	// OnLayoutChange is called with the policy when the layout of the filesystems has changed.
	OnLayoutChange func(*evict.Policy)
	// Procfs and Hierarchy are where pressure and processes are read.
	Procfs    kernel.FS
	Hierarchy *cgroup.Hierarchy
	// Drift is how far the kernel's per-CPU counters may be off, in bytes.
	Drift int64

	Hot      HotPath
	Arbiter  Arbiter
	Watchdog Watchdog
	Liveness *Liveness
	// OpenHandle opens the kill handle of a job's pod.
	OpenHandle func(act.Job) (*act.KillHandle, error)
	// Killer kills when the hot path does not answer; in dry run DryRunKiller does.
	Killer, DryRunKiller hot.Killer

	Execute  *execute.Executor
	Observer Observer

	// Arrivals returns the pods that have come to the node after since and have not started. Refuse
	// has such a pod reported to the API server. Neither blocks; nil if nothing reports evictions.
	Arrivals func(since, now time.Time) []evict.Pod
	Refuse   func(o *evict.Order, decided time.Time) error
	// Ordered reports whether the report of a pod's eviction is ordered already: the order has all that a report
	// needs. It does not block; nil if nothing reports evictions.
	Ordered func(uid string) bool
}

// Memory reads the node's memory.
type Memory interface {
	Read(now time.Time, into *signal.Observations) memory.Node
}

// Inventory lists and measures the pods of the node.
type Inventory interface {
	Changed() <-chan struct{}
	Refresh()
	LastAttempt() time.Time
	Measure(now time.Time) pods.Snapshot
	MeasureUnchanged(now time.Time) (s pods.Snapshot, ok bool)
	InvalidateReadings(uids ...string)
	Guard() *evict.Guard
	SystemCgroups(n int) []evict.CgroupUsage
}

// Disks watches the filesystems.
type Disks interface {
	Read(now time.Time, into *signal.Observations)
	Crossed() <-chan struct{}
	Layout() evict.Layout
}

// Tasks counts the tasks of the node and of its pods.
type Tasks interface {
	Read(now time.Time, into *signal.Observations)
	Crossed() <-chan struct{}
	PodTasks() (tasks int64, ok bool)
}

// Reclaimer frees disk space by removing containers and images.
type Reclaimer interface {
	Start(evict.Reclaim)
	Done() <-chan evict.ReclaimReport
	Evicted(sandboxID string, usage reclaim.EvictedUsage)
	EvictedFromKubelet(uid string, usage reclaim.EvictedUsage)
	Revived(uid string)
	NotEvicted(sandboxID string)
	ExclusiveImageBytes() map[string]int64
}

// Lanes receive each reading of memory, and report where tasks stall on memory.
type Lanes interface {
	Observe(now time.Time, o *signal.Observations)
	Stalls() []lanes.Stall
}

// HotPath is the real-time thread, which kills the pods of a request, and on an alarm those
// that it chooses from the published table.
type HotPath interface {
	Execute(ctx context.Context, r *hot.KillRequest, timeout time.Duration) error
	Publish(*hot.Table)
}

// Arbiter is the loop's part of [hot.Arbiter].
type Arbiter interface {
	Alarms() <-chan lanes.Alarm
	TakeKills(list []hot.Kill) (_ []hot.Kill, generation uint64)
	TakeActNow(signal.ThresholdID) bool
	Acquire(generation uint64) bool
	Steal(generation uint64) bool
	Valid(generation uint64) bool
}

// Watchdog decides by the published table when the loop has not iterated for too long.
type Watchdog interface {
	Reset()
	Publish(*hot.Table)
}

// Observer is called after each iteration, on the loop's goroutine.
type Observer interface {
	// Stepped is called after a step, Unchanged after an iteration without one.
	Stepped(*View)
	Unchanged(*View)
}

// progressBuffer is how many reports of the actuators can wait for the loop. If one is
// dropped, the loop finds the end of the victim by its cgroup.
const progressBuffer = 1024

// New returns a Loop. It subscribes to the reports of its Executor.
func New(o Options) *Loop {
	l := &Loop{
		log: o.Log, config: o.Config, policy: o.Config.Policy(o.Disks.Layout()), state: o.State,
		memory: o.Memory, inventory: o.Inventory, disks: o.Disks, tasks: o.Tasks, usage: o.DiskUsage,
		reclaimer: o.Reclaimer, largestDirectories: o.LargestDirectories, lanes: o.Lanes, modeFacts: o.ModeFacts, kubeletThresholds: o.KubeletThresholds, onLayoutChange: o.OnLayoutChange,
		reclaimStalls: stallDetector{proc: o.Procfs, tree: o.Hierarchy}, drift: o.Drift, hot: o.Hot, arbiter: o.Arbiter, watchdog: o.Watchdog, liveness: o.Liveness,
		killHandles: newHandleCache(o.OpenHandle, o.Procfs), ownKiller: o.Killer, ownDryRun: o.DryRunKiller,
		execute: o.Execute, records: o.Execute.Records(), observer: o.Observer,
		newPods: o.Arrivals, refuse: o.Refuse, hasOrder: o.Ordered,
		reloads: make(chan reload), progress: make(chan act.Progress, progressBuffer),
		toResume: map[string]bool{},
	}
	for _, v := range o.State.Victims {
		l.toResume[v.UID] = v.Status != evict.Failed
	}
	o.Execute.Subscribe(func(r execute.Report) {
		select {
		case l.progress <- r.Progress:
		default:
		}
	})
	return l
}

// Close closes the kill handles. It must not be called during Run.
func (l *Loop) Close() error { return l.killHandles.close() }
