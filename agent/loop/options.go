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

// Options are all that a Loop needs.
type Options struct {
	Log    *slog.Logger
	Config *config.Config // in force until Reload
	// State is the decision's state of an earlier run; the eviction of each of its
	// victims that had not failed is resumed.
	State evict.State

	Memory    Memory
	Inventory Inventory
	Disks     Disks
	Tasks     Tasks
	DiskUsage *DiskUsage
	Reclaimer Reclaimer
	// Largest returns the largest directories outside the pods on the filesystem of
	// a disk signal. It must not block.
	Largest func(signal.Signal) []evict.DirectoryUsage
	Lanes   Lanes
	// Facts returns what the mode depends on, except what a snapshot of the pods and
	// the configuration say.
	Facts func(*config.Config) Facts
	// Rearm is called with the policy when the layout of the filesystems has changed.
	Rearm func(*evict.Policy)
	// Procfs and Hierarchy are where pressure and the processes of pods are read.
	Procfs    kernel.FS
	Hierarchy *cgroup.Hierarchy
	// Drift is how much memory per-CPU counters may hide, in bytes.
	Drift int64

	Hot      HotPath
	Desk     Desk
	Watchdog Watchdog
	Liveness *Liveness
	// Prepare opens what is needed to kill the pod of a job.
	Prepare func(act.Job) (*act.Hold, error)
	// Strike kills where the hot path does not answer; Look does the same for dry run.
	Strike, Look hot.Striker

	Execute  *execute.Executor
	Observer Observer
}

// Memory reads the node's memory.
type Memory interface {
	Read(now time.Time, into *signal.Observations) memory.Node
}

// Inventory is what runs on the node.
type Inventory interface {
	Changed() <-chan struct{}
	Refresh()
	Tried() time.Time
	Measure(now time.Time) pods.Snapshot
	Still(now time.Time) (s pods.Snapshot, ok bool)
	Forget(uids ...string)
	Guard() *evict.Guard
	Outside(n int) []evict.CgroupUsage
}

// Disks watches the filesystems.
type Disks interface {
	Read(now time.Time, into *signal.Observations)
	Crossed() <-chan struct{}
	Layout() evict.Layout
}

// Tasks watches the node's tasks.
type Tasks interface {
	Read(now time.Time, into *signal.Observations)
	Crossed() <-chan struct{}
	Pods() (tasks int64, ok bool)
}

// Reclaimer frees disk space without evicting pods.
type Reclaimer interface {
	Order(evict.Reclaim)
	Done() <-chan evict.ReclaimReport
	Evicted(sandboxID string, held reclaim.Held)
	EvictedFromKubelet(uid string, held reclaim.Held)
	Revived(uid string)
	Spared(sandboxID string)
	ImageBytes() map[string]int64
}

// Lanes receive each reading of memory, and report where tasks stall on memory.
type Lanes interface {
	Seen(now time.Time, o *signal.Observations)
	Stalls() []lanes.Stall
}

// HotPath kills the pods of an order on its own thread, and decides by the last
// table for alarms.
type HotPath interface {
	Execute(ctx context.Context, o *hot.Order, patience time.Duration) error
	Publish(*hot.Table)
}

// Desk is the loop's part of [hot.Desk].
type Desk interface {
	News() <-chan lanes.Raise
	Kills(list []hot.Kill) (_ []hot.Kill, generation uint64)
	TakeAnswered(signal.Mark) bool
	Claim(generation uint64) bool
	Seize(generation uint64) bool
	Current(generation uint64) bool
}

// Watchdog acts where the loop does not.
type Watchdog interface {
	Rewind()
	Publish(*hot.Table)
}

// Observer is called after each iteration, on the loop's goroutine.
type Observer interface {
	// Stepped follows every step, Looked every iteration that took none.
	Stepped(*View)
	Looked(*View)
}

// progressBuffer is how many reports of the actuators wait for the loop. Of those
// that do not fit it learns when the pod is gone.
const progressBuffer = 1024

// New returns a Loop. It subscribes to the reports of its Executor.
func New(o Options) *Loop {
	l := &Loop{
		log: o.Log, config: o.Config, policy: o.Config.Policy(o.Disks.Layout()), state: o.State,
		memory: o.Memory, inventory: o.Inventory, disks: o.Disks, tasks: o.Tasks, usage: o.DiskUsage,
		reclaimer: o.Reclaimer, largest: o.Largest, lanes: o.Lanes, facts: o.Facts, rearm: o.Rearm,
		stalls: stalls{proc: o.Procfs, tree: o.Hierarchy}, drift: o.Drift, hot: o.Hot, desk: o.Desk, watchdog: o.Watchdog, liveness: o.Liveness,
		holds: newHolds(o.Prepare, o.Procfs), own: o.Strike, ownLook: o.Look,
		execute: o.Execute, records: o.Execute.Records(), observer: o.Observer,
		reloads: make(chan reload), progress: make(chan act.Progress, progressBuffer),
		unfinished: map[string]bool{},
	}
	for _, v := range o.State.Victims {
		l.unfinished[v.UID] = v.Status != evict.Failed
	}
	o.Execute.Subscribe(func(r execute.Report) {
		select {
		case l.progress <- r.Progress:
		default:
		}
	})
	return l
}

// Close gives up what is held of the pods. It must not be called while Run runs.
func (l *Loop) Close() error { return l.holds.close() }
