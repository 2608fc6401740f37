package act

import (
	"context"
	"errors"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// DryRun is the Actuator that touches nothing: it checks what a Killer would
// check, counts what it would signal, and reports that.
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
			continue // the runtime would be asked
		}
		n, err := d.look(c, job.Guard)
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

func (d *DryRun) look(c evict.ContainerHandle, g *evict.Guard) (processes int, err error) {
	v, err := open(d.hierarchy, c, g)
	if err != nil {
		return 0, err
	}
	defer v.close()
	if err := v.list(d.proc); err != nil {
		return 0, err
	}
	return len(v.procs), v.verdict.note()
}

// Follow implements Actuator.
func (d *DryRun) Follow(ctx context.Context, order evict.Order, hold *Hold, strike Strike) {
	defer hold.Close()
	if hold.beingStruck() {
		job := hold.job
		job.Order = order
		d.Evict(ctx, job)
		return
	}
	processes, errs := strike.Processes, []error{strike.Err}
	guard := hold.guard
	if guard == nil {
		guard = &evict.Guard{} // nothing was struck, and here nothing is
	}
	for _, m := range hold.members {
		if m.err == nil { // a strike does not look at all processes of a container of many
			n, err := d.look(m.ContainerHandle, guard)
			if err != nil && !errors.Is(err, cgroup.ErrGone) {
				errs = append(errs, err)
			}
			processes += max(0, n-m.sent)
		}
	}
	stage, err := Finished, errors.Join(errs...)
	if err != nil && processes == 0 {
		stage = Refused
	}
	d.report(Progress{UID: order.UID, Stage: stage, Time: time.Now(), Processes: processes, Err: err})
}

// Harden implements Actuator. Nothing was begun, so nothing ends.
func (d *DryRun) Harden(context.Context, Job) {}
