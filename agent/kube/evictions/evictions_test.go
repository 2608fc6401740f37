package evictions

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/podfence"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/kernel/cgroup"
)

// The order begins before the fence is set, and the mark has its ID. The order is told when
// no process is left, and ends when the cgroup is gone and the answer has come.
func TestEviction(t *testing.T) {
	n := newNode(t, exclusive)
	n.run()
	p := n.connect(kube.AnswerReported, 0)
	n.fence()
	n.wantStage(kube.StageKilled)
	n.until("evictd-kube has the order", func() bool { return slices.Equal(p.got(), []kube.Stage{kube.StageKilled}) })
	o := n.order().Order
	if o.UID != testUID || o.Namespace != "shop" || o.Name != "web-0" || o.Exclusive != n.exclusive || o.Reason != evict.ReasonEvicted || !strings.Contains(o.Message, "memory") {
		t.Errorf("order = %+v; want that of %s", o, testPod)
	}
	if got := n.mark(); got != o.ID {
		t.Errorf("the mark has order %q; want %q", got, o.ID)
	}
	if err := n.Fence(n.job()); err != nil { // once more
		t.Error(err)
	}
	if s := n.Status(); s.Set != 1 || !n.checkNow() {
		t.Errorf("status = %+v; want one fence, which is checked", s)
	}
	n.report(act.LastGone)
	n.until("the answer", func() bool { return n.order().Answer == kube.AnswerReported })
	if !n.checkNow() {
		t.Error("the cgroup is not looked at after the answer")
	}
	n.removePod()
	if n.checkNow() {
		t.Error("something is checked after the cgroup was removed")
	}
	n.wantStage("")
	if s := n.Status(); s.Set != 0 || s.Failed != 0 || s.Lifted != 0 {
		t.Errorf("status = %+v; want no fence", s)
	}
	if got, want := p.got(), []kube.Stage{kube.StageKilled, kube.StageEnded}; !slices.Equal(got, want) {
		t.Errorf("evictd-kube got the stages %q; want %q", got, want)
	}
}

// An order says that the pod is fenced while it is: also after a restart, but not without a fence.
func TestFencedOrder(t *testing.T) {
	n := newNode(t)
	n.fence()
	n.report(act.LastGone)
	n.wantStage(kube.StageEnded)
	if !n.order().Order.Fenced {
		t.Error("the order of a fenced pod does not say so")
	}
	n.save()
	n.restart(false)
	if !n.order().Order.Fenced {
		t.Error("the order of a fenced pod does not say so after a restart")
	}
	n.save()
	n.Evictions.Close()
	if released, _, err := podfence.Release(podfence.Options{File: n.marks(), BootID: testBoot, Hierarchy: n.hierarchy}); err != nil || len(released) != 1 {
		t.Fatalf("Release() = %+v, %v; want one fence", released, err)
	}
	n.restart(false)
	if n.order().Order.Fenced {
		t.Error("the order says that the pod is fenced, but its fence was lifted")
	}
}

// The order for a pod of a DaemonSet names the taint of the condition for which it was evicted,
// also if only the record has the cause.
func TestTaint(t *testing.T) {
	for _, tt := range []struct {
		name, cause, recorded string
		daemonSet             bool
		want                  string
	}{
		{"another owner", "memory.available", "", false, ""},
		{"DaemonSet", "memory.available", "", true, "evictd.io/memory-pressure"},
		{"resumed", "", "nodefs.inodesFree", true, "evictd.io/disk-pressure"},
		{"node shutdown", evict.CauseShutdown, "", true, "evictd.io/node-shutdown"},
		{"its own limit", evict.CausePodLimit, "", true, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			n.daemonSet = tt.daemonSet
			n.records.Restore([]evict.Record{{UID: testUID, Pod: testPod, Cause: tt.recorded, Decided: time.Now()}})
			job := n.job()
			job.Order.Cause = tt.cause
			if err := n.Fence(job); err != nil {
				t.Fatal(err)
			}
			if got := n.order().Order.Taint; got != tt.want {
				t.Errorf("taint %q; want %q", got, tt.want)
			}
			n.save()
			n.restart(false)
			if got := n.order().Order.Taint; got != tt.want {
				t.Errorf("taint %q after a restart; want %q", got, tt.want)
			}
		})
	}
}

// mark returns the order in the mark of the fence.
func (n *node) mark() string {
	n.t.Helper()
	content, err := os.ReadFile(n.marks())
	if err != nil {
		n.t.Fatal(err)
	}
	// The next evictd reads a copy: this one has locked the file.
	file := n.marks() + ".copy"
	if err := os.WriteFile(file, content, 0o600); err != nil {
		n.t.Fatal(err)
	}
	table, found, err := podfence.Open(podfence.Options{File: file, BootID: testBoot, Hierarchy: n.hierarchy})
	if err != nil {
		n.t.Fatal(err)
	}
	defer table.Close()
	if len(found.Fences) != 1 {
		n.t.Fatalf("%d fences are marked; want 1", len(found.Fences))
	}
	return found.Fences[0].Order
}

// Without an order there is no fence: nothing would end it.
func TestNoOrderNoFence(t *testing.T) {
	n := newNode(t)
	job := n.job()
	job.Order.Pod = "" // no name, so that the order is not valid
	if err := n.Fence(job); err == nil {
		t.Error("Fence succeeded without an order")
	}
	n.wantFenced(false)
	if s := n.Status(); s.Failed != 1 || s.Set != 0 || n.checkNow() {
		t.Errorf("status = %+v; want one failure", s)
	}
}

// A resumed or escalated eviction has no message: that of its record is reported.
func TestOrderOfRecord(t *testing.T) {
	n := newNode(t)
	n.evict(false)
	job := n.job()
	job.Order = evict.Order{UID: testUID, Hard: true}
	if err := n.Fence(job); err != nil {
		t.Fatal(err)
	}
	o := n.order().Order
	if o.Namespace+"/"+o.Name != testPod || !strings.Contains(o.Message, "memory") || o.Decided.IsZero() {
		t.Errorf("order = %+v; want the record's", o)
	}
}

// The kubelet stops a pod in a grace period, and containers that evictd can't kill.
func TestKubeletStops(t *testing.T) {
	n := newNode(t)
	n.evict(false)
	n.reportStopping()
	n.wantStage(kube.StageStopping)
	if got := n.order().Order.GraceSeconds; got != 30 {
		t.Errorf("the order has a grace period of %d s; want 30", got)
	}
	n.wantFenced(false)
	n.running.LastStart = time.Now().UnixNano() // restarted within its grace period
	n.checkNow()
	n.wantStage(kube.StageStopping)
	if s := n.Status(); s.Revived != 0 {
		t.Errorf("status = %+v; want a restart before the kill not to count", s)
	}
	n.fence()
	n.wantStage(kube.StageKilled)

	n = newNode(t)
	job := n.job()
	job.Containers = append(job.Containers, evict.RunningContainer{ID: "vm", Name: "vm", Unproven: "runtime handler"})
	if err := n.Fence(job); err != nil {
		t.Fatal(err)
	}
	n.wantFenced(true)
	n.wantStage(kube.StageStopping)
}

// A pod that the kubelet has stopped in its grace period is gone without a fence.
func TestGoneInGracePeriod(t *testing.T) {
	n := newNode(t)
	n.evict(false)
	n.reportStopping()
	n.removePod()
	if n.checkNow() {
		t.Error("something is checked after the pod has gone")
	}
	n.wantStage(kube.StageEnded)
}

// What others write is replaced, counted, and logged once.
func TestLimitsChangedByOthers(t *testing.T) {
	n := newNode(t)
	n.fence()
	for range 3 {
		if err := os.WriteFile(n.limits.Path(n.path, "pids.max"), []byte("99"), 0); err != nil {
			t.Fatal(err)
		}
		n.checkNow()
		n.wantFenced(true)
	}
	if s := n.Status(); s.Changed != 3 {
		t.Errorf("status = %+v; want 3 changes", s)
	}
	if got := strings.Count(n.log.String(), "another program changed a limit"); got != 1 {
		t.Errorf("the log has %d lines about it; want 1", got)
	}
}

// A pod without a cgroup of its own has no fence. It is reported at once, if it may run twice.
func TestFenceNotPossible(t *testing.T) {
	late := func(n *node) time.Time { return time.Now().Add(2 * lateReport) }
	for _, tt := range []struct {
		name   string
		change func(*node)
		then   func(*node)
		stage  kube.Stage
		more   bool // something is checked
		count  uint64
		log    string
	}{
		{"not started again", func(*node) {}, (*node).exited, kube.StageEnded, true, 0, ""},
		{"the same containers", func(*node) {}, func(*node) {}, kube.StageEnded, true, 0, ""},
		{"the runtime is not listed", func(*node) {}, func(n *node) { n.running = pods.Running{} }, kube.StageEnded, true, 0, ""},
		{"gone", func(*node) {}, func(n *node) { n.running = pods.Running{Known: true} }, kube.StageEnded, false, 0, ""},
		{"exclusive", exclusive, (*node).exited, kube.StageKilled, true, 0, ""},
		{"exclusive, gone", exclusive, func(n *node) { n.running = pods.Running{Known: true} }, kube.StageEnded, false, 0, ""},
		{"exclusive, started again", exclusive, (*node).revive, "", false, 1, "its kubelet has started it again"},
		{"exclusive, started again, deleted", exclusive, func(n *node) {
			n.report(act.LastGone)
			n.connect(kube.AnswerReported, 0)
			n.until("the answer", func() bool { return n.order().Answer == kube.AnswerReported })
			n.revive()
		}, kube.StageEnded, true, 1, "has no fence"},
		{"started again", func(*node) {}, (*node).revive, kube.StageEnded, true, 1, "has no fence"},
		{"started again long ago", func(*node) {}, func(n *node) { n.revive(); n.checkNow(); n.check(n.t.Context(), late(n)) }, "", false, 1, "not reported in time"},
		{"started again long ago, reported", func(*node) {}, func(n *node) {
			n.connect(kube.AnswerReported, 0)
			n.until("the answer", func() bool { return n.order().Answer == kube.AnswerReported })
			n.revive()
			n.checkNow()
			n.check(n.t.Context(), late(n))
		}, kube.StageEnded, true, 1, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, tt.change)
			job := n.job()
			job.Containers[0].Cgroup = "/system.slice/ctr" // cgroupsPerQOS: false
			if err := n.Fence(job); err == nil {
				t.Error("Fence succeeded")
			}
			n.wantFenced(false)
			if n.exclusive == "" {
				n.wantStage(kube.StageEnded)
			} else {
				n.wantStage(kube.StageKilled)
			}
			tt.then(n)
			if more := n.checkNow(); more != tt.more {
				t.Errorf("check = %t; want %t", more, tt.more)
			}
			n.wantStage(tt.stage)
			s := n.Status()
			if s.Failed != 1 || s.Set != 0 || s.Revived != tt.count {
				t.Errorf("status = %+v; want one failure and %d revived", s, tt.count)
			}
			if !strings.Contains(n.log.String(), tt.log) {
				t.Errorf("log = %s; want %q", n.log, tt.log)
			}
		})
	}
}

// No fence is set with a runtime with which none has been tested, or which does not obey it.
func TestFenceWithRuntime(t *testing.T) {
	for _, tt := range []struct {
		name, runtime, oci string
		version            cgroup.Version
		fails              bool
	}{
		{"CRI-O", "cri-o", "", cgroup.V2, true},
		{"crun on v1", "containerd", "crun", cgroup.V1, true},
		{"crun on v2", "containerd", "crun", cgroup.V2, false},
		{"runc on v1", "containerd", "runc", cgroup.V1, false},
		{"not known on v1", "containerd", "", cgroup.V1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, func(n *node) { n.runtime = tt.runtime })
			h := *n.hierarchy
			h.Version = tt.version
			n.Evictions.o.Hierarchy = &h
			job := n.job()
			job.OCIRuntime = tt.oci
			if err := n.Fence(job); (err != nil) != tt.fails {
				t.Errorf("Fence() = %v; want an error: %v", err, tt.fails)
			}
			n.wantFenced(!tt.fails)
			if !tt.fails {
				return
			}
			n.wantStage(kube.StageEnded)
			if o := n.order().Order; o.Fenced || n.Status().Failed != 1 {
				t.Errorf("order %+v, status %+v; want no fence, and one failure", o, n.Status())
			}
		})
	}
}

// A container that was created just before the fence may start after it. The pod is killed
// again, once for each start.
func TestStartedBehindFence(t *testing.T) {
	n := newNode(t, exclusive)
	n.decided = true
	n.fence()
	check := func(after time.Duration, kills int) {
		t.Helper()
		n.check(t.Context(), time.Now().Add(after))
		if len(n.resumed) != kills || n.Status().Revived != uint64(kills) {
			t.Errorf("%v after the kill: killed again %+v, status %+v; want %d kills", after, n.resumed, n.Status(), kills)
		}
	}
	check(2*lateStart, 0)
	n.revive()
	check(0, 0) // agent/act does it
	n.dryRun = true
	check(2*lateStart, 0)
	n.dryRun, n.unlisted = false, true
	check(2*lateStart, 0)
	n.unlisted = false
	check(2*lateStart, 1)
	check(2*lateStart, 1)
	n.fence()
	check(2*lateStart, 1)
	n.revive()
	check(2*lateStart, 2)
	n.wantStage(kube.StageKilled)
	n.wantFenced(true)
}

// A container that was started while the fence was being set is behind it: the pod is killed
// again once the fence is set.
func TestStartedWhileFencing(t *testing.T) {
	n := newNode(t, exclusive)
	n.decided = true
	job := n.job()
	n.beginSetting(testUID)
	v, err := n.begin(&job.Order, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	n.revive()
	n.checkNow()
	if n.Status().Revived != 0 || n.order() == nil {
		t.Errorf("status = %+v, log %s; want the fence awaited", n.Status(), n.log)
	}
	f, err := n.set(job, v.id)
	if err != nil {
		t.Fatal(err)
	}
	n.endSetting(testUID, f)
	n.check(t.Context(), time.Now().Add(2*lateStart))
	if n.Status().Revived != 1 || len(n.resumed) != 1 {
		t.Errorf("status = %+v, killed again %+v; want it killed again", n.Status(), n.resumed)
	}
}

// revive is what the runtime lists after the kubelet has started a container again.
func (n *node) revive() { n.running.LastStart = time.Now().UnixNano() }

// The API server refuses the report, or does not answer: the fence is lifted.
func TestForbiddenAndTimeout(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*node)
		answer kube.Answer
	}{
		{"forbidden", func(*node) {}, kube.AnswerForbidden},
		{"timeout", func(n *node) { n.fenceTimeout = 200 * time.Millisecond }, ""},
		{"timeout after the answer", func(n *node) { n.fenceTimeout = 200 * time.Millisecond }, kube.AnswerReported},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, tt.change)
			n.run()
			n.connect(tt.answer, 0)
			n.fence()
			n.report(act.LastGone)
			n.until("the end of the order", func() bool { return n.order() == nil })
			n.wantFenced(false)
			if n.checkNow() {
				t.Error("something is checked after the fence was lifted")
			}
			if s := n.Status(); s.Lifted != 1 || s.Set != 0 {
				t.Errorf("status = %+v; want one fence lifted", s)
			}
			err := n.Fence(n.job())
			if forbidden := tt.answer == kube.AnswerForbidden; errors.Is(err, kube.ErrForbidden) != forbidden {
				t.Errorf("Fence = %v; want that to be forbidden: %t", err, forbidden)
			}
		})
	}
}

// An order that ends while its fence is being set calls Lift too early.
func TestOrderEndsBeforeFence(t *testing.T) {
	n := newNode(t)
	n.saves = func() {
		n.saves = nil
		n.orders.Refused(testUID, "a test")
	}
	n.fence()
	n.wantStage("")
	if n.checkNow() {
		t.Error("something is checked without an order")
	}
	n.wantFenced(false)
}

// A fence that can't be lifted is lifted later.
func TestLiftFails(t *testing.T) {
	n := newNode(t)
	n.fence()
	n.Evictions.table.Close() // lifting fails from now on
	n.Lift(testUID, "a test")
	if s := n.Status(); s.Unlifted != 1 || s.Lifted != 0 || !n.checkNow() {
		t.Errorf("status = %+v; want a fence that is not lifted, and is tried again", s)
	}
	if !strings.Contains(n.log.String(), "could not lift the fence") {
		t.Errorf("log = %s", n.log)
	}
}

// The actuator gives up on processes that do not exit. A pod that must not run twice is then
// reported when they do, whatever the runtime lists.
func TestProcessesExitLate(t *testing.T) {
	n := newNode(t, exclusive)
	n.pause()
	pid, kill := n.process(n.container())
	n.guard.Inits[pid] = "ctr"
	_, killOther := n.process(n.container())
	shim, _ := n.process(n.sandbox())
	n.guard.Protected[shim] = "the shim of container ctr"
	n.evict(false)
	n.fence()
	n.checkNow()
	n.wantStage(kube.StageKilled)
	n.report(act.Finished)
	n.checkNow()
	n.wantStage(kube.StageKilled)
	killOther()
	n.checkNow()
	n.wantStage(kube.StageKilled)
	kill()
	n.checkNow()
	n.wantStage(kube.StageEnded)
	n.wantFenced(true)
}

// A process that has got the pid of a guarded one is not guarded.
func TestReusedPID(t *testing.T) {
	n := newNode(t, exclusive)
	pid, kill := n.process(n.container())
	n.guard.Inits[pid], n.guard.StartTimes[pid] = "sandbox", 1
	n.fence()
	n.report(act.Finished)
	n.checkNow()
	n.wantStage(kube.StageKilled)
	kill()
	n.checkNow()
	n.wantStage(kube.StageEnded)
}

// Run checks fences only while there are some.
func TestRun(t *testing.T) {
	n := newNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { n.Run(ctx); close(done) }()
	n.fence()
	for range 2 {
		if err := os.WriteFile(n.limits.Path(n.path, "pids.max"), []byte("99"), 0); err != nil {
			t.Fatal(err)
		}
		n.until("the limit is 0 again", func() bool {
			content, err := os.ReadFile(n.limits.Path(n.path, "pids.max"))
			return err == nil && string(content) == "0\n"
		})
	}
	n.Evictions.mu.Lock()
	n.removePod()
	n.Evictions.mu.Unlock()
	n.until("the fence is gone", func() bool { return n.Status().Set == 0 })
	cancel()
	<-done
}
