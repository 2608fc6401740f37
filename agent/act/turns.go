package act

import (
	"context"
	"slices"
	"sync"
	"time"
)

// leastRest is what a container of a later turn is given at least to end by
// itself.
const leastRest = time.Second

// stopInTurn asks the runtime to stop the containers of a job, each within what
// is left of the job's grace, and returns when all have ended what became of
// each.
func (k *Killer) stopInTurn(ctx context.Context, job *Job) []error {
	errs := make([]error, len(job.Containers))
	began := time.Now()
	var turns []<-chan struct{} // closed when all of the turn have ended
	for turn, latest := range job.latest() {
		grace := job.Order.Grace
		if turn > 0 {
			await(ctx, turns, time.Until(began.Add(latest)))
			// In whole seconds, because a runtime would round it up.
			grace = max(leastRest, (grace - time.Since(began)).Truncate(time.Second))
		}
		var stops sync.WaitGroup
		for i, c := range job.Containers {
			if job.turn(c.ID) == turn {
				stops.Go(func() { errs[i] = k.stopContainer(ctx, c, grace) })
			}
		}
		ended := make(chan struct{})
		turns = append(turns, ended)
		go func() {
			stops.Wait()
			close(ended)
		}()
	}
	for _, ended := range turns {
		<-ended
	}
	return errs
}

// latest returns when each turn begins at the latest; there is one at least.
func (j *Job) latest() []time.Duration {
	list := make([]time.Duration, max(1, len(j.Turns)))
	for i := range j.Turns {
		list[i] = j.Turns[i].Latest
	}
	return list
}

// turn returns the index of a container's turn.
func (j *Job) turn(id string) int {
	return max(0, slices.IndexFunc(j.Turns, func(t Turn) bool { return slices.Contains(t.IDs, id) }))
}

// await returns when all of the turns have ended, at the latest after that time
// or when ctx ends.
func await(ctx context.Context, turns []<-chan struct{}, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	for _, ended := range turns {
		select {
		case <-ended:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
