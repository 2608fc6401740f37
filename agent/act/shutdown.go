package act

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// answerTimeout is how long a pod of a node that shuts down waits for the answer to its order,
// before the runtime is asked to stop it, or a quarter of its grace period if that is shorter. A
// report usually takes some ten milliseconds.
const answerTimeout = 2 * time.Second

// informed reports whether the kubelet stops a job's pod, which was begun to be stopped at began.
// It is late if the kubelet does not: the pod of a Shutdown job is not reported, and will not be
// in time.
func (k *Killer) informed(job *Job, began time.Time) (informed, late bool) {
	if !job.Shutdown || k.Fencer == nil {
		return true, false
	}
	answered, waiting := k.Fencer.Answered(job.Order.UID)
	return answered, !answered && (!waiting || time.Since(began) >= min(answerTimeout, job.Order.Grace/4))
}

// askRuntime asks the runtime to stop the pod of a job within the rest of its grace period. The
// returned channel is closed when all containers have stopped. The caller waits for the end of the
// processes as well, and kills them if the runtime fails.
func (k *Killer) askRuntime(ctx context.Context, job Job, began time.Time) <-chan struct{} {
	job.Order.Grace = max(time.Second, (job.Order.Grace - time.Since(began)).Truncate(time.Second))
	stopped := make(chan struct{})
	k.work.Go(func() {
		if errors.Join(k.stopInStages(ctx, &job)...) == nil {
			close(stopped)
		}
	})
	return stopped
}

// stopFence sets the fence of a Shutdown job's pod while the runtime stops its containers: the
// kubelet would start the first one again after 0.2 s at the earliest. The others can fork until
// the last one has stopped.
type stopFence struct {
	killer *Killer
	job    *Job
	left   atomic.Int32 // containers that have not stopped
	first  sync.Once
}

// newStopFence returns a stopFence that has set nothing.
func (k *Killer) newStopFence(job *Job) *stopFence {
	f := &stopFence{killer: k, job: job}
	f.left.Store(int32(len(job.Containers)))
	return f
}

// stopped is called when a container has stopped.
func (f *stopFence) stopped(ctx context.Context) {
	if f.left.Add(-1) > 0 {
		f.first.Do(func() { f.set(ctx, true) })
		return
	}
	f.first.Do(func() {}) // returns after the first call
	f.set(ctx, false)
}

// set calls the Fencer. If that fails, a container that the kubelet starts again is stopped again
// when it is listed. The Fencer logs it; the pod of a Reported job is killed after that, and its
// record has the error if it can't be fenced then.
func (f *stopFence) set(ctx context.Context, stopping bool) {
	if !f.job.Shutdown || f.killer.Fencer == nil || ctx.Err() != nil {
		return
	}
	job := *f.job
	job.Stopping = stopping
	_ = f.killer.Fencer.Fence(&job)
}
