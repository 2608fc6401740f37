package act

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/process"
)

// recheckAfter are the times since the kill after which the pod's cgroup is read again for
// other containers: a runc init process that was made before the fence only has to exec.
// After the last one, the end of the pod no longer waits for the fence.
var recheckAfter = [...]time.Duration{50 * time.Millisecond, 250 * time.Millisecond, time.Second}

// kubeletPollInterval is how often a pod is looked at while its end is awaited: it may be the
// kubelet that stops it.
const kubeletPollInterval = 200 * time.Millisecond

// ErrEnded means that no process was killed, because the containers had ended by themselves.
var ErrEnded = errors.New("nothing was killed: the containers had ended by themselves")

var errNoContainer = errors.New("nothing was killed: the runtime lists no container of the pod")

// nothingToKill returns why a Reported job's pod has no process to kill, so that it is neither
// fenced nor reported; nil if it has one, had one or may have one. The order of a pod in its
// grace period has begun before.
func (k *Killer) nothingToKill(job *Job, p *killedPod) error {
	switch {
	case !job.Reported || p.signalled > 0:
		return nil
	case len(job.Containers) == 0:
		return errNoContainer
	case p.stopping || len(p.victims)+p.gone == 0 || job.unproven() != nil:
		return nil
	}
	for _, v := range p.victims {
		if populated, err := v.group.Populated(); v.wasKilled() || populated || err != nil && !errors.Is(err, cgroup.ErrGone) {
			return nil
		}
	}
	if k.podCgroup(job).runsUnlisted() {
		return nil
	}
	return ErrEnded
}

// wasKilled reports whether processes of the container were signalled, or may just be.
func (v *victim) wasKilled() bool {
	return v.killed || len(v.signalled) > 0 || v.preSignalled > 0 || v.finisherSignalled != nil
}

// fenceCall is a call of the Fencer.
type fenceCall struct {
	done chan struct{} // closed at the end
	err  error         // once done is closed
}

// beginFence has the fence of a killed pod set on another goroutine, since that may block. The
// kubelet would start the pod again.
func (k *Killer) beginFence(job *Job, p *killedPod) {
	if !job.Reported && !job.Shutdown || k.Fencer == nil || p.signalled+len(p.victims)+p.gone == 0 {
		return
	}
	call, fenced := &fenceCall{done: make(chan struct{})}, *job
	k.work.Go(func() {
		defer close(call.done)
		call.err = k.Fencer.Fence(&fenced)
	})
	p.fence = call
}

// ended reports whether the call has returned, or there is none.
func (c *fenceCall) ended() bool {
	if c == nil {
		return true
	}
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// finishReported waits until no process of a Reported job's containers is left, and kills
// other containers in the pod's cgroup. It returns what went wrong, and whether
// all containers have ended (empty).
func (k *Killer) finishReported(ctx context.Context, job *Job, p *killedPod) (errs []error, empty bool) {
	if len(p.victims)+p.gone == 0 && len(p.errs) > 0 {
		return nil, false // refused
	}
	ctx, cancel := context.WithTimeoutCause(ctx, drainTimeout, errDrainTimeout)
	defer cancel()
	e := reportedEnd{killer: k, job: job, fence: p.fence, drained: make(chan drained), first: k.reportFirstGone(job)}
	e.cgroup = k.podCgroup(job)
	for _, v := range p.victims {
		e.drain(ctx, v, false)
	}
	e.failed = len(p.victims)+p.gone < job.proven() // a container was not killed
	e.wait(ctx)
	cancel()
	for e.draining > 0 {
		e.end(<-e.drained)
	}
	if p.fence != nil && !p.fence.ended() {
		e.errs = append(e.errs, errors.New("the fence is not set yet"))
	} else if p.fence != nil && p.fence.err != nil {
		e.errs = append(e.errs, p.fence.err)
	}
	if err := job.unproven(); err != nil && !e.empty {
		e.errs = append(e.errs, err)
	}
	return append(append(e.errs, e.cgroup.errs...), e.cgroup.readErr), e.empty
}

// reportedEnd is the end of a killed pod of a Reported job.
type reportedEnd struct {
	killer   *Killer
	job      *Job
	cgroup   *podCgroup
	fence    *fenceCall // nil if none is set
	drained  chan drained
	draining int // number of goroutines that drain a container
	first    func()
	failed   bool // a container did not end
	empty    bool // LastGone was reported
	errs     []error
}

// drained is the end of a container's drain.
type drained struct {
	victim   *victim
	unlisted bool
	err      error
}

func (e *reportedEnd) drain(ctx context.Context, v *victim, unlisted bool) {
	e.draining++
	go func() { e.drained <- drained{v, unlisted, v.drain(ctx, e.killer.proc, e.first)} }()
}

func (e *reportedEnd) end(d drained) {
	e.draining--
	if d.err != nil {
		e.failed = true
		e.errs = append(e.errs, d.err)
	}
	if d.unlisted {
		e.cgroup.drained(d.victim)
	}
}

// wait returns when LastGone was reported or can't be, and all rechecks were made.
func (e *reportedEnd) wait(ctx context.Context) {
	began, rechecks := time.Now(), recheckAfter[:]
	recheck := time.NewTimer(rechecks[0])
	defer recheck.Stop()
	poll := time.NewTicker(kubeletPollInterval)
	defer poll.Stop()
	var fenced chan struct{}
	if e.fence != nil {
		fenced = e.fence.done
	}
	for {
		if over := e.look(ctx, len(rechecks) == 0); over && len(rechecks) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case d := <-e.drained:
			e.end(d)
		case <-fenced:
			fenced = nil
		case <-recheck.C:
			if rechecks = rechecks[1:]; len(rechecks) > 0 {
				recheck.Reset(time.Until(began.Add(rechecks[0])))
			}
		case <-poll.C:
		}
	}
}

// look kills the unlisted containers, and reports LastGone if no container is left. fenceLate
// means that it does not wait for the fence. It returns true once LastGone was reported or
// can't be.
func (e *reportedEnd) look(ctx context.Context, fenceLate bool) (over bool) {
	fenced := fenceLate || e.fence.ended() // before the cgroup is read
	for _, v := range e.cgroup.killUnlisted() {
		e.drain(ctx, v, true)
	}
	e.failed = e.failed || e.cgroup.failed
	if e.draining > 0 || !fenced {
		return false
	}
	if !e.failed && !e.empty && e.cgroup.readErr == nil && e.killer.leftEnded(e.job) {
		e.empty = true
		e.first()
		e.killer.reportNow(e.job, LastGone, 0, nil)
	}
	return e.empty || e.failed
}

// unproven returns an error that names the first container whose cgroup is not proven; nil
// if there is none.
func (j *Job) unproven() error {
	for _, c := range j.Containers {
		if c.Cgroup == "" {
			return fmt.Errorf("container %s: %s; it is left to the kubelet", c.Name, c.Unproven)
		}
	}
	return nil
}

// useContainers replaces the containers by those that were killed. Others of them have started
// since.
func (j *Job) useContainers(killed []evict.RunningContainer) {
	for _, c := range j.Containers {
		known := slices.ContainsFunc(killed, func(k evict.RunningContainer) bool { return k.ID == c.ID })
		if !known && c.Cgroup != "" {
			j.OtherContainers = append(slices.Clip(j.OtherContainers), c.ID)
		}
	}
	j.Containers = killed
}

// proven returns the number of containers whose cgroup is proven.
func (j *Job) proven() (n int) {
	for _, c := range j.Containers {
		if c.Cgroup != "" {
			n++
		}
	}
	return n
}

// leftEnded reports whether the containers that are left to the kubelet, if there are any,
// have ended: their first processes and that of the sandbox have exited. The kubelet stops
// the sandbox after the containers.
func (k *Killer) leftEnded(job *Job) bool {
	for _, c := range job.Containers {
		if c.Cgroup == "" && !(k.exited(c.InitPID, c.InitStart) && k.exited(job.SandboxPID, job.SandboxStart)) {
			return false
		}
	}
	return true
}

// exited reports whether a process has exited. It returns false if it is not known.
func (k *Killer) exited(pid int, start uint64) bool {
	if pid == 0 || start == 0 {
		return false
	}
	stat, err := process.ReadStat(k.proc, pid)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, process.ErrGone)
	}
	return stat.StartTime != start
}

// awaitKubelet waits for a Reported job's pod, which the kubelet stops. When the grace period
// ends, it kills the pod. It does so too when no container is left and the sandbox stays: it
// is not known then whether the kubelet stops the pod or will start a container again. If the
// node shuts down and the kubelet does not learn in time that it has to stop the pod, the runtime
// is asked to.
func (k *Killer) awaitKubelet(ctx context.Context, job Job) {
	stopping, own := k.beginGrace(ctx, job.Order.UID)
	k.report(Progress{UID: job.Order.UID, Stage: Signalled, Time: time.Now(), Reported: true, KubeletStops: true, Grace: job.Order.Grace, Order: &job.Order})
	k.work.Go(func() {
		defer own.cancel()
		grace := time.NewTimer(job.Order.Grace)
		defer grace.Stop()
		poll := time.NewTicker(kubeletPollInterval)
		defer poll.Stop()
		began, over, stopped, polls := time.Now(), false, false, 0
		informed, late, runtimeStopped := false, false, (<-chan struct{})(nil)
		for !over {
			if !informed && !late {
				if informed, late = k.informed(&job, began); late {
					runtimeStopped = k.askRuntime(stopping, job, began)
				}
			}
			if stopped, polls = k.stoppedByKubelet(&job, polls); stopped || polls == endedPolls || late && polls > 1 {
				break
			}
			select {
			case <-stopping.Done():
				return // the kill or the newer request reports the end, or evictd stops
			case <-grace.C:
				over = true
			case <-runtimeStopped:
				over = true // what is left is killed, and the pod fenced
			case <-poll.C:
			}
		}
		if !k.endGrace(job.Order.UID, own) {
			return
		}
		if !stopped {
			if err := k.allowed(&job); err != nil {
				k.reportNow(&job, Refused, 0, err)
				return
			}
			if k.Guard != nil {
				job.Guard = k.Guard() // the job's is as old as the grace period
			}
			k.kill(ctx, job, true)
			return
		}
		k.reportNow(&job, LastGone, 0, nil)
		k.reportNow(&job, Finished, 0, nil)
	})
}

// allowed returns why a pod may not be killed at the end of its grace period; nil if it may.
func (k *Killer) allowed(job *Job) error {
	if k.Fencer == nil {
		return nil
	}
	return k.Fencer.Allowed(job)
}

// endedPolls is the number of polls in a row in which a pod has a sandbox and no containers
// after which it is fenced: in 2 s. The kubelet stops the sandbox right after the last
// container, but CRI-O removes its network before its process ends, and has no process for most
// sandboxes (drop_infra_ctr); then the kubelet removes the pod's cgroup. Of a pod that the runtime
// was asked to stop, the kubelet does not stop the sandbox, so that is not waited for.
const endedPolls = 10

// stoppedByKubelet reports whether the kubelet has stopped a pod: all containers have ended,
// and the first process of the sandbox has exited, or the pod's cgroup was removed. Without the
// latter, it returns in how many polls in a row all containers had ended; polls is that of the
// last call.
func (k *Killer) stoppedByKubelet(job *Job, polls int) (stopped bool, _ int) {
	at := k.podCgroup(job)
	if !k.containersEnded(job, at) {
		return false, 0
	}
	if len(job.Containers) > 0 && (k.exited(job.SandboxPID, job.SandboxStart) || at.removed()) {
		return true, 0
	}
	if at.failed {
		return false, 0 // a container may run
	}
	return false, polls + 1
}

// containersEnded reports whether all containers of a pod have ended, also those that the
// job does not list.
func (k *Killer) containersEnded(job *Job, at *podCgroup) bool {
	for _, c := range job.Containers {
		if c.Cgroup != "" && !k.cgroupEmpty(c) {
			return false
		}
	}
	return k.leftEnded(job) && !at.runsUnlisted()
}
