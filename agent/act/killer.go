package act

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// Killer is the Actuator that kills and stops pods. It is safe for concurrent use.
type Killer struct {
	hierarchy *cgroup.Hierarchy
	proc      kernel.FS
	runtime   Runtime
	report    func(Progress)
	// PriorityThread is the real-time thread for containers with many processes; it may be
	// nil. It is set before the first order.
	PriorityThread *PriorityThread

	work sync.WaitGroup
	mu   sync.Mutex
	// soft maps the UID of a pod in its grace period to its newest stop request.
	soft map[string]*request
}

// request is a request to stop a pod, which cancel withdraws.
type request struct{ cancel context.CancelFunc }

// NewKiller returns a Killer that finds cgroups in h and processes in proc. report
// is called from several goroutines and must not block. runtime may be nil; then
// only containers with a proven cgroup can be killed.
func NewKiller(h *cgroup.Hierarchy, proc kernel.FS, runtime Runtime, report func(Progress)) *Killer {
	return &Killer{hierarchy: h, proc: proc, runtime: runtime, report: report, soft: map[string]*request{}}
}

// Wait returns when all orders have finished. It must not run concurrently with Evict.
func (k *Killer) Wait() { k.work.Wait() }

// Evict implements Actuator.
func (k *Killer) Evict(ctx context.Context, job Job) {
	if !job.Order.Hard {
		k.stop(ctx, job)
		return
	}
	k.kill(ctx, job)
}

// Escalate implements Actuator.
func (k *Killer) Escalate(ctx context.Context, job Job) {
	uid := job.Order.UID
	k.mu.Lock()
	request := k.soft[uid]
	delete(k.soft, uid)
	k.mu.Unlock()
	k.reportNow(uid, Escalated, 0, nil)
	// The soft eviction may have ended because the runtime refused it. The pod then
	// still runs, so it is killed in any case.
	k.kill(ctx, job)
	if request != nil {
		request.cancel()
	}
}

func (k *Killer) reportNow(uid string, stage Stage, processes int, err error) {
	k.reportAt(time.Now(), uid, stage, processes, err)
}

func (k *Killer) reportAt(when time.Time, uid string, stage Stage, processes int, err error) {
	k.report(Progress{UID: uid, Stage: stage, Time: when, Processes: processes, Err: err})
}

// kill signals the processes of all containers with a proven cgroup, and starts a
// goroutine for the rest of the order.
func (k *Killer) kill(ctx context.Context, job Job) {
	uid := job.Order.UID
	var victims []*victim
	var errs []error
	signalled, gone := 0, 0
	essential := map[string]bool{} // containers with an essential process, by ID
	for _, c := range job.Containers {
		if c.Cgroup == "" {
			continue
		}
		v, err := open(k.hierarchy, c, job.Guard)
		if err == nil {
			v.thread = k.PriorityThread
			k.PriorityThread.do(func() { err = v.kill(k.proc) }) // the number of processes is not known yet
			if err != nil {
				v.close()
			}
		}
		switch {
		case errors.Is(err, cgroup.ErrGone):
			gone++
		case err != nil:
			errs = append(errs, err)
			if wrong := (*WrongVictimError)(nil); errors.As(err, &wrong) && wrong.Essential {
				essential[c.ID] = true
			}
		default:
			signalled += len(v.signalled)
			victims = append(victims, v)
			if note := v.check.guardedError(); note != nil {
				errs = append(errs, note)
			}
		}
	}
	if !allRefused(essential, gone, &job) {
		k.reportAt(firstSignal(victims), uid, Signalled, signalled, nil)
	}
	k.work.Go(func() {
		for _, v := range victims {
			// Not awaited: process_mrelease(2) takes the victim's mmap lock, which a
			// thread that hangs in the kernel may keep forever.
			go reap(slices.Clone(v.largest))
		}
		k.conclude(ctx, job, victims, gone, essential, signalled, errs)
	})
}

// conclude waits for the end of the signalled containers and reports the end of the order.
// Its arguments are those of finish, the number of processes signalled, and the errors up
// to now.
func (k *Killer) conclude(ctx context.Context, job Job, victims []*victim, gone int, essential map[string]bool, signalled int, errs []error) {
	containerErrs, sandboxErr, empty := k.finish(ctx, job, victims, gone, essential)
	// A container's cgroup must not be killed, or the kill failed.
	refused := len(errs) > 0 && len(victims)+gone < len(job.Containers)
	errs = append(append(errs, containerErrs...), sandboxErr)
	for _, v := range victims {
		if v.finisherSignalled != nil {
			signalled += max(0, int(v.finisherSignalled.Load())-v.preSignalled)
		}
		v.close()
	}
	err := errors.Join(errs...)
	stage := Finished
	if signalled == 0 && err != nil && (refused || !empty) {
		stage = Refused
	}
	k.reportNow(job.Order.UID, stage, signalled, err)
	if empty {
		k.stopSandboxLater(ctx, job, sandboxErr)
	}
}

// Follow implements Actuator.
func (k *Killer) Follow(ctx context.Context, order evict.Order, handle *KillHandle, result KillResult) {
	job := handle.job
	job.Order = order
	if handle.killInProgress() {
		// The thread of that kill may hang, so kill through new descriptors.
		handle.Close() // that thread has a reference of its own
		k.kill(ctx, job)
		return
	}
	if !handle.refInUse() {
		// The descriptors are closed, so kill through new ones.
		k.kill(ctx, job)
		return
	}
	if result.Processes > 0 {
		k.reportAt(result.FirstSignal, order.UID, Signalled, result.Processes, nil)
	}
	k.work.Go(func() {
		defer handle.Close()
		defer handle.Unref()
		var victims []*victim
		var errs []error
		essential := map[string]bool{}
		proven := 0
		for _, c := range job.Containers {
			if c.Cgroup != "" {
				proven++
			}
		}
		if handle.guard == nil {
			handle.guard = job.Guard // no kill was attempted
		}
		for _, m := range handle.containers {
			var wrong *WrongVictimError
			v, err, note := m.killedVictim(handle), m.err, m.guardedErr
			if err == nil && m.partlyChecked {
				err = v.checkProcs(k.proc)
				note = v.check.guardedError()
			}
			if !errors.As(err, &wrong) {
				if note != nil {
					errs = append(errs, note)
				}
				// drain signals what the fast killer left.
				v.thread = k.PriorityThread
				victims = append(victims, v)
				continue
			}
			errs = append(errs, err)
			if wrong.Essential {
				essential[m.ID] = true
			}
		}
		gone := proven - len(handle.containers) // when the handle was opened
		if result.Processes == 0 && !allRefused(essential, gone, &job) {
			k.reportNow(order.UID, Signalled, 0, nil)
		}
		k.conclude(ctx, job, victims, gone, essential, result.Processes, errs)
	})
}

// allRefused reports whether every container has an essential process or no cgroup any more,
// so that no process is signalled, by evictd or by the runtime. gone is the number of
// containers whose cgroup is gone.
func allRefused(essential map[string]bool, gone int, job *Job) bool {
	return len(essential) > 0 && len(essential)+gone == len(job.Containers)
}

// firstSignal returns when the first process was signalled, or now if none was.
func firstSignal(victims []*victim) time.Time {
	var first time.Time
	for _, v := range victims {
		if !v.signalledAt.IsZero() && (first.IsZero() || v.signalledAt.Before(first)) {
			first = v.signalledAt
		}
	}
	if first.IsZero() {
		return time.Now()
	}
	return first
}

// finish waits for the killed cgroups to empty and asks the runtime to stop the
// containers at the same time. The runtime kills containers whose cgroup is not proven;
// gone is the number of containers whose cgroup is gone. A container in essential has an
// essential process: the runtime is not asked to stop it, nor the sandbox. finish
// returns the errors of the containers and of the sandbox, and whether all containers
// have ended (empty).
func (k *Killer) finish(ctx context.Context, job Job, victims []*victim, gone int, essential map[string]bool) (containerErrs []error, sandboxErr error, empty bool) {
	uid := job.Order.UID
	var once sync.Once
	first := func() { once.Do(func() { k.reportNow(uid, FirstGone, 0, nil) }) }
	var drains, stops sync.WaitGroup
	drained := make([]error, len(victims))
	for _, v := range victims {
		v.stopAfterDrain = v.hasGuarded
	}
	for i, v := range victims {
		drains.Go(func() { drained[i] = v.drain(ctx, k.proc, first) })
	}
	stopped := make([]error, len(job.Containers))
	// A container with a guarded process is stopped through the runtime only after its
	// own processes have exited: the runtime might signal all processes in the cgroup.
	stop := func(afterDrain bool) {
		for i, c := range job.Containers {
			late := slices.ContainsFunc(victims, func(v *victim) bool { return v.container.ID == c.ID && v.stopAfterDrain })
			if !essential[c.ID] && late == afterDrain {
				stops.Go(func() { stopped[i] = k.stopKilled(ctx, c) })
			}
		}
	}
	stop(false)
	last := func() {
		empty = true
		first()
		k.reportNow(uid, LastGone, 0, nil)
	}
	drains.Wait()
	stop(true)
	emptied := errors.Join(drained...) == nil
	direct := len(victims)+gone == len(job.Containers)
	if direct && emptied {
		last()
	}
	stops.Wait()
	if len(essential) > 0 {
		return append(drained, stopped...), nil, empty
	}
	// A container without a proven cgroup has ended when the runtime says so.
	if !direct && emptied && k.runtime != nil && errors.Join(stopped...) == nil {
		last()
	}
	return append(drained, stopped...), k.stopSandbox(ctx, job), empty
}

// stopSandbox stops the sandbox of a pod, which frees its shared memory, unless a
// kubelet made it.
func (k *Killer) stopSandbox(ctx context.Context, job Job) error {
	if !job.Owned || k.runtime == nil || job.SandboxID == "" {
		return nil
	}
	if err := k.runtime.StopSandbox(ctx, job.SandboxID); err != nil {
		return fmt.Errorf("stop sandbox: %w", err)
	}
	return nil
}

// While the runtime does not answer, it is asked again after retryMin, doubled up to
// retryMax: soon after a short restart, and rarely during a long outage. waitEnded
// looks at its containers in the same intervals.
const retryMin, retryMax = 500 * time.Millisecond, 10 * time.Second

// stopSandboxLater repeats a failed stop of a sandbox while the runtime does not answer.
// A pod without containers is no longer listed, so no later eviction would stop it.
func (k *Killer) stopSandboxLater(ctx context.Context, job Job, err error) {
	wait := retryMin
	for errors.Is(err, cri.ErrUnreachable) || errors.Is(err, cri.ErrTimeout) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, retryMax)
		err = k.stopSandbox(ctx, job)
	}
}

// stopRetryDelay is the time that a runtime gets to notice that a container has exited.
const stopRetryDelay = 100 * time.Millisecond

// stopKilled asks the runtime to stop a container that was killed. If the container exits
// during the call, the call may fail (containerd: "ttrpc: closed", from a shim that is
// exiting), so it is repeated once.
func (k *Killer) stopKilled(ctx context.Context, c evict.RunningContainer) error {
	err := k.stopContainer(ctx, c, 0)
	if err == nil || k.runtime == nil || errors.Is(err, cri.ErrUnreachable) || errors.Is(err, cri.ErrTimeout) {
		return err
	}
	select {
	case <-ctx.Done():
		return err
	case <-time.After(stopRetryDelay):
	}
	return k.stopContainer(ctx, c, 0)
}

func (k *Killer) stopContainer(ctx context.Context, c evict.RunningContainer, grace time.Duration) error {
	if k.runtime == nil {
		if c.Cgroup == "" {
			return fmt.Errorf("container %s: %s; no runtime is configured that could stop it", c.Name, c.Unproven)
		}
		return nil
	}
	if err := k.runtime.StopContainer(ctx, c.ID, grace); err != nil {
		return fmt.Errorf("stop container %s: %w", c.Name, err)
	}
	return nil
}

// stop asks the runtime to stop the pod within its grace period.
func (k *Killer) stop(ctx context.Context, job Job) {
	uid := job.Order.UID
	stopping, cancel := context.WithCancel(ctx)
	own := &request{cancel}
	k.mu.Lock()
	before := k.soft[uid]
	k.soft[uid] = own
	k.mu.Unlock()
	if before != nil {
		before.cancel() // the new request covers the whole pod
	}
	k.reportNow(uid, Signalled, 0, nil)
	k.work.Go(func() {
		defer cancel()
		errs := k.stopInStages(stopping, &job)
		k.mu.Lock()
		newest := k.soft[uid] == own
		if newest {
			delete(k.soft, uid)
		}
		k.mu.Unlock()
		if !newest {
			return // the kill or the newer request reports the end
		}
		if k.allEnded(job.Containers, errs) {
			k.reportNow(uid, LastGone, 0, nil)
			sandboxErr := k.stopSandbox(ctx, job)
			k.reportNow(uid, Finished, 0, errors.Join(append(errs, sandboxErr)...))
			k.stopSandboxLater(ctx, job, sandboxErr)
			return
		}
		stage := Finished
		if !slices.Contains(errs, nil) {
			stage = Refused
		}
		err := errors.Join(errs...)
		k.reportNow(uid, stage, 0, err)
		if (errors.Is(err, cri.ErrTimeout) || errors.Is(err, cri.ErrUnreachable)) && k.waitEnded(ctx, job.Containers, errs) {
			k.stopSandboxLater(ctx, job, k.stopSandbox(ctx, job))
		}
	})
}
