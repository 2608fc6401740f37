package status

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/disks"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/reclaim"
	"github.com/evictd/evictd/agent/shutdown/driver"
	"github.com/evictd/evictd/agent/shutdown/logind"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/agent/state"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

const gib = int64(1) << 30

// node is a node whose Backend is tested. Its cgroups are files; the other parts are the
// real ones, and none of them runs.
type node struct {
	*Backend
	view *loop.View
	tree string
	o    *Options
}

// newNode returns a node without a runtime, before the first iteration of the loop.
func newNode(t *testing.T, change ...func(*Options)) *node {
	t.Helper()
	files := map[string]string{}
	for dir, usage := range map[string]int64{"": 8 * gib, "web": 2 * gib, "system.slice": 3 * gib} {
		for name, content := range map[string]string{
			"memory.usage_in_bytes": strconv.FormatInt(usage, 10) + "\n", "memory.limit_in_bytes": "9223372036854771712\n",
			"memory.stat": "total_cache 0\ntotal_rss 0\ntotal_shmem 0\ntotal_mapped_file 0\ntotal_inactive_file 0\ntotal_active_file 0\n", "cgroup.procs": strconv.Itoa(os.Getpid()) + "\n",
			"memory.oom_control": "oom_kill_disable 0\n",
		} {
			files[filepath.Join("memory", dir, name)] = content
		}
	}
	tree := kerneltest.Tree(t, files)
	h, err := cgroup.Find(kernel.FS(tree))
	if err != nil {
		t.Fatal(err)
	}
	n := &node{tree: tree}
	view := func() *loop.View { return n.view }
	inventory := pods.New(pods.Options{Hierarchy: h, Procfs: "/proc"})
	t.Cleanup(func() { inventory.Close() })
	store, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	delayLock := logind.NewDelayLock(logind.Options{})
	n.o = &Options{
		Procfs: "/proc", Cgroupfs: tree, StateDir: "/var/lib/evictd", Hierarchy: h, View: view, Inventory: inventory,
		Disks: disks.New(disks.Options{Procfs: "/proc", NodePath: "/"}), UsageMeter: disks.NewUsageMeter(disks.UsageMeterOptions{Procfs: "/proc"}),
		Reclaimer: reclaim.New(reclaim.Options{}, reclaim.Policy{}), Records: &execute.Records{}, Store: store,
		Lanes:     lanes.NewSet(lanes.SetOptions{Poll: polled(t), Modes: map[string]lanes.Mode{lanes.BPF: lanes.Disabled}}),
		DelayLock: delayLock,
		Shutdown: driver.New(driver.Options{
			Log: slog.New(slog.NewTextHandler(t.Output(), nil)), DelayLock: delayLock, View: view, RequestSave: func() {},
		}),
		WebWarning: func() string { return "" },
		Reload:     func(context.Context) error { return nil },
	}
	for _, f := range change {
		f(n.o)
	}
	n.Backend = New(*n.o)
	return n
}

// polled returns a poll lane that has read memory once.
func polled(t *testing.T) *lanes.Poll {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	poll := lanes.NewPoll(func(time.Time, *signal.Observations) { cancel() }, 1, 0)
	if err := poll.Run(ctx, nil); err != nil {
		t.Fatal(err)
	}
	return poll
}

// inode returns the inode number of a cgroup.
func (n *node) inode(t *testing.T, group string) uint64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(n.tree, "memory", group))
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

// pod returns a pod with one container that uses memory, and disk space of a tenth of it.
func pod(name string, memory int64) evict.Pod {
	return evict.Pod{
		UID: name, Namespace: "default", Name: name, HasStats: true, Usage: evict.PodUsage{Memory: memory, Freeable: memory},
		Containers: []evict.Container{{
			Name:      "main",
			Resources: evict.Resources{Requests: evict.Amounts{Memory: resource.NewQuantity(gib, resource.BinarySI)}},
			Usage:     evict.ContainerUsage{Memory: memory, Rootfs: memory / 10, Inodes: 70, LogsInodes: 7},
		}},
	}
}

// step sets the view of an iteration with a configuration and pods. Memory is observed.
func (n *node) step(t *testing.T, settings string, running ...evict.Pod) *loop.View {
	t.Helper()
	dir := kerneltest.Tree(t, map[string]string{"f.yaml": "apiVersion: evictd.io/v1alpha1\nkind: AgentConfiguration\n" + settings})
	cfg, err := config.Load(config.Options{Path: filepath.Join(dir, "f.yaml"), PathGiven: true})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	n.view = &loop.View{
		Time: now, Config: cfg, Policy: cfg.Policy(evict.SingleFs),
		Snapshot: pods.Snapshot{Pods: running, Handles: map[string]pods.Handle{}, Listed: now},
	}
	for _, p := range running {
		n.view.Snapshot.Handles[p.UID] = pods.Handle{Containers: []evict.RunningContainer{{
			Name: "main", Cgroup: "/" + p.Name, CgroupID: n.inode(t, p.Name), OOMScoreAdj: new(-998), OOMScoreFrom: "QoS class",
		}}}
	}
	n.view.Observations[signal.MemoryAvailable] = signal.Observation{Status: signal.Observed, Available: gib / 2, Capacity: 16 * gib, Time: now}
	return n.view
}
