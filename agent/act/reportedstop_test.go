package act

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
)

// In its grace period a pod is left to the kubelet. The end is reported when it has stopped
// all, also a container that started later.
func TestStopReported(t *testing.T) {
	p, f, reports := newKubeletPod(t), &fencer{}, &progressLog{}
	k := p.killer(reports, f)
	p.job.Order.Hard, p.job.Order.Grace = false, time.Minute
	p.start("new", "exec sleep 1000")
	k.Evict(t.Context(), p.job)
	time.Sleep(2 * kubeletPollInterval)
	for _, name := range []string{"c1", "c2", "new"} {
		if got := reports.stages(); !slices.Equal(got, []Stage{Signalled}) || !reports.last().KubeletStops || len(p.in(name)) == 0 {
			t.Fatalf("before %s ends: stages = %v; want Signalled alone, and it alive", name, got)
		}
		p.killIn(name)
		time.Sleep(kubeletPollInterval / 2)
	}
	p.killIn("sandbox")
	_ = p.sandbox.Wait() // the shim takes its exit status
	k.Wait()
	if got := reports.stages(); !slices.Equal(got, []Stage{Signalled, LastGone, Finished}) || reports.last().Err != nil || f.calls() > 0 {
		t.Errorf("stages = %v, %d fences; want no kill and no fence", got, f.calls())
	}
}

// killIn kills the processes of a cgroup below the pod's.
func (p *kubeletPod) killIn(name string) {
	for _, pid := range p.in(name) {
		proc, err := os.FindProcess(pid)
		if err == nil {
			_ = proc.Kill()
		}
	}
	p.waitFor(name+" is empty", func() bool { return len(p.in(name)) == 0 })
}

// If all containers end and the sandbox stays, the kubelet may not know of the eviction, and
// start one again: the pod is fenced, and what has been started is killed.
func TestStopReportedSandboxStays(t *testing.T) {
	p, f, reports := newKubeletPod(t), &fencer{}, &progressLog{}
	k := p.killer(reports, f)
	p.job.Order.Hard, p.job.Order.Grace = false, time.Hour
	k.Evict(t.Context(), p.job)
	time.Sleep(kubeletPollInterval / 2)
	p.killIn("c1")
	p.killIn("c2")
	p.waitFor("the pod is fenced", func() bool { return f.calls() == 1 })
	p.start("again", "exec sleep 1000")
	k.Wait()
	if got := reports.stages(); !slices.Equal(got, []Stage{Signalled, Signalled, FirstGone, LastGone, Finished}) || reports.last().Err != nil || f.calls() != 1 {
		t.Errorf("stages = %v, error %v, %d fences; want it fenced and finished", got, reports.last().Err, f.calls())
	}
	if n := len(p.in("again")); n > 0 {
		t.Errorf("%d processes left", n)
	}
}

// The kubelet has stopped a pod whose cgroup it has removed, also if nothing is known of its
// sandbox. If a container may run, it has not.
func TestStopReportedWithoutSandbox(t *testing.T) {
	p, f, reports := newKubeletPod(t), &fencer{}, &progressLog{}
	k := p.killer(reports, f)
	p.job.Order.Hard, p.job.Order.Grace = false, time.Hour
	p.job.SandboxPID, p.job.SandboxStart = 0, 0
	p.killIn("c1")
	p.killIn("c2")
	if stopped, polls := k.stoppedByKubelet(&p.job, 1); stopped || polls != 0 {
		t.Errorf("with a process that may be a container's: stopped %t, %d polls; want the grace period to go on", stopped, polls)
	}
	p.killIn("sandbox")
	if stopped, polls := k.stoppedByKubelet(&p.job, 1); stopped || polls != 2 {
		t.Errorf("with the pod's cgroup: stopped %t, %d polls; want another poll", stopped, polls)
	}
	_ = p.sandbox.Wait()
	p.removeAll()
	k.Evict(t.Context(), p.job)
	k.Wait()
	if got := reports.stages(); !slices.Equal(got, []Stage{Signalled, LastGone, Finished}) || reports.last().Err != nil || f.calls() > 0 {
		t.Errorf("stages = %v, %d fences; want no kill and no fence", got, f.calls())
	}
}

// The kubelet does not stop the sandbox of a pod that the runtime has stopped in a shutdown.
func TestShutdownWithoutKubelet(t *testing.T) {
	p, f, reports := newKubeletPod(t), &fencer{}, &progressLog{}
	k := NewKiller(p.hierarchy, "/proc", &fakeRuntime{}, reports.record)
	k.Fencer = f
	p.job.Shutdown, p.job.Order.Hard, p.job.Order.Grace = true, false, time.Hour
	k.Evict(t.Context(), p.job)
	p.killIn("c1")
	p.killIn("c2")
	ended := time.Now()
	k.Wait()
	if got := reports.stages(); !slices.Equal(got, []Stage{Signalled, Signalled, FirstGone, LastGone, Finished}) {
		t.Fatalf("stages = %v; want it finished", got)
	}
	if took := reports.reports[1].Time.Sub(ended); took >= endedPolls/2*kubeletPollInterval {
		t.Errorf("the sandbox was waited for, %v; want %v", took, 2*kubeletPollInterval)
	}
}

// When the grace period ends or is ended, the pod is killed and fenced.
func TestStopReportedEndsInKill(t *testing.T) {
	for name, escalate := range map[string]bool{"grace over": false, "escalated": true} {
		t.Run(name, func(t *testing.T) {
			p, f, reports := newKubeletPod(t), &fencer{}, &progressLog{}
			k := p.killer(reports, f)
			p.job.Order.Hard, p.job.Order.Grace = false, 300*time.Millisecond
			want := []Stage{Signalled, Signalled, FirstGone, LastGone, Finished}
			if escalate {
				p.job.Order.Grace = time.Hour
				want = slices.Insert(want, 1, Escalated)
			}
			k.Evict(t.Context(), p.job)
			if escalate {
				p.job.Order.Hard = true
				k.Escalate(t.Context(), p.job)
			}
			k.Wait()
			if got := reports.stages(); !slices.Equal(got, want) || reports.last().Processes != 4 || reports.last().Err != nil {
				t.Errorf("stages = %v, last %+v; want %v and four processes", got, reports.last(), want)
			}
			if f.calls() != 1 || len(p.in("c1"))+len(p.in("c2")) > 0 {
				t.Errorf("%d fences, processes left: %v %v", f.calls(), p.in("c1"), p.in("c2"))
			}
		})
	}
}

// What became essential in the grace period is not killed at its end.
func TestStopReportedGuard(t *testing.T) {
	p, reports := newKubeletPod(t), &progressLog{}
	k := p.killer(reports, &fencer{})
	guard := *p.job.Guard
	guard.Protected = map[int]string{p.job.Containers[0].InitPID: "the kubelet"}
	k.Guard = func() *evict.Guard { return &guard }
	p.job.Order.Hard, p.job.Order.Grace = false, 300*time.Millisecond
	k.Evict(t.Context(), p.job)
	p.waitFor("c2 is killed", func() bool { return len(p.in("c2")) == 0 })
	k.Wait()
	if n := len(p.in("c1")); n == 0 {
		t.Errorf("the kubelet was killed; stages %v, error %v", reports.stages(), reports.last().Err)
	}
}

// A pod whose report was refused in its grace period is not killed at its end.
func TestStopReportedForbidden(t *testing.T) {
	p, f, reports := newKubeletPod(t), &fencer{forbidden: errors.New("forbidden")}, &progressLog{}
	k := p.killer(reports, f)
	p.job.Order.Hard, p.job.Order.Grace = false, 300*time.Millisecond
	k.Evict(t.Context(), p.job)
	k.Wait()
	if got := reports.stages(); !slices.Equal(got, []Stage{Signalled, Refused}) || !errors.Is(reports.last().Err, f.forbidden) {
		t.Errorf("stages = %v, error %v; want the kill refused", got, reports.last().Err)
	}
	if f.calls() != 0 || len(p.in("c1")) == 0 || len(p.in("c2")) == 0 {
		t.Errorf("%d fences, processes left: %v %v; want no fence, and all processes", f.calls(), p.in("c1"), p.in("c2"))
	}
}

// When evictd ends, the grace period of the pod is not reported to have ended: the next run
// resumes it.
func TestStopReportedAtEnd(t *testing.T) {
	p, f, reports := newKubeletPod(t), &fencer{}, &progressLog{}
	k := p.killer(reports, f)
	p.job.Order.Hard, p.job.Order.Grace = false, time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	k.Evict(ctx, p.job)
	cancel()
	k.Wait()
	if got := reports.stages(); !slices.Equal(got, []Stage{Signalled}) || len(p.in("c1")) != 2 {
		t.Errorf("stages = %v, %d processes; want Signalled and the pod alive", got, len(p.in("c1")))
	}
}
