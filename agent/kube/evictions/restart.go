package evictions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/podfence"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/process"
)

// Open opens the file of fence marks. The error is what can't be used of it; evictd runs
// nevertheless. It is called before a pod can be killed.
func (e *Evictions) Open(o podfence.Options) error {
	table, found, err := podfence.Open(o)
	if err != nil {
		return err
	}
	e.table, e.found = table, found.Fences
	return found.Problem
}

// Close closes the file of fence marks. Fences that are set stay.
func (e *Evictions) Close() error {
	if e.table == nil {
		return nil
	}
	return e.table.Close()
}

// Restore continues the evictions of an earlier run, also those that only marks are about, and lifts
// the fences that belong to none of them. If the configuration asks for dry run, no order stays, and no fence. While the node
// shuts down, the fences without an order stay. It is called after Open and before Run.
func (e *Evictions) Restore(saved []kube.SavedOrder, dryRun bool) {
	e.o.Orders.Restore(e.withMarks(saved, time.Now()), time.Now())
	for _, o := range e.o.Orders.Saved() {
		if dryRun {
			e.o.Orders.Refused(o.Order.UID, "dry run")
			continue
		}
		e.byUID[o.Order.UID] = &eviction{
			uid: o.Order.UID, pod: o.Order.Namespace + "/" + o.Order.Name, id: o.Order.ID, exclusive: o.Order.Exclusive,
			killed: o.Killed, killedAt: cmp.Or(o.KilledAt, o.Killed.UnixNano()), ended: o.Ended, restored: true, reported: wasReported(o.Answer),
		}
		if o.Killed.IsZero() && o.Ended {
			e.byUID[o.Order.UID].refused = o.Began
		}
	}
	for _, f := range e.found {
		if v := e.byUID[f.UID()]; v != nil && v.fence == nil {
			v.fence = f.Fence
			e.o.Orders.Fenced(v.uid)
			e.o.Log.Info("continuing an eviction of an earlier run; the pod's fence is set", "pod", v.pod, "uid", v.uid, "order", v.id)
			continue
		}
		if !dryRun && e.o.ShuttingDown() {
			e.disown(f.Fence, f.Order)
			e.shutdown[f.Fence] = true
			continue
		}
		e.o.Log.Warn("lifting the fence of an earlier run, which has no pending order; the kubelet may start the pod again", "uid", f.UID(), "cgroup", f.Path(), "order", f.Order)
		e.liftFence(f.Fence)
	}
	e.found = nil
}

// recover decides how an eviction of an earlier run goes on, once the runtime has been listed.
func (e *Evictions) recover(ctx context.Context, v *eviction) {
	r := e.o.Inventory.Running(v.uid)
	switch {
	case !r.Known:
	case v.reported:
		e.known(v.uid) // only the removal of the pod's cgroup is waited for
	case r.Containers > 0:
		e.recoverRunning(ctx, v, r.LastStart)
	case v.fence != nil:
		if e.endIfEmpty(v) {
			e.known(v.uid)
		}
	case len(r.Sandboxes) == 0 && !v.refused.IsZero():
		e.known(v.uid) // its sandbox may not be listed yet
	case len(r.Sandboxes) == 0:
		e.gone(v.uid)
	case v.exclusive != "":
		// It may run again before its phase is Failed.
		e.end(v, "it has no fence, and two instances of it must not run")
	case !v.killed.IsZero() && time.Since(v.killed) >= lateReport:
		e.end(v, "it has no fence, and its kubelet may have started it again while evictd did not run")
	default:
		e.ended(v.uid)
		e.known(v.uid)
	}
}

// recoverRunning decides how the eviction of a pod goes on that runs. The newest of its
// containers was created at lastStart.
func (e *Evictions) recoverRunning(ctx context.Context, v *eviction, lastStart int64) {
	if v.restarted(lastStart) {
		e.count(func(c *Status) { c.Revived++ })
		e.end(v, "its kubelet has started it again while evictd did not run")
		return
	}
	switch decided, dryRun := e.o.Decided(); {
	case !decided || e.stopping.Load(): // the loop may resume the eviction
	case dryRun:
		e.end(v, "dry run")
	case !v.refused.IsZero():
		e.end(v, "no container of it had run, and one runs now")
	case v.killed.IsZero():
		e.end(v, "nothing of it was killed, and its grace period is not known any more")
	case e.o.Resume(ctx, evict.Order{UID: v.uid, Pod: v.pod, Hard: true}):
		e.known(v.uid)
		e.o.Log.Warn("killing a pod again whose processes an earlier run has left", "pod", v.pod, "uid", v.uid)
	}
}

// known records that an eviction of an earlier run goes on as those of this run.
func (e *Evictions) known(uid string) {
	e.update(uid, func(v *eviction) { v.restored, v.gaveUp = false, true })
}

// Release lifts the fences that an evictd of this boot left, and writes a line about each to
// w. It fails if another evictd runs, and if not all are lifted.
func Release(w io.Writer, cgroupfs, procfs kernel.FS, file string) error {
	hierarchy, err := cgroup.Find(cgroupfs)
	if err != nil {
		return err
	}
	bootID, err := process.BootID(procfs)
	if err != nil {
		return err
	}
	released, problem, err := podfence.Release(podfence.Options{File: file, BootID: bootID, Hierarchy: hierarchy})
	if errors.Is(err, podfence.ErrLocked) {
		return fmt.Errorf("%w; stop it (systemctl stop evictd): it then lifts its fences itself", err)
	}
	if err != nil {
		return err
	}
	errs := []error{problem}
	for _, r := range released {
		if r.Err != nil {
			errs = append(errs, r.Err)
			continue
		}
		fmt.Fprintf(w, "pod %s: fence lifted (cgroup %s)\n", r.UID, r.Path)
	}
	if len(released) == 0 && problem == nil {
		fmt.Fprintln(w, "no fences")
	}
	return errors.Join(errs...)
}
