package loop

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/disks"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/hot"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/reclaim"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

const gi = int64(1) << 30

// node is a node that the loop runs on: its kernel, its runtime and the hot path
// are fakes, the decision, the Executor and the records are the real ones. What a
// pod uses is missing from what is available; a pod that is killed has gone after
// dying, unless it survives.
type node struct {
	t *testing.T
	*Loop
	hierarchy *cgroup.Hierarchy
	proc      string

	mu       sync.Mutex
	pods     []evict.Pod
	handles  map[string]pods.Handle
	listed   time.Time // of the last list
	asked    time.Time // when it was asked for
	version  uint64
	changed  chan struct{}
	unlisted evict.Pod // one that the next list brings
	slow     time.Duration
	absent   bool // the runtime gives no list
	still    bool // Still works, as with a walk
	forgot   []string
	used     int64         // of memory, by others than pods
	cache    int64         // active file cache
	age      time.Duration // of the pods' files, until they are forgotten
	layout   evict.Layout
	kubelet  bool // made a sandbox
	observed map[signal.Signal]signal.Observation
	dying    time.Duration
	dead     []string
	survives map[string]bool
	refuses  map[string]error
	facts    Facts

	hot    fakeHot
	desk   fakeDesk
	stalls []lanes.Stall
	calls  []string // of actuators, the reclaimer and strikers
	log    syncBuffer
	views  []*View
	looked int
	result chan reclaim.Report
	disk   chan struct{}
	report func(act.Progress)
	done   chan struct{}
	work   sync.WaitGroup
}

// syncBuffer is a bytes.Buffer for several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

const (
	capacity = 16 * gi
	settings = "evictionHard: {memory.available: 1Gi, nodefs.available: 1Gi, pid.available: \"100\"}\n"
)

func parse(t *testing.T, settings string) *config.Config {
	t.Helper()
	cfg, err := config.Parse("f.yaml", []byte("apiVersion: evictd.io/v1alpha1\nkind: AgentConfiguration\n"+settings))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// newNode returns a node with a Loop that does not run yet. change may change the
// node and its options before the Loop is made.
func newNode(t *testing.T, settings string, change ...func(*node, *Options)) *node {
	t.Helper()
	tree := kerneltest.Tree(t, map[string]string{
		"memory/memory.usage_in_bytes": "1\n", "memory/memory.limit_in_bytes": "1\n", "memory/memory.stat": "\n", "memory/cgroup.procs": "",
	})
	h, err := cgroup.Find(kernel.FS(tree))
	if err != nil {
		t.Fatal(err)
	}
	n := &node{
		t: t, hierarchy: h, proc: t.TempDir(), handles: map[string]pods.Handle{}, changed: make(chan struct{}), dying: 20 * time.Millisecond,
		survives: map[string]bool{}, refuses: map[string]error{}, observed: map[signal.Signal]signal.Observation{},
		result: make(chan reclaim.Report, 1), disk: make(chan struct{}, 1), done: make(chan struct{}),
	}
	n.desk.news = make(chan lanes.Raise, 1)
	n.hot.node = n
	n.observed[signal.NodeFsAvailable] = signal.Observation{Status: signal.Observed, Available: 100 * gi, Capacity: 200 * gi}
	n.observed[signal.PIDAvailable] = signal.Observation{Status: signal.Observed, Available: 30_000, Capacity: 32_000}
	cfg := parse(t, settings)
	o := Options{
		Log: slog.New(slog.NewTextHandler(&n.log, nil)), Config: cfg,
		Memory: memory{n}, Inventory: inventory{n}, Disks: watch{n: n}, Tasks: watch{n: n, tasks: true}, DiskUsage: NewDiskUsage(usages{n}),
		Reclaimer: reclaimer{n}, Lanes: fakeLanes{n}, Facts: func(*config.Config) Facts { return n.facts }, Rearm: func(*evict.Policy) { n.note("rearm") },
		Largest: func(signal.Signal) []evict.DirectoryUsage { return []evict.DirectoryUsage{{Path: "/big", Bytes: 7}} },
		Procfs:  kernel.FS(n.proc), Hot: &n.hot, Desk: &n.desk, Watchdog: watchdog{}, Liveness: &Liveness{},
		Prepare: func(j act.Job) (*act.Hold, error) { return act.Prepare(h, kernel.FS(n.proc), j) },
		Strike:  striker{n, "strike"}, Look: striker{n, "look"}, Observer: n,
	}
	o.Execute = execute.New(execute.Options{
		Killer: func(report func(act.Progress)) act.Actuator {
			n.report = report
			return actuator{n, ""}
		},
		DryRun:  func(report func(act.Progress)) act.Actuator { return dryRun{n, report} },
		Records: &execute.Records{}, Log: o.Log, Metrics: n, Save: func() {},
	})
	for _, f := range change {
		f(n, &o)
	}
	if !n.absent {
		n.listed, n.asked = time.Now(), time.Now()
	}
	n.Loop = New(o)
	t.Cleanup(func() { n.Loop.Close() })
	return n
}

// start lets the loop run until stop is called.
func (n *node) start() (stop func()) {
	ctx, cancel := context.WithCancel(n.t.Context())
	go func() {
		defer close(n.done)
		n.Run(ctx)
	}()
	synctest.Wait()
	return func() {
		cancel()
		<-n.done
		n.work.Wait()
	}
}

// pass lets time pass. What the test has read until then is read before what the
// loop, which takes the mutex at every iteration, writes meanwhile.
func (n *node) pass(d time.Duration) {
	n.runs("") // takes the mutex
	time.Sleep(d)
	synctest.Wait()
}

func (n *node) note(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, fmt.Sprintf(format, args...))
}

// took returns what was called since the last time.
func (n *node) took() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	calls := n.calls
	n.calls = nil
	return calls
}

// add has a pod run that uses anonymous memory, in bytes. In the fake tree its
// container has a cgroup without processes.
func (n *node) add(uid string, memory int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods = append(n.pods, n.pod(uid, memory))
	slices.SortFunc(n.pods, func(a, b evict.Pod) int { return strings.Compare(a.UID, b.UID) })
	n.version++
}

func (n *node) pod(uid string, memory int64) evict.Pod {
	n.t.Helper()
	path := "/" + uid
	kerneltest.Write(n.t, n.hierarchy.Memory.Path(path), map[string]string{
		"memory.usage_in_bytes": fmt.Sprintln(memory), "memory.limit_in_bytes": "9223372036854771712\n", "memory.stat": fmt.Sprintf("total_rss %d\n", memory), "cgroup.procs": "",
	})
	info, err := os.Stat(n.hierarchy.Memory.Path(path))
	if err != nil {
		n.t.Fatal(err)
	}
	n.handles[uid] = pods.Handle{SandboxID: "s-" + uid, Owned: true, Containers: []pods.ContainerHandle{
		{ID: "c-" + uid, Name: "main", Cgroup: path, CgroupID: info.Sys().(*syscall.Stat_t).Ino},
	}}
	return evict.Pod{
		UID: uid, Namespace: "default", Name: uid, HasStats: true, Usage: evict.PodUsage{Memory: memory, Freeable: memory, PIDs: 1},
		Containers: []evict.Container{{Name: "main", Usage: evict.ContainerUsage{Memory: memory}}},
	}
}

// grow changes what a pod uses.
func (n *node) grow(uid string, memory int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.version++
	n.pods = slices.Clone(n.pods)
	for i := range n.pods {
		if p := &n.pods[i]; p.UID == uid {
			p.Usage.Memory, p.Usage.Freeable = memory, memory
			p.Containers = []evict.Container{{Name: "main", Usage: evict.ContainerUsage{Memory: memory}}}
		}
	}
}

// alarm raises for the node's memory.
func (n *node) alarm() {
	n.desk.news <- lanes.Raise{Lane: lanes.BPF, Seen: time.Now(), LastAbove: time.Now().Add(-time.Millisecond)}
	synctest.Wait()
}

// die lets the processes of a pod go. The next list lacks the pod.
func (n *node) die(uid string) {
	time.Sleep(n.dying)
	n.mu.Lock()
	survives := n.survives[uid]
	n.dead = append(n.dead, uid)
	n.mu.Unlock()
	if survives {
		return
	}
	n.grow(uid, 0)
	n.report(act.Progress{UID: uid, Stage: act.LastGone, Time: time.Now()})
	n.report(act.Progress{UID: uid, Stage: act.Finished, Time: time.Now(), Processes: 1})
}

func (n *node) runs(uid string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.pods, func(p evict.Pod) bool { return p.UID == uid })
}

// record returns the only record of a pod.
func (n *node) record(uid string) evict.Record {
	n.t.Helper()
	var found []evict.Record
	for _, r := range n.records.List() {
		if r.UID == uid {
			found = append(found, r)
		}
	}
	if len(found) != 1 {
		n.t.Errorf("%d records of %s; want 1: %+v", len(found), uid, n.records.List())
		return evict.Record{}
	}
	return found[0]
}

// Stepped implements Observer.
func (n *node) Stepped(v *View) { n.views = append(n.views, v) }

// Looked implements Observer.
func (n *node) Looked(v *View) { n.looked++ }

// Evicted implements execute.Metrics.
func (n *node) Evicted(*evict.Record) {}

// last is the view of the last step.
func (n *node) last() *View { return n.views[len(n.views)-1] }

// memory reads the node's memory.
type memory struct{ n *node }

func (m memory) Read(now time.Time, into *signal.Observations) lanes.NodeMemory {
	m.n.mu.Lock()
	defer m.n.mu.Unlock()
	sum := m.n.unlisted.Usage.Memory
	for i := range m.n.pods {
		sum += m.n.pods[i].Usage.Memory
	}
	into[signal.MemoryAvailable] = signal.Observation{Status: signal.Observed, Capacity: capacity, Available: capacity - m.n.used - m.n.cache - sum, Cache: m.n.cache, Time: now}
	return lanes.NodeMemory{Total: uint64(capacity), Kubepods: sum, KubepodsUsage: sum, KubepodsKnown: true}
}

// inventory lists the node's pods.
type inventory struct{ n *node }

func (i inventory) Changed() <-chan struct{} {
	i.n.mu.Lock()
	defer i.n.mu.Unlock()
	return i.n.changed
}

// Refresh asks for a list, which comes when the runtime is that slow.
func (i inventory) Refresh() {
	n, asked := i.n, time.Now()
	n.work.Go(func() {
		time.Sleep(n.slow)
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.absent {
			return
		}
		n.listed, n.asked = time.Now(), asked
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

func (i inventory) Tried() time.Time {
	i.n.mu.Lock()
	defer i.n.mu.Unlock()
	return i.n.asked
}

func (i inventory) Measure(now time.Time) pods.Snapshot {
	i.n.mu.Lock()
	defer i.n.mu.Unlock()
	s := pods.Snapshot{
		Pods: slices.Clone(i.n.pods), Handles: map[string]pods.Handle{}, Version: i.n.version, Walked: i.n.still,
		Listed: i.n.listed, Asked: i.n.asked, Tried: i.n.asked, Taken: now, KubeletPods: i.n.kubelet,
	}
	for k := range s.Pods {
		read := now
		if !slices.Contains(i.n.forgot, s.Pods[k].UID) {
			read = now.Add(-i.n.age)
		}
		s.Read = append(s.Read, read)
		s.Handles[s.Pods[k].UID] = i.n.handles[s.Pods[k].UID]
	}
	return s
}

func (i inventory) Still(now time.Time) (pods.Snapshot, bool) {
	if !i.n.still {
		return pods.Snapshot{}, false
	}
	return i.Measure(now), true
}

func (i inventory) Forget(uids ...string) {
	i.n.mu.Lock()
	defer i.n.mu.Unlock()
	i.n.forgot = append(i.n.forgot, uids...)
}

func (inventory) Guard() pods.Guard { return pods.Guard{} }

func (inventory) Outside(n int) []evict.CgroupUsage {
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

func (w watch) Pods() (int64, bool) {
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

// usages measures 10 GiB of disk for each pod.
type usages struct{ n *node }

func (usages) Want([]disks.Subject, bool) {}
func (usages) Version() uint64            { return 1 }
func (usages) Of(s *disks.Subject) disks.Holding {
	layer := disks.Measured{}
	layer.Bytes = uint64(10 * gi)
	return disks.Holding{Known: true, Layers: map[string]disks.Measured{"c-" + s.UID: layer}}
}

// reclaimer frees nothing by itself.
type reclaimer struct{ n *node }

func (r reclaimer) Order(o evict.Reclaim)             { r.n.note("reclaim %s", o.Signal) }
func (r reclaimer) Done() <-chan reclaim.Report       { return r.n.result }
func (reclaimer) ImageBytes() map[string]int64        { return nil }
func (r reclaimer) Spared(id string)                  { r.n.note("spared %s", id) }
func (r reclaimer) Evicted(id string, h reclaim.Held) { r.n.note("evicted %s %d", id, h.Amount) }

// fakeLanes reports where tasks stall.
type fakeLanes struct{ n *node }

func (fakeLanes) Seen(time.Time, *signal.Observations) {}
func (f fakeLanes) Stalls() []lanes.Stall {
	f.n.mu.Lock()
	defer f.n.mu.Unlock()
	return slices.Clone(f.n.stalls)
}

type watchdog struct{}

func (watchdog) Rewind()            {}
func (watchdog) Publish(*hot.Table) {}

// fakeHot is the hot path's thread: it kills what it is ordered to, or hangs.
type fakeHot struct {
	node  *node
	hangs bool
	table *hot.Table
}

func (f *fakeHot) Execute(_ context.Context, o *hot.Order, patience time.Duration) error {
	if f.hangs {
		time.Sleep(patience)
		o.Strikes = make([]act.Strike, len(o.Pods))
		return hot.ErrBusy
	}
	for _, p := range o.Pods {
		uid := strings.TrimPrefix(p.(*act.Hold).Job().SandboxID, "s-")
		f.node.note("hot %s dry run %t", uid, o.DryRun)
		strike := act.Strike{Processes: 1}
		if err := f.node.refuses[uid]; err != nil {
			strike = act.Strike{Err: err}
		}
		o.Strikes = append(o.Strikes, strike)
	}
	return nil
}

func (f *fakeHot) Publish(t *hot.Table) { f.table = t }

// fakeDesk hands over what the hot path did.
type fakeDesk struct {
	news       chan lanes.Raise
	kills      []hot.Kill
	generation uint64
	answered   map[lanes.Mark]bool
	lost       int  // claims that fail, because of a kill
	hung       bool // no claim succeeds, only Seize
	seized     int
}

func (d *fakeDesk) News() <-chan lanes.Raise { return d.news }

func (d *fakeDesk) Kills(list []hot.Kill) ([]hot.Kill, uint64) {
	list = append(list, d.kills...)
	d.kills = nil
	return list, d.generation
}

func (d *fakeDesk) TakeAnswered(m lanes.Mark) bool {
	a := d.answered[m]
	delete(d.answered, m)
	return a
}

func (d *fakeDesk) Claim(generation uint64) bool {
	if d.hung || generation != d.generation {
		return false
	}
	if d.lost > 0 {
		d.lost--
		d.generation++
		return false
	}
	d.generation++
	return true
}

func (d *fakeDesk) Seize(generation uint64) bool {
	if generation != d.generation {
		return false
	}
	d.generation += 2
	d.hung = false
	d.seized++
	return true
}

func (d *fakeDesk) Current(generation uint64) bool { return generation == d.generation }

// striker is the loop's own way to kill.
type striker struct {
	n    *node
	name string
}

func (s striker) Strike(p hot.Pod, _ *act.Guard) act.Strike {
	s.n.note("%s %s", s.name, strings.TrimPrefix(p.(*act.Hold).Job().SandboxID, "s-"))
	return act.Strike{Processes: 1}
}

// actuator is the kernel and the runtime of a node that kill pods.
type actuator struct {
	n      *node
	prefix string
}

func (a actuator) Evict(_ context.Context, j act.Job) {
	n, uid := a.n, j.Order.UID
	n.note("evict %s hard %t grace %v", uid, j.Order.Hard, j.Order.Grace)
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

func (a actuator) Follow(_ context.Context, o evict.Order, h *act.Hold, s act.Strike) {
	defer h.Close()
	a.n.note("follow %s", o.UID)
	if s.Err != nil {
		a.n.report(act.Progress{UID: o.UID, Stage: act.Refused, Time: time.Now(), Err: s.Err})
		return
	}
	a.n.report(act.Progress{UID: o.UID, Stage: act.Signalled, Time: time.Now(), Processes: s.Processes})
	a.n.work.Go(func() { a.n.die(o.UID) })
}

func (a actuator) Harden(_ context.Context, j act.Job) {
	a.n.note("harden %s", j.Order.UID)
	a.n.report(act.Progress{UID: j.Order.UID, Stage: act.Hardened, Time: time.Now()})
	a.n.work.Go(func() { a.n.die(j.Order.UID) })
}

// dryRun reports and touches nothing.
type dryRun struct {
	n      *node
	report func(act.Progress)
}

func (d dryRun) Evict(_ context.Context, j act.Job) {
	d.n.note("dry run: evict %s", j.Order.UID)
	d.report(act.Progress{UID: j.Order.UID, Stage: act.Finished, Time: time.Now(), Processes: 1})
}

func (d dryRun) Follow(_ context.Context, o evict.Order, h *act.Hold, _ act.Strike) {
	defer h.Close()
	d.n.note("dry run: follow %s", o.UID)
	d.report(act.Progress{UID: o.UID, Stage: act.Finished, Time: time.Now(), Processes: 1})
}

func (d dryRun) Harden(_ context.Context, j act.Job) { d.n.note("dry run: harden %s", j.Order.UID) }

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
