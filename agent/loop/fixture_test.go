package loop

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/hot"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

const gi = int64(1) << 30

// node is a node that the loop runs on. Its kernel, its runtime and the hot path are
// fakes; the decision, the Executor and the records are real. What is available is the
// capacity without what the pods and others use. A killed pod has gone after dying,
// unless it is in survives.
type node struct {
	t *testing.T
	*Loop
	hierarchy *cgroup.Hierarchy
	proc      string

	mu              sync.Mutex
	pods            []evict.Pod
	handles         map[string]pods.Handle
	listed          time.Time // of the last list
	requested       time.Time // when it was requested
	version         uint64
	changed         chan struct{}
	unlisted        evict.Pod // one that the next list has
	listDelay       time.Duration
	noList          bool // the runtime gives no list
	unchanged       bool // MeasureUnchanged succeeds, as after a walk
	readingsDropped []string
	used            int64         // of memory, by others than pods
	cache           int64         // active file cache
	reading         time.Duration // how long a reading of memory takes
	readingsAge     time.Duration // until they are dropped
	layout          evict.Layout
	kubelet         bool // a kubelet owns a pod
	observed        map[signal.Signal]signal.Observation
	dying           time.Duration
	dead            []string
	survives        map[string]bool
	refuses         map[string]error
	facts           Facts

	hot                 fakeHot
	unprepared          bool // the hot path opens its own handles
	arbiter             fakeArbiter
	watchdog            watchdog
	stalls              []lanes.Stall
	seen                int      // readings of memory that the lanes have seen
	calls               []string // of actuators, the reclaimer and killers
	log                 syncBuffer
	views               []*View
	unchangedIterations int
	result              chan evict.ReclaimReport
	disk                chan struct{}
	report              func(act.Progress)
	done                chan struct{}
	work                sync.WaitGroup
}

type syncBuffer = kerneltest.Buffer

const (
	capacity = 16 * gi
	settings = "evictionHard: {memory.available: 1Gi, nodefs.available: 1Gi, pid.available: \"100\"}\n"
)

func parse(t *testing.T, settings string) *config.Config {
	t.Helper()
	dir := kerneltest.Tree(t, map[string]string{"f.yaml": "apiVersion: evictd.io/v1alpha1\nkind: AgentConfiguration\n" + settings})
	cfg, err := config.Load(config.Options{Path: filepath.Join(dir, "f.yaml"), PathGiven: true})
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
		result: make(chan evict.ReclaimReport, 1), disk: make(chan struct{}, 1), done: make(chan struct{}),
	}
	n.arbiter.alarms, n.arbiter.generation = make(chan lanes.Alarm, 1), 7
	n.hot.node = n
	n.observed[signal.NodeFsAvailable] = signal.Observation{Status: signal.Observed, Available: 100 * gi, Capacity: 200 * gi}
	n.observed[signal.PIDAvailable] = signal.Observation{Status: signal.Observed, Available: 30_000, Capacity: 32_000}
	cfg := parse(t, settings)
	o := Options{
		Log: slog.New(slog.NewTextHandler(&n.log, nil)), Config: cfg,
		Memory: fakeMemory{n}, Inventory: inventory{n}, Disks: watch{n: n}, Tasks: watch{n: n, tasks: true}, DiskUsage: NewDiskUsage(usageMeter{n}),
		Reclaimer: reclaimer{n}, Lanes: fakeLanes{n}, ModeFacts: n.modeFacts, OnLayoutChange: func(*evict.Policy) { n.note("layout changed") },
		LargestDirectories: func(signal.Signal) []evict.DirectoryUsage { return []evict.DirectoryUsage{{Path: "/big", Bytes: 7}} },
		Procfs:             kernel.FS(n.proc), Hot: &n.hot, Arbiter: &n.arbiter, Watchdog: &n.watchdog, Liveness: &Liveness{},
		OpenHandle: func(j act.Job) (*act.KillHandle, error) {
			n.wantGuard("open handle", j.Guard)
			return act.Prepare(h, kernel.FS(n.proc), j)
		},
		Killer: fakeKiller{n, "own kill"}, DryRunKiller: fakeKiller{n, "own dry run"}, Observer: n,
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
	if !n.noList {
		n.listed, n.requested = time.Now(), time.Now()
	}
	n.Loop = New(o)
	t.Cleanup(func() { n.Loop.Close() })
	return n
}

func (n *node) modeFacts(cfg *config.Config) Facts {
	f := n.facts
	if cfg.DryRun {
		f.Configured = "the configuration says dryRun: true"
	}
	return f
}

// start lets the loop run until stop is called, at the latest at the end of the test and
// before the loop is closed.
func (n *node) start() (stop func()) {
	ctx, cancel := context.WithCancel(n.t.Context())
	go func() {
		defer close(n.done)
		n.Run(ctx)
	}()
	synctest.Wait()
	stop = func() {
		cancel()
		<-n.done
		n.work.Wait()
	}
	n.t.Cleanup(stop)
	return stop
}

// pass advances the time. It locks the mutex first, as the loop does at every iteration, so
// that the test's reads before it don't race with the loop's writes.
func (n *node) pass(d time.Duration) {
	n.runs("") // locks the mutex
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

// add adds a pod that uses so many bytes of anonymous memory. In the fake tree its
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
	n.handles[uid] = pods.Handle{SandboxID: "s-" + uid, Owned: true, Containers: []evict.RunningContainer{
		{ID: "c-" + uid, Name: "main", Cgroup: path, CgroupID: info.Sys().(*syscall.Stat_t).Ino},
	}}
	return evict.Pod{
		UID: uid, Namespace: "default", Name: uid, HasStats: true, Usage: evict.PodUsage{Memory: memory, Freeable: memory, PIDs: 1},
		Containers: []evict.Container{{Name: "main", Usage: evict.ContainerUsage{Memory: memory}}},
	}
}

// grow changes the memory of a pod.
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

// kill is a kill that the hot path decides. It returns the alarm.
func (n *node) kill(uid string, memory int64, result act.KillResult) lanes.Alarm {
	n.t.Helper()
	v := n.last()
	at := slices.IndexFunc(n.hot.table.Pods, func(p evict.Pod) bool { return p.UID == uid })
	pod, handle := n.hot.table.Pods[at], n.hot.table.Rows[at].Handle
	if n.unprepared {
		var err error
		if handle, err = n.hot.table.Prepare(at); err != nil {
			n.t.Fatal(err)
		}
	}
	handle.Ref()
	decided := time.Now()
	alarm := lanes.Alarm{Lane: lanes.BPF, LastAbove: decided.Add(-2 * time.Millisecond), Seen: decided.Add(-time.Millisecond)}
	n.arbiter.kills = []hot.Kill{{
		Pod: &pod, Memory: memory, Freeable: memory, Handle: handle, Result: result, DryRun: n.arbiter.dryRun,
		Threshold: v.Policy.Thresholds[0], Deficit: gi / 2, Expected: memory, Alarm: alarm, Decided: decided, RankingAge: time.Millisecond, Unprepared: n.unprepared,
		Observation: signal.Observation{Status: signal.Observed, Capacity: capacity, Available: gi / 2, Time: decided},
	}}
	n.arbiter.generation++
	n.arbiter.alarms <- alarm
	return alarm
}

// alarm raises an alarm for the node's memory.
func (n *node) alarm() {
	n.arbiter.alarms <- lanes.Alarm{Lane: lanes.BPF, Seen: time.Now(), LastAbove: time.Now().Add(-time.Millisecond)}
	synctest.Wait()
}

// die ends the processes of a pod. The next list lacks the pod.
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

// Unchanged implements Observer.
func (n *node) Unchanged(v *View) { n.unchangedIterations++ }

// Evicted implements execute.Metrics.
func (n *node) Evicted(*evict.Record) {}

// last is the view of the last step.
func (n *node) last() *View { return n.views[len(n.views)-1] }

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
