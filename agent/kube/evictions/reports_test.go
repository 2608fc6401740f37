package evictions

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/kube"
)

// agent/act no longer waits for a fence that takes a second: its report comes first.
func TestEndedBeforeFence(t *testing.T) {
	n := newNode(t, exclusive)
	n.evict(false)
	n.report(act.Signalled)
	n.report(act.LastGone)
	n.wantStage("")
	_, kill := n.process(n.container())
	n.fence()
	n.checkNow()
	n.wantStage(kube.StageKilled) // the kubelet has started a container
	kill()
	n.checkNow()
	n.wantStage(kube.StageEnded)
}

// The end that comes while the fence is being set counts at once if there will be no fence.
func TestEndedWhileFencing(t *testing.T) {
	for name, fails := range map[string]bool{"set": false, "fails": true} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, exclusive)
			n.evict(false)
			job := n.job()
			if fails {
				job.Containers[0].Cgroup = "/system.slice/ctr"
			}
			n.beginSetting(testUID) // Fence is called
			if _, err := n.begin(&job.Order, 0, true); err != nil {
				t.Fatal(err)
			}
			n.report(act.LastGone)
			n.wantStage(kube.StageKilled)
			if err := n.Fence(job); (err != nil) != fails {
				t.Error(err)
			}
			n.endSetting(testUID, nil)
			n.wantFenced(!fails)
			if !fails {
				n.wantStage(kube.StageKilled)
				n.checkNow()
			}
			n.wantStage(kube.StageEnded)
		})
	}
}

// The end that came while an earlier fence was being set is not that of the containers that are
// killed later.
func TestEndedWhileFencingBefore(t *testing.T) {
	n := newNode(t, exclusive)
	n.evict(false)
	job := n.job()
	n.beginSetting(testUID)
	v, err := n.begin(&job.Order, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	n.report(act.LastGone)
	f, err := n.set(job, v.id)
	if err != nil {
		t.Fatal(err)
	}
	n.endSetting(testUID, f)
	n.report(act.Finished)
	job.Containers[0].Cgroup = "/system.slice/ctr"
	if err := n.Fence(job); err == nil {
		t.Error("Fence succeeded")
	}
	n.wantStage(kube.StageKilled)
}

// The end of containers that an earlier run killed is not that of the resumed eviction.
func TestResumedAfterLastGone(t *testing.T) {
	n := newNode(t, exclusive)
	n.execute.Evict(t.Context(), evict.Record{UID: testUID, Pod: testPod, Decided: time.Now().Add(-time.Minute), LastGone: time.Now().Add(-time.Minute), Result: evict.ResultPending}, *n.job())
	n.fence()
	n.checkNow()
	n.wantStage(kube.StageKilled)
}

// Another eviction of the pod begins before the cgroup is removed. What is known of the first
// one does not count.
func TestAnotherOrder(t *testing.T) {
	n := newNode(t, exclusive)
	n.evict(false)
	n.fence()
	n.report(act.LastGone)
	n.report(act.Finished)
	time.Sleep(5 * time.Millisecond)
	n.evict(false)
	n.fence()
	n.wantStage(kube.StageKilled)
	n.exited()
	n.report(act.Finished)
	n.checkNow()
	n.wantStage(kube.StageEnded)
}

// A pod of which nothing was killed is not reported.
func TestRefused(t *testing.T) {
	n := newNode(t)
	n.evict(false)
	n.reportStopping()
	n.wantStage(kube.StageStopping)
	n.refuse(errors.New("its cgroup contains a shim"))
	if n.checkNow() {
		t.Error("something is checked after the refusal")
	}
	n.wantStage("")
	if !strings.Contains(n.log.String(), "contains a shim") {
		t.Errorf("log = %s; want the reason", n.log)
	}
}

func (n *node) refuse(err error) {
	n.progress(act.Progress{UID: testUID, Stage: act.Refused, Reported: true, Err: err})
}

// A resumed eviction may find that the kill of the earlier run has ended the pod.
func TestRefusedBecauseEnded(t *testing.T) {
	n := newNode(t)
	n.fence()
	n.save()
	n.LiftAll(t)
	n.restart(false)
	n.exited()
	n.evict(false)
	n.refuse(act.ErrEnded)
	n.checkNow()
	n.wantStage(kube.StageEnded)
}

// Nor does the end of the grace period of a pod that the kubelet has just stopped.
func TestRefusedAfterStop(t *testing.T) {
	n := newNode(t)
	n.evict(false)
	n.reportStopping()
	n.report(act.LastGone)
	n.refuse(act.ErrEnded)
	n.checkNow()
	n.wantStage(kube.StageEnded)
}

// A second kill that is refused does not end the order of the first one, nor does a job that
// is not reported.
func TestOtherJobs(t *testing.T) {
	n := newNode(t, exclusive)
	n.fence()
	_, kill := n.process(n.container())
	n.evict(false)
	n.refuse(errors.New("its cgroup contains a shim"))
	n.checkNow()
	n.wantFenced(true)
	n.wantStage(kube.StageKilled)
	for _, stage := range []act.Stage{act.LastGone, act.Refused, act.Finished} {
		n.Report(execute.Report{Progress: act.Progress{UID: testUID, Stage: stage}})
		n.checkNow()
	}
	n.wantFenced(true)
	n.wantStage(kube.StageKilled)
	kill()
	n.checkNow()
	n.wantStage(kube.StageEnded)
}

// The reports of a dry run say nothing about the pod that was killed before.
func TestDryRunReports(t *testing.T) {
	n := newNode(t, exclusive)
	n.fence()
	n.evict(true)
	for _, stage := range []act.Stage{act.Signalled, act.LastGone, act.Refused, act.Finished} {
		n.Report(execute.Report{Progress: act.Progress{UID: testUID, Stage: stage}, Record: evict.Record{DryRun: true}})
	}
	n.checkNow()
	n.wantStage(kube.StageKilled)
	n.wantFenced(true)
}

// A clean stop waits for answers, and lifts the fences then.
func TestStop(t *testing.T) {
	for _, tt := range []struct {
		name      string
		connected bool
		answer    kube.Answer
		delay     time.Duration
		timeout   time.Duration
		reported  bool
		min, max  time.Duration
	}{
		{"answered", true, kube.AnswerReported, 300 * time.Millisecond, 20 * time.Second, true, 300 * time.Millisecond, 15 * time.Second},
		{"not answered", true, "", 0, 300 * time.Millisecond, false, 300 * time.Millisecond, 15 * time.Second},
		{"not connected", false, "", 0, 20 * time.Second, false, 0, 15 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			n.run()
			n.connect(tt.answer, tt.delay)
			n.fence()
			n.report(act.LastGone)
			n.connected, n.stopTimeout = tt.connected, tt.timeout
			began := time.Now()
			n.Stop()
			if took := time.Since(began); took < tt.min || took > tt.max {
				t.Errorf("Stop took %v; want %v to %v", took, tt.min, tt.max)
			}
			n.wantFenced(false)
			if got := n.orders.Status().Answers[kube.AnswerReported] == 1; got != tt.reported {
				t.Errorf("reported = %t; want %t\n%s", got, tt.reported, n.log)
			}
			if saved := n.orders.Saved(); len(saved) > 0 {
				t.Errorf("saved orders = %+v; want none", saved)
			}
			if err := n.Fence(n.job()); !errors.Is(err, errStopped) {
				t.Errorf("Fence after Stop = %v; want %v", err, errStopped)
			}
			n.wantFenced(false)
		})
	}
}

// A pod whose processes end during a clean stop is reported, although the actuator reports
// nothing more.
func TestStopSeesEnd(t *testing.T) {
	n := newNode(t, exclusive)
	n.run()
	p := n.connect(kube.AnswerReported, 0)
	n.pause()
	_, kill := n.process(n.container())
	n.evict(false)
	n.fence()
	n.exited()
	n.stopTimeout = 20 * time.Second
	done := make(chan struct{})
	go func() { n.Run(t.Context()); close(done) }()
	t.Cleanup(func() { <-done })
	time.AfterFunc(100*time.Millisecond, kill)
	began := time.Now()
	n.Stop()
	if got, took := p.got(), time.Since(began); !slices.Equal(got, []kube.Stage{kube.StageKilled, kube.StageEnded}) || took > 10*time.Second {
		t.Errorf("Stop took %v, stages %v; want the end reported", took, got)
	}
	n.wantFenced(false)
}

// Everything was reported before the fence began to be set, by a goroutine that got no CPU. Run looks at the cgroup.
func TestFinishedBeforeFence(t *testing.T) {
	n := newNode(t, exclusive)
	n.evict(false)
	n.report(act.LastGone)
	n.report(act.Finished)
	n.fence()
	n.wantStage(kube.StageKilled)
	n.exited()
	n.checkNow()
	n.wantStage(kube.StageEnded)
}
