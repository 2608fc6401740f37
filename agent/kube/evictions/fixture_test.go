package evictions

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/podfence"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// These tests make real cgroups.

const (
	testUID  = "8f2a6d0e-31c4-4c1a-9d57-0e8f2a6d31c4"
	testBoot = "3c2b7bd4-1b7d-4d3e-9a55-5d6b1f6f8a10"
	testPod  = "shop/web-0"
)

// node is a node with one pod, which has a container and a sandbox, and the evictd that runs
// on it. Tests call check instead of Run.
type node struct {
	*Evictions
	t         *testing.T
	hierarchy *cgroup.Hierarchy
	roots     []kernel.FS // of the hierarchies that have the pod's cgroups
	limits    kernel.FS   // the one with the limits
	path      string      // the pod's cgroup
	dir       string      // with the marks
	records   *execute.Records
	execute   *execute.Executor
	progress  func(act.Progress) // of the actuator
	orders    *kube.Orders
	log       *buffer

	exclusive       string
	runtime         string
	running         pods.Running
	guard           evict.Guard
	daemonSet       bool
	decided, dryRun bool
	connected       bool
	shuttingDown    bool
	resumed         []evict.Order
	unlisted        bool              // the loop's list has no container to kill
	saved           []kube.SavedOrder // as they are on disk
	saves           func()            // called by each request to save; nil for none
	fenceTimeout    time.Duration
}

// newNode starts evictd on a new node.
func newNode(t *testing.T, change ...func(*node)) *node {
	t.Helper()
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs cgroups: ", err)
	}
	n := &node{t: t, hierarchy: h, roots: []kernel.FS{h.Memory}, limits: h.Memory, dir: t.TempDir(), log: &buffer{}, connected: true}
	if h.Version != cgroup.V2 {
		if h.Pids == "" {
			t.Skip("needs the pids controller")
		}
		n.roots, n.limits = append(n.roots, h.Pids), h.Pids
	}
	n.path = kerneltest.Cgroup(t, n.roots...)
	for _, name := range []string{"kubepods", "burstable", "pod" + testUID} {
		n.path = filepath.Join(n.path, name)
		n.makeCgroup(n.path)
	}
	n.makeCgroup(n.container())
	n.makeCgroup(n.sandbox())
	n.running = pods.Running{Known: true, Sandboxes: []string{"sandbox"}, Containers: 1, LastStart: time.Now().Add(-time.Hour).UnixNano()}
	n.guard = evict.Guard{Protected: map[int]string{}, Inits: map[int]string{}, StartTimes: map[int]uint64{}}
	for _, c := range change {
		c(n)
	}
	n.start()
	return n
}

func exclusive(n *node) { n.exclusive = kube.ExclusiveStatefulSet }

// start starts an evictd with the saved state.
func (n *node) start() {
	n.t.Helper()
	log := slog.New(slog.NewTextHandler(n.log, nil))
	records := &execute.Records{}
	if n.records != nil {
		records.Restore(n.records.List())
	}
	n.records = records
	n.execute = execute.New(execute.Options{
		Killer:  func(report func(act.Progress)) act.Actuator { n.progress = report; return actuator{} },
		DryRun:  func(func(act.Progress)) act.Actuator { return actuator{} },
		Records: records, Log: log, Metrics: metrics{}, Save: func() {},
	})
	n.orders = kube.NewOrders(kube.OrdersOptions{
		FenceTimeout: n.fenceTimeout, Lift: func(uid, why string) { n.Lift(uid, why) }, Log: log,
		Save: func() {
			if n.saves != nil {
				n.saves()
			}
		},
	})
	n.Evictions = New(Options{
		Orders: n.orders, Inventory: n, Records: n.records, Hierarchy: n.hierarchy, Procfs: "/proc",
		Runtime:   func() string { return n.runtime },
		Exclusive: func(string) string { return n.exclusive },
		DaemonSet: func(string) bool { return n.daemonSet },
		Decided:   func() (ok, dryRun bool) { return n.decided, n.dryRun },
		Resume: func(_ context.Context, o evict.Order) bool {
			if !n.unlisted {
				n.resumed = append(n.resumed, o)
			}
			return !n.unlisted
		},
		Connected: func() bool { return n.connected }, ShuttingDown: func() bool { return n.shuttingDown }, Log: log,
	})
	n.execute.Subscribe(n.Report)
	if err := n.Open(podfence.Options{File: n.marks(), BootID: testBoot, Hierarchy: n.hierarchy}); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { n.Evictions.Close() })
}

// restart ends evictd as SIGKILL does, and starts another one with the state that was saved.
func (n *node) restart(dryRunConfigured bool) {
	n.t.Helper()
	n.Evictions.Close()
	n.decided, n.resumed = false, nil
	n.start()
	n.Restore(n.saved, dryRunConfigured)
}

// save is what a write of the state does.
func (n *node) save() {
	n.t.Helper()
	content, err := json.Marshal(n.orders.Saved())
	if err != nil {
		n.t.Fatal(err)
	}
	n.saved = nil
	if err := json.Unmarshal(content, &n.saved); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) marks() string     { return filepath.Join(n.dir, "fences") }
func (n *node) container() string { return filepath.Join(n.path, "ctr") }
func (n *node) sandbox() string   { return filepath.Join(n.path, "sandbox") }

func (n *node) makeCgroup(path string) {
	n.t.Helper()
	for _, root := range n.roots {
		if n.hierarchy.Version == cgroup.V2 {
			if err := kerneltest.EnableControllers(root.Path(filepath.Dir(path)), "memory", "pids"); err != nil {
				n.t.Fatal(err)
			}
		}
		kerneltest.MakeCgroup(n.t, root.Path(path))
	}
}

// removePod removes the pod's cgroups, as the kubelet does. The fixture tolerates that.
func (n *node) removePod() {
	n.t.Helper()
	n.running = pods.Running{Known: true}
	for _, root := range n.roots {
		for _, path := range []string{n.container(), n.sandbox(), n.path} {
			if err := os.Remove(root.Path(path)); err != nil {
				n.t.Fatal(err)
			}
		}
	}
}

// process starts a process in a cgroup of the pod. It returns its pid and what kills it.
func (n *node) process(path string) (pid int, kill func()) {
	n.t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	kill = sync.OnceFunc(func() { cmd.Process.Kill(); cmd.Wait() })
	n.t.Cleanup(kill)
	for _, root := range n.roots {
		if err := os.WriteFile(root.Path(path, "cgroup.procs"), []byte(fmt.Sprint(cmd.Process.Pid)), 0); err != nil {
			n.t.Fatal(err)
		}
	}
	return cmd.Process.Pid, kill
}

// pause starts the process of the sandbox.
func (n *node) pause() {
	pid, _ := n.process(n.sandbox())
	n.guard.Inits[pid] = "sandbox"
}

// Running and Guard implement Inventory.
func (n *node) Running(uid string) pods.Running {
	if uid != testUID {
		n.t.Errorf("asked for pod %s", uid)
	}
	return n.running
}

func (n *node) Guard() *evict.Guard { return &n.guard }

// exited is what the runtime lists after the kill, until the kubelet stops the sandbox.
func (n *node) exited() { n.running.Containers, n.running.LastStart = 0, 0 }

func (n *node) job() *act.Job {
	return &act.Job{
		Order:      evict.Order{UID: testUID, Pod: testPod, Hard: true, Reason: evict.ReasonEvicted, Message: "The node was low on resource: memory."},
		Containers: []evict.RunningContainer{{ID: "ctr", Name: "main", Cgroup: n.container()}}, Reported: true,
	}
}

// refusePod refuses the pod, of which no container has run.
func (n *node) refusePod() {
	n.t.Helper()
	if err := n.Refuse(&evict.Order{UID: testUID, Pod: testPod, Reason: evict.ReasonEvicted, Message: "refused"}, time.Now()); err != nil {
		n.t.Fatal(err)
	}
}

// fence fences the killed pod.
func (n *node) fence() {
	n.t.Helper()
	if err := n.Fence(n.job()); err != nil {
		n.t.Fatal(err)
	}
	n.wantFenced(true)
}

// evict begins the record of an eviction, in dry run or not.
func (n *node) evict(dryRun bool) {
	n.execute.Evict(n.t.Context(), evict.Record{
		UID: testUID, Pod: testPod, Decided: time.Now(), DryRun: dryRun, Result: evict.ResultPending, Reason: evict.ReasonEvicted, Message: "The node was low on resource: memory.",
	}, *n.job())
}

// report reports that the eviction has reached a stage.
func (n *node) report(stage act.Stage) {
	n.progress(act.Progress{UID: testUID, Stage: stage, Time: time.Now(), Reported: true})
}

// reportStopping reports that the kubelet has to stop the pod within 30 s.
func (n *node) reportStopping() {
	n.progress(act.Progress{UID: testUID, Stage: act.Signalled, Time: time.Now(), Reported: true, KubeletStops: true, Grace: 30 * time.Second})
}

func (n *node) checkNow() bool { return n.check(n.t.Context(), time.Now()) }

func (n *node) wantFenced(want bool) {
	n.t.Helper()
	content, err := os.ReadFile(n.limits.Path(n.path, "pids.max"))
	if err != nil {
		n.t.Fatal(err)
	}
	if fenced := strings.TrimSpace(string(content)) == "0"; fenced != want {
		n.t.Errorf("pids.max is %q; want a fence: %t", content, want)
	}
}

// order returns the pending order, nil if there is none.
func (n *node) order() *kube.PendingOrder {
	n.t.Helper()
	switch list := n.orders.Status().Pending; len(list) {
	case 0:
		return nil
	case 1:
		return &list[0]
	default:
		n.t.Fatalf("%d orders are pending", len(list))
		return nil
	}
}

// wantStage checks the stage of the order; "" means that none is pending.
func (n *node) wantStage(want kube.Stage) {
	n.t.Helper()
	o := n.order()
	switch {
	case o == nil && want != "":
		n.t.Errorf("no order is pending; want one at stage %s\n%s", want, n.log)
	case o != nil && o.Order.Stage != want:
		n.t.Errorf("the order is at stage %s; want %q\n%s", o.Order.Stage, want, n.log)
	}
}

func (n *node) until(what string, ok func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("%s: not after 20s\n%s", what, n.log)
		}
	}
}

// run runs the orders until the test ends, or the returned function is called.
func (n *node) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	orders := n.orders
	go func() { orders.Run(ctx); close(done) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	n.t.Cleanup(stop)
	return stop
}

// peer is an evictd-kube that answers each order that has ended.
type peer struct {
	feed   *kube.Feed
	answer kube.Answer // "" for no answer
	delay  time.Duration
	mu     sync.Mutex
	stages []kube.Stage
}

// got returns the stages of the orders that came, in that order.
func (p *peer) got() []kube.Stage {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.stages)
}

func (p *peer) Reset()          {}
func (p *peer) Withdraw(string) {}
func (p *peer) Order(o *kube.Order) {
	p.mu.Lock()
	p.stages = append(p.stages, o.Stage)
	p.mu.Unlock()
	if o.Stage != kube.StageEnded || p.answer == "" {
		return
	}
	report := &kube.Report{ID: o.ID, Answer: p.answer, Why: "a reason"}
	time.AfterFunc(p.delay, func() { p.feed.Report(report) })
}

// connect connects an evictd-kube that answers.
func (n *node) connect(answer kube.Answer, delay time.Duration) *peer {
	n.t.Helper()
	log := slog.New(slog.NewTextHandler(n.log, nil))
	server := &kube.Server{UID: os.Geteuid(), Software: "test", Facts: kube.NewFacts(), Orders: n.orders, Changed: func() {}, Log: log}
	socket := filepath.Join(n.dir, "kube.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		n.t.Fatal(err)
	}
	p := &peer{feed: kube.NewFeed("node", "test", log), answer: answer, delay: delay}
	p.feed.Orders = p
	p.feed.Replace(nil)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { server.Serve(ctx, l) })
	done.Go(func() { p.feed.Run(ctx, socket) })
	n.t.Cleanup(func() { cancel(); done.Wait() })
	n.until("evictd-kube is connected", func() bool { return server.Facts.Status(time.Now()).Connected })
	return p
}

// actuator does nothing.
type actuator struct{}

func (actuator) Evict(context.Context, act.Job)                                   {}
func (actuator) Follow(context.Context, act.Job, *act.KillHandle, act.KillResult) {}
func (actuator) Escalate(context.Context, act.Job)                                {}

type metrics struct{}

func (metrics) Evicted(*evict.Record) {}

type buffer = kerneltest.Buffer
