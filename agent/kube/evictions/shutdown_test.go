package evictions

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/kernel/cgroup"
)

// shutdownJob is the job for a pod that can't be reported.
func (n *node) shutdownJob() *act.Job {
	job := n.job()
	job.Order, job.Reported, job.Shutdown = evict.Order{UID: testUID, Pod: testPod, Cause: evict.CauseShutdown}, false, true
	return job
}

// fenceInShutdown fences the pod without an order.
func (n *node) fenceInShutdown() {
	n.t.Helper()
	n.shuttingDown = true
	if err := n.Fence(n.shutdownJob()); err != nil {
		n.t.Fatal(err)
	}
	n.wantFenced(true)
	n.wantStage("")
}

// In a shutdown of the node a pod has a fence without an order, which is checked and kept until the
// shutdown is canceled.
func TestShutdownFence(t *testing.T) {
	n := newNode(t)
	n.fenceInShutdown()
	for i := range 4 {
		if !n.check(t.Context(), time.Now().Add(time.Duration(i)*checkInterval)) {
			t.Error("the fence is not checked")
		}
	}
	n.wantFenced(true)
	n.shuttingDown = false
	if n.checkNow() {
		t.Error("something is checked after the shutdown was canceled")
	}
	n.wantFenced(false)
	if s := n.Status(); s.Set != 0 || s.Lifted != 1 || s.Failed != 0 {
		t.Errorf("status = %+v; want one fence lifted", s)
	}
	// A container that the runtime stops later.
	if err := n.Fence(n.shutdownJob()); !errors.Is(err, errNoShutdown) {
		t.Errorf("Fence() after the shutdown was canceled = %v; want %v", err, errNoShutdown)
	}
	n.wantFenced(false)
}

// The fence ends with the pod's cgroup.
func TestShutdownFenceGone(t *testing.T) {
	n := newNode(t)
	n.fenceInShutdown()
	n.removePod()
	if n.checkNow() || len(n.shutdown) > 0 {
		t.Errorf("fences after the cgroup was removed: %v", n.shutdown)
	}
}

// A fence without an order survives a clean stop and a crash while the node shuts down. The next
// evictd keeps it if it goes on with the shutdown.
func TestShutdownFenceRestart(t *testing.T) {
	for name, tt := range map[string]struct {
		stop, shuttingDown, dryRun, fenced bool
	}{
		"killed": {false, true, false, true}, "stopped": {true, true, false, true},
		"canceled": {false, false, false, false}, "dry run": {false, true, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.fenceInShutdown()
			if tt.stop {
				n.Stop()
				n.wantFenced(true)
			}
			n.save()
			n.shuttingDown = tt.shuttingDown
			n.restart(tt.dryRun)
			for i := range 3 {
				n.check(t.Context(), time.Now().Add(time.Duration(i)*checkInterval))
			}
			n.wantFenced(tt.fenced)
		})
	}
}

// A pod whose report is forbidden is fenced without an order in a shutdown, and only then.
func TestShutdownForbidden(t *testing.T) {
	n := newNode(t)
	n.run()
	n.connect(kube.AnswerForbidden, 0)
	n.fence()
	n.report(act.LastGone)
	n.until("the answer", func() bool { return n.orders.Forbidden(testUID) && n.order() == nil })
	n.wantFenced(false)
	job := n.job()
	if err := n.Fence(job); !errors.Is(err, kube.ErrForbidden) {
		t.Errorf("Fence() = %v; want %v", err, kube.ErrForbidden)
	}
	n.shuttingDown, job.Shutdown = true, true
	if answered, waiting := n.Answered(testUID); answered || waiting {
		t.Errorf("Answered() = %t, %t; want that nothing is waited for", answered, waiting)
	}
	if err := n.Fence(job); err != nil {
		t.Error(err)
	}
	n.wantFenced(true)
	n.wantStage("")
}

// Answered reports the answers of evictd-kube, and that none can come without it.
func TestAnswered(t *testing.T) {
	n := newNode(t)
	n.run()
	n.shuttingDown = true
	want := func(when string, answered, waiting bool) {
		t.Helper()
		if a, w := n.Answered(testUID); a != answered || w != waiting {
			t.Errorf("Answered() %s = %t, %t; want %t, %t", when, a, w, answered, waiting)
		}
	}
	want("without an order", false, false)
	n.evict(false)
	n.reportStopping()
	want("before an answer", false, true)
	n.connected = false
	want("without evictd-kube", false, false)
	n.connected = true
	n.connect(kube.AnswerReported, 0)
	n.report(act.LastGone) // the peer answers the last stage only
	n.until("the answer", func() bool { return n.order().Answer == kube.AnswerReported })
	want("with an answer", true, true)
	n.shuttingDown = false
	want("after the shutdown was canceled", true, true)
}

// The fence of a pod whose order ends while the node shuts down stays, without an order, until the
// shutdown is canceled: in a clean stop, and if the report is refused after the pod was fenced.
func TestShutdownOrderEnds(t *testing.T) {
	for name, end := range map[string]func(n *node){
		"clean stop": func(n *node) {
			n.stopTimeout = 0
			n.Stop()
		},
		"forbidden": func(n *node) {
			n.connect(kube.AnswerForbidden, 0)
			n.report(act.LastGone)
		},
		"withdrawn": func(n *node) { n.end(&eviction{uid: testUID, id: n.order().Order.ID}, "a reason") },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			stop := n.run()
			n.shuttingDown = true
			n.fence()
			end(n)
			n.until("the end of the order", func() bool { return n.order() == nil })
			stop() // its last Lift has returned
			for i := range 4 {
				n.check(t.Context(), time.Now().Add(time.Duration(i)*checkInterval))
			}
			n.wantFenced(true)
			n.shuttingDown = false
			n.checkNow()
			n.wantFenced(false)
			if s := n.Status(); s.Lifted != 1 || s.Set != 0 {
				t.Errorf("status = %+v; want one fence lifted", s)
			}
		})
	}
}

// A pod whose report is forbidden may be killed while the node shuts down, and not after that was
// canceled: it would run again.
func TestAllowed(t *testing.T) {
	n := newNode(t)
	n.run()
	n.connect(kube.AnswerForbidden, 0)
	n.fence()
	n.report(act.LastGone)
	n.until("the end of the order", func() bool { return n.orders.Forbidden(testUID) && n.order() == nil })
	for _, tt := range []struct{ shutdown, shuttingDown, allowed bool }{
		{false, false, false}, {false, true, false}, {true, true, true}, {true, false, false},
	} {
		n.shuttingDown = tt.shuttingDown
		if err := n.Allowed(&act.Job{Order: evict.Order{UID: testUID}, Shutdown: tt.shutdown}); (err == nil) != tt.allowed {
			t.Errorf("Allowed() of a job of a shutdown (%t) in one (%t) = %v; want it allowed: %t", tt.shutdown, tt.shuttingDown, err, tt.allowed)
		}
	}
}

// While containers of a pod are in their grace period, pids.max stays: their processes can fork. On
// v1 there is no other fence.
func TestShutdownFenceStopping(t *testing.T) {
	for name, reported := range map[string]bool{"reported": true, "not reported": false} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.shuttingDown = true
			job := n.shutdownJob()
			job.Reported, job.Stopping = reported, true
			v2 := n.hierarchy.Version == cgroup.V2
			if err := n.Fence(job); err != nil {
				t.Fatal(err)
			}
			n.checkNow()
			n.wantFenced(false)
			if s := n.Status(); (s.Set == 1) != v2 || s.Failed != 0 {
				t.Errorf("status = %+v; want a fence on v2 only", s)
			}
			job.Stopping = false
			if err := n.Fence(job); err != nil {
				t.Fatal(err)
			}
			n.checkNow()
			n.wantFenced(true)
		})
	}
}

// Two containers that end at the same time fence the pod once.
func TestShutdownFenceTogether(t *testing.T) {
	n := newNode(t)
	for range 300 {
		n.shuttingDown = true
		var calls sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			calls.Go(func() { errs[i] = n.Fence(n.shutdownJob()) })
		}
		calls.Wait()
		if s := n.Status(); errors.Join(errs...) != nil || s.Failed != 0 || s.Set != 1 {
			t.Fatalf("Fence() = %v, status %+v; want one fence", errs, s)
		}
		n.shuttingDown = false
		n.checkNow()
	}
}

// The order of an eviction of an earlier run, which has no record, says what the job says.
func TestShutdownWithoutRecord(t *testing.T) {
	n := newNode(t)
	n.daemonSet = true
	order := n.shutdownJob().Order
	order.Reason, order.Message = "Terminated", "the node shuts down"
	n.progress(act.Progress{UID: testUID, Stage: act.Signalled, Time: time.Now(), Reported: true, KubeletStops: true, Grace: time.Minute, Order: &order})
	o := n.order()
	if o == nil || o.Order.Reason != order.Reason || o.Order.Message != order.Message || o.Order.Taint != kube.TaintFor(evict.CauseShutdown) {
		t.Errorf("order = %+v; want the reason, the message and the taint of a shutdown", o)
	}
}

// A fence of a node shutdown that was canceled is not lifted while it is being set for an eviction.
func TestShutdownCanceledWhileFencing(t *testing.T) {
	n := newNode(t)
	n.fenceInShutdown()
	n.shuttingDown = false
	n.beginSetting(testUID)
	n.liftAfterShutdown()
	n.wantFenced(true)
	n.endSetting(testUID, nil)
	n.liftAfterShutdown()
	n.wantFenced(false)
}
