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
	// Fencer keeps the pods of Reported jobs from running again; nil if nothing does. It is
	// set before the first order.
	Fencer Fencer
	// Guard returns the guard of now, for a pod that is killed when its grace period ends. It may
	// be nil, and is set before the first order.
	Guard func() *evict.Guard

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
	switch {
	case job.Order.Hard:
		k.kill(ctx, job, false)
	case job.Reported:
		k.awaitKubelet(ctx, job)
	default:
		k.stop(ctx, job)
	}
}

// Escalate implements Actuator.
func (k *Killer) Escalate(ctx context.Context, job Job) {
	uid := job.Order.UID
	k.mu.Lock()
	request := k.soft[uid]
	delete(k.soft, uid)
	k.mu.Unlock()
	k.reportNow(&job, Escalated, 0, nil)
	// The soft eviction may have ended because the runtime refused it. The pod then
	// still runs, so it is killed in any case.
	k.kill(ctx, job, request != nil)
	if request != nil {
		request.cancel()
	}
}

func (k *Killer) reportNow(job *Job, stage Stage, processes int, err error) {
	k.report(Progress{UID: job.Order.UID, Stage: stage, Time: time.Now(), Processes: processes, Err: err, Reported: job.Reported})
}

// reportKilled reports that processes were signalled, or that the runtime or the kubelet
// is to kill them.
func (k *Killer) reportKilled(when time.Time, job *Job, processes int) {
	k.report(Progress{
		UID: job.Order.UID, Stage: Signalled, Time: when, Processes: processes, Reported: job.Reported,
		KubeletStops: job.Reported && job.unproven() != nil,
	})
}

// killedPod is a pod whose containers were signalled.
type killedPod struct {
	victims   []*victim
	gone      int             // number of containers whose cgroup is gone
	essential map[string]bool // containers with an essential process, by ID
	signalled int             // number of processes
	errs      []error
	fence     *fenceCall // nil if none is set
	stopping  bool       // the kill ends the pod's grace period
	// nothingKilled is why a Reported job's pod has no process to kill; nil if it may have one.
	nothingKilled error
}

// kill signals the processes of all containers with a proven cgroup, and starts a
// goroutine for the rest of the order. stopping means that it ends the pod's grace period.
func (k *Killer) kill(ctx context.Context, job Job, stopping bool) {
	p := killedPod{essential: map[string]bool{}, stopping: stopping}
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
			p.gone++
		case err != nil:
			p.errs = append(p.errs, err)
			if wrong := (*WrongVictimError)(nil); errors.As(err, &wrong) && wrong.Essential {
				p.essential[c.ID] = true
			}
		default:
			p.signalled += len(v.signalled)
			p.victims = append(p.victims, v)
			if note := v.check.guardedError(); note != nil {
				p.errs = append(p.errs, note)
			}
		}
	}
	k.begun(&job, &p, firstSignal(p.victims))
	k.work.Go(func() {
		for _, v := range p.victims {
			// Not awaited: process_mrelease(2) takes the victim's mmap lock, which a
			// thread that hangs in the kernel may keep forever.
			go reap(slices.Clone(v.largest))
		}
		k.conclude(ctx, job, p)
	})
}

// begun begins the fence and reports the kill, if there was anything to kill.
func (k *Killer) begun(job *Job, p *killedPod, when time.Time) {
	if p.allRefused(job) {
		return
	}
	if p.nothingKilled = k.nothingToKill(job, p); p.nothingKilled == nil {
		k.beginFence(job, p)
		k.reportKilled(when, job, p.signalled)
	}
}

// conclude waits for the end of the signalled containers and reports the end of the order.
func (k *Killer) conclude(ctx context.Context, job Job, p killedPod) {
	var errs []error
	var sandboxErr error
	var empty bool
	if p.nothingKilled != nil {
		errs = []error{p.nothingKilled}
	} else if job.Reported {
		errs, empty = k.finishReported(ctx, &job, &p)
	} else {
		errs, sandboxErr, empty = k.finish(ctx, job, &p)
		if p.fence != nil && p.fence.ended() {
			errs = append(errs, p.fence.err)
		}
	}
	signalled := p.signalled
	for _, v := range p.victims {
		if v.finisherSignalled != nil {
			signalled += max(0, int(v.finisherSignalled.Load())-v.preSignalled)
		}
		v.close()
	}
	if job.Reported && !empty && ctx.Err() != nil {
		return // evictd ends, and the next run resumes the eviction
	}
	err := errors.Join(append(append(p.errs, errs...), sandboxErr)...)
	// A container's cgroup must not be killed, or the kill failed.
	refused := len(p.errs) > 0 && len(p.victims)+p.gone < len(job.Containers)
	// What is left to the kubelet is not refused.
	failed := refused || !empty && !(job.Reported && len(p.errs) == 0)
	stage := Finished
	if p.nothingKilled != nil || signalled == 0 && err != nil && failed {
		stage = Refused
	}
	k.reportNow(&job, stage, signalled, err)
	if empty && !job.Reported {
		k.stopSandboxLater(ctx, job, sandboxErr)
	}
}

// Follow implements Actuator.
func (k *Killer) Follow(ctx context.Context, job Job, handle *KillHandle, result KillResult) {
	job.useContainers(handle.job.Containers)
	if handle.killInProgress() {
		// The thread of that kill may hang, so kill through new descriptors.
		handle.Close() // that thread has a reference of its own
		k.kill(ctx, job, false)
		return
	}
	if !handle.refInUse() {
		// The descriptors are closed, so kill through new ones.
		k.kill(ctx, job, false)
		return
	}
	p := killedPod{essential: map[string]bool{}, signalled: result.Processes}
	if result.Processes > 0 {
		k.beginFence(&job, &p)
		k.reportKilled(result.FirstSignal, &job, result.Processes)
	}
	k.work.Go(func() {
		defer handle.Close()
		defer handle.Unref()
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
					p.errs = append(p.errs, note)
				}
				// drain signals what the fast killer left.
				v.thread = k.PriorityThread
				p.victims = append(p.victims, v)
				continue
			}
			p.errs = append(p.errs, err)
			if wrong.Essential {
				p.essential[m.ID] = true
			}
		}
		p.gone = job.proven() - len(handle.containers) // when the handle was opened
		if result.Processes == 0 {
			k.begun(&job, &p, time.Now())
		}
		k.conclude(ctx, job, p)
	})
}

// allRefused reports whether every container has an essential process or no cgroup any more,
// so that no process is signalled, by evictd or by the runtime.
func (p *killedPod) allRefused(job *Job) bool {
	return len(p.essential) > 0 && len(p.essential)+p.gone == len(job.Containers)
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
// containers at the same time. The runtime kills containers whose cgroup is not proven. It
// is not asked to stop a container with an essential process, nor then the sandbox. finish
// returns the errors of the containers and of the sandbox, and whether all containers
// have ended (empty).
func (k *Killer) finish(ctx context.Context, job Job, p *killedPod) (containerErrs []error, sandboxErr error, empty bool) {
	victims := p.victims
	first := k.reportFirstGone(&job)
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
			if !p.essential[c.ID] && late == afterDrain {
				stops.Go(func() { stopped[i] = k.stopKilled(ctx, c) })
			}
		}
	}
	stop(false)
	last := func() {
		empty = true
		first()
		k.reportNow(&job, LastGone, 0, nil)
	}
	drains.Wait()
	stop(true)
	emptied := errors.Join(drained...) == nil
	direct := len(victims)+p.gone == len(job.Containers)
	if direct && emptied {
		last()
	}
	stops.Wait()
	if len(p.essential) > 0 {
		return append(drained, stopped...), nil, empty
	}
	// A container without a proven cgroup has ended when the runtime says so.
	if !direct && emptied && k.runtime != nil && errors.Join(stopped...) == nil {
		last()
	}
	return append(drained, stopped...), k.stopSandbox(ctx, job), empty
}

// reportFirstGone returns a function that reports FirstGone when it is called first.
func (k *Killer) reportFirstGone(job *Job) func() {
	return sync.OnceFunc(func() { k.reportNow(job, FirstGone, 0, nil) })
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
