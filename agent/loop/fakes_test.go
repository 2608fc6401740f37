package loop

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/disks"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/hot"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/reclaim"
	"github.com/evictd/evictd/agent/signal"
)

// fakeMemory returns the node's memory.
type fakeMemory struct{ n *node }

func (m fakeMemory) Read(now time.Time, into *signal.Observations) memory.Node {
	time.Sleep(m.n.reading)
	m.n.mu.Lock()
	defer m.n.mu.Unlock()
	sum := m.n.unlisted.Usage.Memory
	for i := range m.n.pods {
		sum += m.n.pods[i].Usage.Memory
	}
	into[signal.MemoryAvailable] = signal.Observation{Status: signal.Observed, Capacity: capacity, Available: capacity - m.n.used - m.n.cache - sum, Cache: m.n.cache, Time: now}
	return memory.Node{Total: uint64(capacity), Kubepods: sum, KubepodsUsage: sum, KubepodsKnown: true}
}

// inventory lists the node's pods.
type inventory struct{ n *node }

func (i inventory) Changed() <-chan struct{} {
	i.n.mu.Lock()
	defer i.n.mu.Unlock()
	return i.n.changed
}

// Refresh requests a list, which comes after listDelay.
func (i inventory) Refresh() {
	n, requested := i.n, time.Now()
	n.work.Go(func() {
		time.Sleep(n.listDelay)
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.noList {
			return
		}
		n.listed, n.requested = time.Now(), requested
		n.version++
		n.pods = slices.DeleteFunc(slices.Clone(n.pods), func(p evict.Pod) bool { return slices.Contains(n.dead, p.UID) && !n.survives[p.UID] })
		if n.unlisted.UID != "" {
			n.pods = append(slices.Clone(n.pods), n.unlisted)
			n.unlisted = evict.Pod{}
		}
		close(n.changed)
		n.changed = make(chan struct{})
	})
}

func (i inventory) LastAttempt() time.Time {
	i.n.mu.Lock()
	defer i.n.mu.Unlock()
	return i.n.requested
}

func (i inventory) Measure(now time.Time) pods.Snapshot {
	i.n.mu.Lock()
	defer i.n.mu.Unlock()
	s := pods.Snapshot{
		Pods: slices.Clone(i.n.pods), Handles: map[string]pods.Handle{}, Version: i.n.version, Walked: i.n.unchanged,
		Listed: i.n.listed, ListRequested: i.n.requested, LastAttempt: i.n.requested, Taken: now, Kubelet: evict.Kubelet{Known: true, HasSandboxes: i.n.kubelet},
	}
	if s.Listed.IsZero() {
		s.Pods = nil
	}
	for k := range s.Pods {
		read := now
		if !slices.Contains(i.n.readingsDropped, s.Pods[k].UID) {
			read = now.Add(-i.n.readingsAge)
		}
		s.ReadAt = append(s.ReadAt, read)
		s.Handles[s.Pods[k].UID] = i.n.handles[s.Pods[k].UID]
	}
	return s
}

func (i inventory) MeasureUnchanged(now time.Time) (pods.Snapshot, bool) {
	if !i.n.unchanged {
		return pods.Snapshot{}, false
	}
	return i.Measure(now), true
}

func (i inventory) InvalidateReadings(uids ...string) {
	i.n.mu.Lock()
	defer i.n.mu.Unlock()
	i.n.readingsDropped = append(i.n.readingsDropped, uids...)
}

func (inventory) Guard() *evict.Guard { return &evict.Guard{Protected: map[int]string{1: "pid 1"}} }

// wantGuard fails the test if a kill, or its preparation, does not get the inventory's guard.
func (n *node) wantGuard(by string, g *evict.Guard) {
	if g == nil || g.Protected[1] == "" {
		n.t.Errorf("%s: guard = %+v; want the inventory's", by, g)
	}
}

func (inventory) SystemCgroups(n int) []evict.CgroupUsage {
	return []evict.CgroupUsage{{Cgroup: "/system.slice/big", Memory: 12 * gi}}
}

// watch observes the disks, or else the tasks.
type watch struct {
	n     *node
	tasks bool
}

func (w watch) Read(now time.Time, into *signal.Observations) {
	w.n.mu.Lock()
	defer w.n.mu.Unlock()
	for s, o := range w.n.observed {
		if s.IsDisk() != w.tasks {
			o.Time = now
			into[s] = o
		}
	}
}

func (w watch) Crossed() <-chan struct{} {
	if w.tasks {
		return nil
	}
	return w.n.disk
}

func (w watch) Layout() evict.Layout {
	w.n.mu.Lock()
	defer w.n.mu.Unlock()
	return w.n.layout
}

func (w watch) PodTasks() (int64, bool) {
	w.n.mu.Lock()
	defer w.n.mu.Unlock()
	sum := w.n.unlisted.Usage.PIDs
	for i := range w.n.pods {
		sum += w.n.pods[i].Usage.PIDs + 1
	}
	return sum, true
}

// observe changes a reading of the disks or the tasks.
func (n *node) observe(s signal.Signal, available int64) {
	n.mu.Lock()
	o := n.observed[s]
	o.Available = available
	n.observed[s] = o
	n.mu.Unlock()
	select {
	case n.disk <- struct{}{}:
	default:
	}
}

// usageMeter returns 10 GiB of disk usage for each pod.
type usageMeter struct{ n *node }

func (usageMeter) SetPods([]disks.Pod, bool) {}
func (usageMeter) Version() uint64           { return 1 }
func (usageMeter) Usage(s *disks.Pod) disks.PodUsage {
	layer := disks.Measurement{}
	layer.Bytes = uint64(10 * gi)
	return disks.PodUsage{Known: true, Layers: map[string]disks.Measurement{"c-" + s.UID: layer}}
}

// reclaimer frees nothing; tests send its reports.
type reclaimer struct{ n *node }

func (r reclaimer) Start(o evict.Reclaim)               { r.n.note("reclaim %s", o.Signal) }
func (r reclaimer) Done() <-chan evict.ReclaimReport    { return r.n.result }
func (reclaimer) ExclusiveImageBytes() map[string]int64 { return nil }
func (r reclaimer) NotEvicted(id string)                { r.n.note("not evicted %s", id) }
func (r reclaimer) EvictedFromKubelet(uid string, h reclaim.EvictedUsage) {
	r.n.note("kubelet's %d", h.Amount)
}
func (r reclaimer) Revived(uid string) { r.n.note("revived %s", uid) }
func (r reclaimer) Evicted(id string, h reclaim.EvictedUsage) {
	r.n.note("evicted %s %d", id, h.Amount)
}

// fakeLanes reports the stalls of the node.
type fakeLanes struct{ n *node }

func (f fakeLanes) Observe(_ time.Time, o *signal.Observations) {
	f.n.mu.Lock()
	defer f.n.mu.Unlock()
	if o[signal.MemoryAvailable].Status == signal.Observed {
		f.n.seen++
	}
}
func (f fakeLanes) Stalls() []lanes.Stall {
	f.n.mu.Lock()
	defer f.n.mu.Unlock()
	return slices.Clone(f.n.stalls)
}

// watchdog keeps the last table, and counts its resets.
type watchdog struct {
	table  *hot.Table
	resets int
}

func (w *watchdog) Reset()               { w.resets++ }
func (w *watchdog) Publish(t *hot.Table) { w.table = t }

// fakeHot is the hot path's thread: it kills the pods of an order, or hangs.
type fakeHot struct {
	node  *node
	hangs bool
	table *hot.Table
}

func (f *fakeHot) Execute(ctx context.Context, r *hot.KillRequest, timeout time.Duration) error {
	if f.hangs {
		select {
		case <-time.After(timeout):
		case <-ctx.Done():
		}
		r.Results = make([]act.KillResult, len(r.Handles))
		return hot.ErrBusy
	}
	f.node.wantGuard("hot path", r.Guard)
	for _, h := range r.Handles {
		uid := strings.TrimPrefix(h.(*act.KillHandle).Job().SandboxID, "s-")
		f.node.note("hot %s dry run %t", uid, r.DryRun)
		result := act.KillResult{Processes: 1}
		if err := f.node.refuses[uid]; err != nil {
			result = act.KillResult{Err: err}
		}
		r.Results = append(r.Results, result)
	}
	return nil
}

func (f *fakeHot) Publish(t *hot.Table) {
	f.table = t
	f.node.wantGuard("table", t.Guard)
	for i := range t.Rows {
		if h := t.Rows[i].Handle; h != nil {
			if !h.Ref() {
				f.node.t.Errorf("table: the handle of %s is closed", t.Pods[i].UID)
				continue
			}
			h.Unref()
		}
	}
}

// fakeArbiter has the kills of the hot path.
type fakeArbiter struct {
	alarms         chan lanes.Alarm
	kills          []hot.Kill
	generation     uint64
	answered       map[signal.ThresholdID]bool
	dryRun         bool // of the kills
	failedAcquires int  // calls of Acquire that fail, because of a kill
	neverAcquires  bool // no Acquire succeeds, only Steal
	steals         int
}

func (f *fakeArbiter) Alarms() <-chan lanes.Alarm { return f.alarms }

func (f *fakeArbiter) TakeKills(list []hot.Kill) ([]hot.Kill, uint64) {
	list = append(list, f.kills...)
	f.kills = nil
	return list, f.generation
}

func (f *fakeArbiter) TakeActNow(m signal.ThresholdID) bool {
	a := f.answered[m]
	delete(f.answered, m)
	return a
}

func (f *fakeArbiter) Acquire(generation uint64) bool {
	if f.neverAcquires || generation != f.generation {
		return false
	}
	if f.failedAcquires > 0 {
		f.failedAcquires--
		f.generation++
		return false
	}
	f.generation++
	return true
}

func (f *fakeArbiter) Steal(generation uint64) bool {
	if generation != f.generation {
		return false
	}
	f.generation += 2
	f.neverAcquires = false
	f.steals++
	return true
}

func (f *fakeArbiter) Valid(generation uint64) bool { return generation == f.generation }

// fakeKiller is the loop's own way to kill.
type fakeKiller struct {
	n    *node
	name string
}

func (k fakeKiller) Kill(h hot.Handle, g *evict.Guard) act.KillResult {
	k.n.wantGuard(k.name, g)
	k.n.note("%s %s", k.name, strings.TrimPrefix(h.(*act.KillHandle).Job().SandboxID, "s-"))
	return act.KillResult{Processes: 1}
}

// actuator is the kernel and the runtime of a node that kill pods.
type actuator struct {
	n      *node
	prefix string
}

func (a actuator) Evict(_ context.Context, j act.Job) {
	n, uid := a.n, j.Order.UID
	n.wantGuard("evict", j.Guard)
	n.note("evict %s hard %t grace %v%s", uid, j.Order.Hard, j.Order.Grace, reported(j))
	if err := n.refuses[uid]; err != nil {
		n.report(act.Progress{UID: uid, Stage: act.Refused, Time: time.Now(), Err: err})
		return
	}
	n.report(act.Progress{UID: uid, Stage: act.Signalled, Time: time.Now()})
	n.work.Go(func() {
		if !j.Order.Hard {
			time.Sleep(j.Order.Grace)
		}
		n.die(uid)
	})
}

// reported marks a job that evictd-kube reports.
func reported(j act.Job) string {
	if j.Reported {
		return " reported"
	}
	return ""
}

func (a actuator) Follow(_ context.Context, j act.Job, h *act.KillHandle, s act.KillResult) {
	defer h.Close()
	uid := j.Order.UID
	a.n.wantGuard("follow", j.Guard)
	a.n.note("follow %s%s", uid, reported(j))
	if s.Err != nil {
		a.n.report(act.Progress{UID: uid, Stage: act.Refused, Time: time.Now(), Err: s.Err})
		return
	}
	a.n.report(act.Progress{UID: uid, Stage: act.Signalled, Time: time.Now(), Processes: s.Processes})
	a.n.work.Go(func() { a.n.die(uid) })
}

func (a actuator) Escalate(_ context.Context, j act.Job) {
	a.n.note("escalate %s%s", j.Order.UID, reported(j))
	a.n.wantGuard("escalate", j.Guard)
	a.n.report(act.Progress{UID: j.Order.UID, Stage: act.Escalated, Time: time.Now()})
	a.n.work.Go(func() { a.n.die(j.Order.UID) })
}

// dryRun reports and touches nothing.
type dryRun struct {
	n      *node
	report func(act.Progress)
}

func (d dryRun) Evict(_ context.Context, j act.Job) {
	d.n.note("dry run: evict %s%s", j.Order.UID, reported(j))
	d.n.wantGuard("dry run", j.Guard)
	d.report(act.Progress{UID: j.Order.UID, Stage: act.Finished, Time: time.Now(), Processes: 1})
}

func (d dryRun) Follow(_ context.Context, j act.Job, h *act.KillHandle, s act.KillResult) {
	defer h.Close()
	d.n.note("dry run: follow %s%s", j.Order.UID, reported(j))
	stage := act.Finished
	if s.Err != nil {
		stage = act.Refused
	}
	d.report(act.Progress{UID: j.Order.UID, Stage: stage, Time: time.Now(), Processes: s.Processes, Err: s.Err})
}

func (d dryRun) Escalate(_ context.Context, j act.Job) { d.n.note("dry run: escalate %s", j.Order.UID) }
