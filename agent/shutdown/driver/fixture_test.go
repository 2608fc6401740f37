package driver

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/shutdown/logind"
)

// node is a node whose pods a Driver stops. logind, the runtime and the loop's view
// are fakes; the state machine, the Executor and the records are real.
type node struct {
	*Driver
	t      *testing.T
	events chan logind.Event

	mu           sync.Mutex
	view         *loop.View
	calls        []string
	ignoresStop  map[string]bool // pods that do not stop when asked
	reportedLate map[string]bool // pods whose end is reported after the list
	lists        int             // number of calls of Refresh
	listsNothing bool            // the runtime does not answer
	wanted       []time.Duration // delays of the node's shutdown
	requests     int             // number of calls of RequestSave
	stages       []act.StopStage // of the last stopped pod
	jobs         map[string]act.Job
	unanswered   int // orders to evictd-kube
	kubelet      struct{ shutsDown, known bool }
	saveTime     time.Duration
	report       func(act.Progress)
	work         sync.WaitGroup
}

func newNode(t *testing.T, settings string, running ...evict.Pod) *node {
	n := &node{t: t, events: make(chan logind.Event, 1), ignoresStop: map[string]bool{}, reportedLate: map[string]bool{}, jobs: map[string]act.Job{}, view: newView(t, settings, false, running...)}
	n.view.Time, n.view.Snapshot.Listed = time.Now(), time.Now()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	n.Driver = New(Options{
		Log: log, DelayLock: delayLock{n}, Inventory: inventory{n}, Metrics: metrics{}, RequestSave: n.requestSave,
		View: func() *loop.View {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.view
		},
		Save: func() error {
			time.Sleep(n.saveTime)
			n.logCall("save")
			return nil
		},
		Announce: func(p shutdown.Phase) { n.logCall("phase " + string(p)) },
		KubeletShutsDown: func() (yes, known bool) {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.kubelet.shutsDown, n.kubelet.known
		},
		Unanswered: func() int {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.unanswered
		},
		Execute: execute.New(execute.Options{
			Killer: func(report func(act.Progress)) act.Actuator {
				n.report = report
				return actuator{n}
			},
			DryRun:  func(report func(act.Progress)) act.Actuator { return dryRun{n, report} },
			Records: &execute.Records{}, Log: log, Metrics: metrics{}, Save: func() {},
		}),
	})
	return n
}

// start runs the driver until stop is called.
func (n *node) start() (stop func()) {
	ctx, cancel := context.WithCancel(n.t.Context())
	go n.Run(ctx)
	synctest.Wait()
	return func() {
		cancel()
		<-n.Done()
		n.work.Wait()
	}
}

func (n *node) logCall(call string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, call)
}

func (n *node) expectCalls(when string, want ...string) {
	n.t.Helper()
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	if diff := cmp.Diff(want, n.calls); diff != "" {
		n.t.Errorf("%s: calls differ (-want +got):\n%s", when, diff)
	}
	n.calls = nil
}

func (n *node) requestSave() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.requests++
}

// endPod ends a pod and publishes a list of the others.
func (n *node) endPod(uid string) {
	report := func() {
		n.report(act.Progress{UID: uid, Stage: act.LastGone, Time: time.Now()})
		n.report(act.Progress{UID: uid, Stage: act.Finished, Time: time.Now()})
	}
	if n.reportedLate[uid] {
		n.work.Go(func() {
			time.Sleep(endTimeout / 2)
			n.logCall("end of " + uid)
			report()
		})
	} else {
		report()
	}
	n.mu.Lock()
	v := *n.view
	v.Time, v.Snapshot.Listed = time.Now(), time.Now()
	v.Snapshot.Pods = slices.DeleteFunc(slices.Clone(v.Snapshot.Pods), func(p evict.Pod) bool { return p.UID == uid })
	n.view = &v
	n.mu.Unlock()
	n.ViewChanged()
}

// results returns the records' results by pod.
func (n *node) results() map[string]string {
	all := map[string]string{}
	for _, r := range n.o.Execute.Records().List() {
		all[r.UID] = r.Lane + ": " + r.Result
	}
	return all
}

type delayLock struct{ n *node }

func (l delayLock) Events() <-chan logind.Event { return l.n.events }
func (delayLock) Status() logind.Status         { return logind.Status{Connected: true, Inhibited: true} }
func (l delayLock) SetDelay(needs time.Duration) {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	l.n.wanted = append(l.n.wanted, needs)
}
func (l delayLock) Release() { l.n.logCall("done") }

type metrics struct{}

func (metrics) Shutdown(*shutdown.State, bool) {}
func (metrics) Evicted(*evict.Record)          {}

// inventory lists the pods, which takes 10 ms.
type inventory struct{ n *node }

func (inventory) Guard() *evict.Guard { return &evict.Guard{} }
func (i inventory) Refresh() {
	i.n.mu.Lock()
	i.n.lists++
	i.n.mu.Unlock()
	i.n.work.Go(func() {
		time.Sleep(10 * time.Millisecond)
		i.n.mu.Lock()
		defer i.n.mu.Unlock()
		if i.n.listsNothing {
			return
		}
		v := *i.n.view
		v.Snapshot.Listed = time.Now()
		i.n.view = &v
		i.n.ViewChanged()
	})
}

// jobsNow returns the jobs that the actuator got.
func (n *node) jobsNow() map[string]act.Job {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.jobs)
}

// actuator stops a pod a second after it was asked, and kills at once.
type actuator struct{ n *node }

func (a actuator) Evict(_ context.Context, j act.Job) {
	a.n.mu.Lock()
	a.n.jobs[j.Order.UID] = j
	a.n.mu.Unlock()
	a.n.logCall("stop " + j.Order.UID + " " + j.Order.Grace.String())
	a.n.stages = j.StopStages
	a.n.report(act.Progress{UID: j.Order.UID, Stage: act.Signalled, Time: time.Now()})
	if !a.n.ignoresStop[j.Order.UID] {
		a.n.work.Go(func() {
			time.Sleep(time.Second)
			a.n.endPod(j.Order.UID)
		})
	}
}
func (a actuator) Escalate(_ context.Context, j act.Job) {
	a.n.logCall("kill " + j.Order.UID)
	a.n.report(act.Progress{UID: j.Order.UID, Stage: act.Escalated, Time: time.Now()})
	a.n.work.Go(func() { a.n.endPod(j.Order.UID) })
}

func (actuator) Follow(context.Context, act.Job, *act.KillHandle, act.KillResult) {}

type dryRun struct {
	n      *node
	report func(act.Progress)
}

func (d dryRun) Evict(_ context.Context, j act.Job) {
	d.n.logCall("dry run: stop " + j.Order.UID)
	d.report(act.Progress{UID: j.Order.UID, Stage: act.Finished, Time: time.Now()})
}
func (d dryRun) Escalate(_ context.Context, j act.Job)                          { d.n.logCall("dry run: kill " + j.Order.UID) }
func (dryRun) Follow(context.Context, act.Job, *act.KillHandle, act.KillResult) {}

func web() evict.Pod { return evict.Pod{UID: "web", Namespace: "default", Name: "web", HasStats: true} }

func critical() evict.Pod {
	return evict.Pod{UID: "dns", Namespace: "kube-system", Name: "dns", HasStats: true, Priority: new(int32(2_000_000_000))}
}
