package act

import (
	"context"
	"errors"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// DryRun is the Actuator that changes nothing. It makes the checks of a Killer,
// counts the processes that a Killer would signal, and reports the count.
type DryRun struct {
	hierarchy *cgroup.Hierarchy
	proc      kernel.FS
	report    func(Progress)
}

// NewDryRun returns a DryRun that finds cgroups in h and processes in proc.
func NewDryRun(h *cgroup.Hierarchy, proc kernel.FS, report func(Progress)) *DryRun {
	return &DryRun{hierarchy: h, proc: proc, report: report}
}

// Evict implements Actuator.
func (d *DryRun) Evict(_ context.Context, job Job) {
	var errs []error
	processes := 0
	for _, c := range job.Containers {
		if c.Cgroup == "" {
			continue // a Killer would ask the runtime
		}
		n, err := d.countProcs(c, job.Guard)
		if err != nil && !errors.Is(err, cgroup.ErrGone) {
			errs = append(errs, err)
		}
		processes += n
	}
	stage := Finished
	if len(errs) > 0 && processes == 0 {
		stage = Refused
	}
	d.report(Progress{UID: job.Order.UID, Stage: stage, Time: time.Now(), Processes: processes, Err: errors.Join(errs...)})
}

func (d *DryRun) countProcs(c evict.RunningContainer, g *evict.Guard) (processes int, err error) {
	v, err := open(d.hierarchy, c, g)
	if err != nil {
		return 0, err
	}
	defer v.close()
	if err := v.listProcs(d.proc); err != nil {
		return 0, err
	}
	return len(v.procs), v.check.guardedError()
}

// Follow implements Actuator.
func (d *DryRun) Follow(ctx context.Context, job Job, handle *KillHandle, result KillResult) {
	defer handle.Close()
	if handle.killInProgress() {
		job.useContainers(handle.job.Containers)
		d.Evict(ctx, job)
		return
	}
	processes, errs := result.Processes, []error{result.Err}
	guard := handle.guard
	if guard == nil {
		guard = &evict.Guard{} // no kill was attempted, so no guard was set
	}
	for _, m := range handle.containers {
		if m.err == nil { // the fast killer does not read all processes of a large container
			n, err := d.countProcs(m.RunningContainer, guard)
			if err != nil && !errors.Is(err, cgroup.ErrGone) {
				errs = append(errs, err)
			}
			processes += max(0, n-m.signalled)
		}
	}
	stage, err := Finished, errors.Join(errs...)
	if err != nil && processes == 0 {
		stage = Refused
	}
	d.report(Progress{UID: job.Order.UID, Stage: stage, Time: time.Now(), Processes: processes, Err: err})
}

// Escalate implements Actuator. It does nothing: a dry run starts no grace period.
func (d *DryRun) Escalate(context.Context, Job) {}
