package act

import (
	"context"
	"slices"
	"testing"
	"time"
)

// stoppingRuntime ends the processes of a container that it is asked to stop.
type stoppingRuntime struct {
	fakeRuntime
	pod   *kubeletPod
	first time.Time // of the first call
}

func (r *stoppingRuntime) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	r.mu.Lock()
	if r.first.IsZero() {
		r.first = time.Now()
	}
	r.mu.Unlock()
	err := r.fakeRuntime.StopContainer(ctx, id, grace)
	r.pod.killIn(id)
	return err
}

// asked returns the calls so far.
func (r *stoppingRuntime) asked() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(slices.Values(r.calls))
}

// shutdownKiller returns a Killer whose runtime stops containers. The job is one of a shutdown.
func (p *kubeletPod) shutdownKiller(reports *progressLog, f Fencer) (*Killer, *stoppingRuntime) {
	r := &stoppingRuntime{pod: p}
	k := NewKiller(p.hierarchy, "/proc", r, reports.record)
	k.Fencer = f
	p.job.Shutdown, p.job.Order.Hard, p.job.Order.Grace = true, false, time.Minute
	return k, r
}

// In a shutdown the kubelet stops a pod that was reported; the runtime is not asked.
func TestShutdownReported(t *testing.T) {
	p, f, reports := newKubeletPod(t), &fencer{answered: true}, &progressLog{}
	k, r := p.shutdownKiller(reports, f)
	k.Evict(t.Context(), p.job)
	time.Sleep(answerTimeout + 2*kubeletPollInterval)
	if got := r.asked(); len(got) > 0 {
		t.Errorf("the runtime was asked %q; want the pod left to the kubelet", got)
	}
	p.killIn("c1")
	p.killIn("c2")
	p.killIn("sandbox")
	_ = p.sandbox.Wait() // the shim takes its exit status
	k.Wait()
	if got := reports.stages(); !slices.Equal(got, []Stage{Signalled, LastGone, Finished}) || f.calls() > 0 {
		t.Errorf("stages = %v, %d fences; want no kill and no fence", got, f.calls())
	}
}

// If the report is not answered in time, the runtime stops the pod within the rest of its grace
// period, and the pod is fenced: at once if no answer can come.
func TestShutdownUnanswered(t *testing.T) {
	for name, tt := range map[string]struct {
		waiting bool
		grace   time.Duration
		asked   time.Duration // at the earliest
		before  time.Duration
	}{
		"no answer": {true, time.Minute, answerTimeout, time.Minute}, "no evictd-kube": {false, time.Minute, 0, answerTimeout},
		"no answer, short grace": {true, 6 * time.Second, 1500 * time.Millisecond, 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			p, f, reports := newKubeletPod(t), &fencer{waiting: tt.waiting}, &progressLog{}
			k, r := p.shutdownKiller(reports, f)
			p.job.Order.Grace = tt.grace
			began := time.Now()
			k.Evict(t.Context(), p.job)
			k.Wait()
			after := r.first.Sub(began)
			if r.first.IsZero() || after < tt.asked || after >= tt.before {
				t.Fatalf("the runtime was asked after %v; want it after %v and before %v", after, tt.asked, tt.before)
			}
			left := (p.job.Order.Grace - after).Truncate(time.Second).String()
			if got := r.asked(); len(got) != 2 || got[0] != "container c1 "+left || !f.jobs[0].Reported {
				t.Errorf("the runtime was asked %q, job fenced: %+v; want both containers stopped within %s, and an order", got, f.jobs[0], left)
			}
			if stages := reports.stages(); stages[len(stages)-1] != Finished || !slices.Contains(stages, LastGone) || reports.last().Err != nil {
				t.Errorf("stages = %v, error %v; want it finished", stages, reports.last().Err)
			}
		})
	}
}

// A pod that can't be reported is stopped through the runtime, and fenced when its first container
// has ended. Its sandbox is left to the kubelet.
func TestShutdownFenced(t *testing.T) {
	p, f, reports := newKubeletPod(t), &fencer{}, &progressLog{}
	k, r := p.shutdownKiller(reports, f)
	p.job.Reported = false
	p.job.StopStages = []StopStage{{IDs: []string{"c1"}}, {IDs: []string{"c2"}, StartBy: time.Hour}}
	k.Evict(t.Context(), p.job)
	k.Wait()
	if got := r.asked(); len(got) != 2 || got[0] != "container c1 1m0s" {
		t.Errorf("the runtime was asked %q; want both containers stopped, and not the sandbox", got)
	}
	if got := reports.stages(); !slices.Equal(got, []Stage{Signalled, LastGone, Finished}) || f.calls() != 2 || reports.last().Reported {
		t.Errorf("stages = %v, %d fences; want it stopped and fenced", got, f.calls())
	}
	if !f.jobs[0].Stopping || f.jobs[1].Stopping {
		t.Errorf("c2 can fork after c1 has stopped: %t, at the end: %t", f.jobs[0].Stopping, f.jobs[1].Stopping)
	}
}

// When the time is up, such a pod is killed and fenced.
func TestShutdownFencedAtTheEnd(t *testing.T) {
	p, f, reports := newKubeletPod(t), &fencer{}, &progressLog{}
	k, r := p.shutdownKiller(reports, f)
	r.hang = true
	p.job.Reported, p.job.Order.Hard = false, true
	ctx, cancel := context.WithCancel(t.Context())
	k.Escalate(ctx, p.job)
	p.waitFor("the pod is dead and fenced", func() bool { return f.calls() == 1 && len(p.in("c1"))+len(p.in("c2")) == 0 })
	cancel()
	k.Wait()
}

// The end of a pod that the runtime has stopped is reported at once, not at the second poll after
// it.
func TestShutdownEndsAtOnce(t *testing.T) {
	var took time.Duration
	for range 3 { // on a busy machine it may take longer
		p, f, reports := newKubeletPod(t), &fencer{}, &progressLog{}
		k, r := p.shutdownKiller(reports, f)
		k.Evict(t.Context(), p.job)
		k.Wait()
		at := reports.reports[slices.Index(reports.stages(), LastGone)].Time
		if took = at.Sub(r.first); took < kubeletPollInterval*3/4 {
			return
		}
	}
	t.Errorf("the end was reported after %v; want it at once", took)
}
