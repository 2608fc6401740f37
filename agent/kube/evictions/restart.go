package evictions

import (
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

// Restore continues the evictions of an earlier run, whose orders were restored and are
// pending, and lifts the fences that belong to none of them. If the configuration asks for
// dry run, no order stays, and no fence. It is called before Run, and before a pod can be
// killed.
func (e *Evictions) Restore(found []podfence.Left, saved []kube.SavedOrder, dryRun bool) {
	for i := range saved {
		o := &saved[i]
		switch {
		case dryRun:
			e.o.Log.Warn("the eviction of the pod by an earlier run is given up and not reported: dry run", "pod", o.Order.Namespace+"/"+o.Order.Name, "uid", o.Order.UID)
			e.o.Orders.Refused(o.Order.UID, "dry run")
		case !o.CgroupGone:
			e.byUID[o.Order.UID] = &eviction{
				uid: o.Order.UID, pod: o.Order.Namespace + "/" + o.Order.Name, id: o.Order.ID, exclusive: o.Order.Exclusive,
				killed: o.Killed, ended: o.Order.Stage == kube.StageEnded, restored: true, reported: wasReported(o.Answer),
			}
		}
	}
	for _, f := range found {
		if v := e.byUID[f.UID()]; v != nil && v.id == f.Order && v.fence == nil {
			v.fence = f.Fence
			e.o.Log.Info("continuing an eviction of an earlier run, whose pod has a fence", "pod", v.pod, "uid", v.uid)
			continue
		}
		e.o.Log.Warn("lifting a fence of an earlier run, which has no pending order; the kubelet may start the pod again", "uid", f.UID(), "cgroup", f.Path())
		e.liftFence(f.Fence)
	}
}

// recover decides how an eviction of an earlier run goes on, once the runtime has been listed.
func (e *Evictions) recover(v *eviction) {
	r := e.o.Inventory.Running(v.uid)
	switch {
	case !r.Known:
	case v.reported:
		e.known(v.uid) // only the removal of the pod's cgroup is waited for
	case r.Containers > 0:
		e.recoverRunning(v, r.LastStart)
	case v.fence != nil:
		if e.endIfEmpty(v) {
			e.known(v.uid)
		}
	case !r.Listed:
		e.gone(v.uid)
	case v.exclusive != "":
		// It may run again before its phase is Failed.
		e.end(v, "it has no fence, and two instances of it must not run")
	default:
		e.ended(v.uid)
		e.known(v.uid)
	}
}

// recoverRunning decides how the eviction of a pod goes on that runs. The newest of its
// containers was created at lastStart.
func (e *Evictions) recoverRunning(v *eviction, lastStart int64) {
	if v.restarted(lastStart) {
		e.count(func(c *Counts) { c.Revived++ })
		e.end(v, "its kubelet has started it again while evictd did not run")
		return
	}
	switch decided, dryRun := e.o.Decided(); {
	case !decided: // the loop may resume the eviction
	case dryRun:
		e.end(v, "dry run")
	case v.killed.IsZero():
		e.end(v, "nothing of it was killed, and its grace period is not known any more")
	default:
		e.known(v.uid)
		e.o.Log.Warn("killing a pod again whose processes an earlier run has left", "pod", v.pod, "uid", v.uid)
		e.o.Resume(evict.Order{UID: v.uid, Pod: v.pod, Hard: true})
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

// stopTimeout is how long a clean stop waits for answers.
const stopTimeout = 5 * time.Second
