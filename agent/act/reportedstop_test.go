package act

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"
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
