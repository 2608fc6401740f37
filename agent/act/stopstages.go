package act

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/evictd/evictd/cri"
)

// stop asks the runtime to stop the pod within its grace period.
func (k *Killer) stop(ctx context.Context, job Job) {
	stopping, own := k.beginGrace(ctx, job.Order.UID)
	k.reportNow(&job, Signalled, 0, nil)
	k.work.Go(func() {
		defer own.cancel()
		errs := k.stopInStages(stopping, &job)
		if !k.endGrace(job.Order.UID, own) {
			return // the kill or the newer request reports the end
		}
		if k.allEnded(job.Containers, errs) {
			k.reportNow(&job, LastGone, 0, nil)
			sandboxErr := k.stopSandbox(ctx, job)
			k.reportNow(&job, Finished, 0, errors.Join(append(errs, sandboxErr)...))
			k.stopSandboxLater(ctx, job, sandboxErr)
			return
		}
		stage := Finished
		if !slices.Contains(errs, nil) {
			stage = Refused
		}
		err := errors.Join(errs...)
		k.reportNow(&job, stage, 0, err)
		if (errors.Is(err, cri.ErrTimeout) || errors.Is(err, cri.ErrUnreachable)) && k.waitEnded(ctx, job.Containers, errs) {
			k.stopSandboxLater(ctx, job, k.stopSandbox(ctx, job))
		}
	})
}

// beginGrace begins the grace period of a pod, in place of an earlier one. The returned
// context ends when the request is withdrawn.
func (k *Killer) beginGrace(ctx context.Context, uid string) (context.Context, *request) {
	stopping, cancel := context.WithCancel(ctx)
	own := &request{cancel}
	k.mu.Lock()
	before := k.soft[uid]
	k.soft[uid] = own
	k.mu.Unlock()
	if before != nil {
		before.cancel() // the new request covers the whole pod
	}
	return stopping, own
}

// endGrace ends the grace period of a request. It returns false if the request was
// withdrawn.
func (k *Killer) endGrace(uid string, own *request) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.soft[uid] != own {
		return false
	}
	delete(k.soft, uid)
	return true
}

// stopInStages asks the runtime to stop the containers of a job, stage by stage, each
// within the rest of the job's grace period, but at least a second for the later stages.
// It returns the answers, in the order of the containers, when all stages have ended.
func (k *Killer) stopInStages(ctx context.Context, job *Job) []error {
	errs := make([]error, len(job.Containers))
	began, fence := time.Now(), k.newStopFence(job)
	var stages []<-chan struct{} // each closed when the containers of the stage have stopped
	for stage, startBy := range job.stageStarts() {
		grace := job.Order.Grace
		if stage > 0 {
			awaitStages(ctx, stages, time.Until(began.Add(startBy)))
			// Rounded down to whole seconds, because a runtime rounds up; at least one, because
			// 0 kills at once.
			grace = max(time.Second, (grace - time.Since(began)).Truncate(time.Second))
		}
		var stops sync.WaitGroup
		for i, c := range job.Containers {
			if job.stageOf(c.ID) == stage {
				stops.Go(func() {
					if errs[i] = k.stopContainer(ctx, c, grace); errs[i] == nil {
						fence.stopped(ctx)
					}
				})
			}
		}
		ended := make(chan struct{})
		stages = append(stages, ended)
		go func() {
			stops.Wait()
			close(ended)
		}()
	}
	for _, ended := range stages {
		<-ended
	}
	return errs
}

// stageStarts returns when each stage starts at the latest. There is at least one stage.
func (j *Job) stageStarts() []time.Duration {
	list := make([]time.Duration, max(1, len(j.StopStages)))
	for i := range j.StopStages {
		list[i] = j.StopStages[i].StartBy
	}
	return list
}

// stageOf returns the index of a container's stage.
func (j *Job) stageOf(id string) int {
	return max(0, slices.IndexFunc(j.StopStages, func(s StopStage) bool { return slices.Contains(s.IDs, id) }))
}

// awaitStages returns when all stages have ended, after timeout, or when ctx ends.
func awaitStages(ctx context.Context, stages []<-chan struct{}, timeout time.Duration) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for _, ended := range stages {
		select {
		case <-ended:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
