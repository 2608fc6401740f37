package agent

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/hot"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/process"
)

// buildHot makes the hot path and the watchdog beside it.
func (d *daemon) buildHot(memory lanes.MemoryOptions) error {
	var err error
	if d.reaper, err = act.NewReaper(); err != nil {
		return err
	}
	d.reaper.Started = d.giveRealTime
	d.closers = append(d.closers, d.reaper.Close)
	d.desk = hot.NewDesk()
	options := func() (hot.Options, error) {
		read, err := lanes.OpenApart(memory)
		if err != nil {
			return hot.Options{}, err
		}
		d.closers = append(d.closers, read.Close)
		d.apart = append(d.apart, read)
		kill, look := d.strikers()
		return hot.Options{Desk: d.desk, Read: read, Strike: kill, Look: look}, nil
	}
	forThread, err := options()
	if err != nil {
		return err
	}
	d.quick.Files = d.apart[0]
	forThread.Read = d.quick
	forThread.Started = func() {
		d.giveRealTime()
		d.rehearse(memory.Hierarchy, forThread)
	}
	d.lock = func(ctx context.Context) { d.lockMemory(ctx, memory.Hierarchy, forThread) }
	if d.hot, err = hot.New(forThread); err != nil {
		return err
	}
	d.closers = append(d.closers, d.hot.Close)
	forWatchdog, err := options()
	if err != nil {
		return err
	}
	if d.watchdog, err = hot.NewWatchdog(d.hot, forWatchdog, d.liveness.Last, d.liveness.SettleTimeout); err != nil {
		return err
	}
	d.closers = append(d.closers, d.watchdog.Close)
	return nil
}

// strikers makes a thread's own way to kill, and that of a dry run.
func (d *daemon) strikers() (kill, look striker) {
	kill, look = striker{act.NewStriker(d.reaper)}, striker{act.NewBlank()}
	d.closers = append(d.closers, kill.Close, look.Close)
	return kill, look
}

// startHot sets the hot path going, and the lane that is always there.
func (d *daemon) startHot(ctx context.Context, g *group) {
	for _, a := range d.apart {
		g.run("memory of the pods", func() error { return a.Run(ctx) })
	}
	g.run("collector", func() error { d.collectGarbage(ctx); return nil })
	g.run("reaper", func() error { d.reaper.Run(ctx); return nil })
	if d.killer.Urgent != nil {
		go d.killer.Urgent.Run(ctx) // nobody waits for it: it may hang with a kill
	}
	g.run("hot path", func() error { return d.hot.Run(ctx) })
	g.run("watchdog", func() error { return d.watchdog.Run(ctx) })
	alarms := make(chan lanes.Raise, 1)
	g.run("poll lane", func() error { return d.poll.Run(ctx, alarms) })
	g.run("alarms", func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case r := <-alarms:
				if err := d.hot.Raise(r); err != nil && ctx.Err() == nil {
					return err
				}
			}
		}
	})
}

// hotCounts tells how alarms were dealt with, and from what the readings were
// taken that confirmed them.
func (d *daemon) hotCounts() (alarms, readings map[string]uint64) {
	alarms = make(map[string]uint64, hot.Results)
	for r := range hot.Results {
		alarms[strings.ReplaceAll(r.String(), " ", "_")] = d.hot.Count(r) + d.watchdog.Count(r)
	}
	sampler, files := d.quick.Counts()
	return alarms, map[string]uint64{"sampler": sampler, "files": files}
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

// giveRealTime gives the calling thread its priority. Where that is not to be had
// evictd is slower under pressure, and no less right.
func (d *daemon) giveRealTime() {
	_, err := process.SetRTTimeLimit(process.RTTimeLimit{Soft: rtSoft, Hard: rtHard})
	if err == nil {
		_, err = process.SetFIFO(hotPriority)
	}
	if err != nil {
		d.log.Info("a thread of the hot path waits for a processor like any other process", "error", err)
	}
}

// rehearse goes the whole path at the cost of nobody: evictd's own cgroup stands
// in for a pod's.
func (d *daemon) rehearse(h *cgroup.Hierarchy, o hot.Options) {
	own, err := ownCgroup(kernel.FS(d.options.Procfs), h)
	if err != nil {
		d.log.Info("the hot path is not rehearsed", "error", err)
		return
	}
	if own.Cgroup == "/" {
		return // all processes of the node are in that
	}
	hold, err := act.Prepare(h, kernel.FS(d.options.Procfs), act.Job{Order: evict.Order{UID: "evictd"}, Containers: []act.Container{own}})
	if err != nil {
		d.log.Info("the hot path is not rehearsed", "error", err)
		return
	}
	defer hold.Close()
	if result := hot.Rehearse(o, hold); result != hot.Struck {
		d.log.Info("the rehearsal of the hot path did not come to its end", "result", result.String())
	}
}

// ownCgroup returns evictd's own cgroup as if it were a container's.
func ownCgroup(procfs kernel.FS, h *cgroup.Hierarchy) (act.Container, error) {
	membership, err := cgroup.Of(procfs, os.Getpid())
	if err != nil {
		return act.Container{}, err
	}
	path, err := membership.Memory(h)
	if err != nil {
		return act.Container{}, err
	}
	group, err := h.Open(path)
	if err != nil {
		return act.Container{}, err
	}
	defer group.Close()
	return act.Container{ID: "evictd", Name: "evictd", Cgroup: path, CgroupID: group.ID()}, nil
}

// leastProcs is how many threads may run Go code at once, whatever the cores: one
// that comes back from a wait must find a place free, also while others are busy.
const leastProcs = 8

// tuneRuntime sets Go's runtime up for a thread that must not wait for others.
func tuneRuntime() {
	runtime.GOMAXPROCS(max(leastProcs, runtime.GOMAXPROCS(0)))
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
}

// striker strikes what holds made.
type striker struct{ *act.Striker }

// Strike implements hot.Striker.
func (s striker) Strike(p hot.Pod, g *act.Guard) act.Strike {
	return s.Striker.Strike(p.(*act.Hold), g)
}
