package evictions

import (
	"context"
	"errors"
	"path"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/podfence"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/process"
)

const (
	// checkInterval is how often fences are checked, and pods without one looked for. systemd
	// may write a limit back at any time; the kubelet needs longer to try to start a container
	// again.
	checkInterval = 500 * time.Millisecond
	// stopInterval is checkInterval while Stop waits for the end of pods.
	stopInterval = 50 * time.Millisecond
	// lateReport is how long the report of a pod without a fence may still come after the
	// kubelet has started it again: the report then ends it again at once. Later it would evict
	// a pod for a reason of the past.
	lateReport = 10 * time.Second
	// lateStart is how long after a kill agent/act has killed all containers that had been
	// created before the fence was set.
	lateStart = 2 * time.Second
)

// Run checks the fences and the evicted pods until ctx ends. It does nothing while there are
// none.
func (e *Evictions) Run(ctx context.Context) {
	for {
		var again <-chan time.Time
		if e.check(ctx, time.Now()) {
			interval := checkInterval
			if e.stopping.Load() {
				interval = stopInterval
			}
			again = time.After(interval)
		}
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		case <-again:
		}
	}
}

// check checks all fences and evictions once, and reports whether there are any.
func (e *Evictions) check(ctx context.Context, now time.Time) (more bool) {
	e.mu.Lock()
	var list []eviction
	for _, v := range e.byUID {
		list = append(list, *v)
	}
	fences := len(e.unlifted) > 0
	e.mu.Unlock()
	e.liftAfterShutdown()
	if fences || e.fences() > 0 {
		e.checkFences(now)
	}
	for i := range list {
		e.follow(ctx, &list[i], now)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.byUID)+len(e.unlifted)+e.fences() > 0
}

// checkFences sets again what others changed, ends the evictions whose cgroup is gone, and
// lifts fences that belong to no eviction.
func (e *Evictions) checkFences(now time.Time) {
	r, err := e.table.Check()
	for _, f := range r.Gone {
		e.goneInShutdown(f)
		if e.owns(f) {
			e.gone(f.UID())
		}
	}
	e.liftOrphans(r.Set, now)
	if len(r.Changed) > 0 {
		e.count(func(c *Status) { c.Changed += uint64(len(r.Changed)) })
		if skipped, ok := e.changes.Allow(now); ok {
			c := r.Changed[0]
			e.o.Log.Warn("another program changed a limit of a fenced pod; it is 0 again", "uid", c.UID, "file", c.File.String(), "value", c.Limit.String(), "not_logged", skipped+len(r.Changed)-1)
		}
	}
	if err != nil {
		if skipped, ok := e.problems.Allow(now); ok {
			e.o.Log.Error("check of the fences found problems", "error", err, "not_logged", skipped)
		}
	}
	e.liftAgain()
}

// liftAgain lifts the fences that could not be lifted, unless Check has, or they were set again:
// for another eviction of the pod, or for none, and then liftOrphans finds them.
func (e *Evictions) liftAgain() {
	e.mu.Lock()
	unlifted := e.unlifted
	e.unlifted = nil
	e.mu.Unlock()
	for _, f := range unlifted {
		if err := f.LiftAgain(); err != nil {
			e.mu.Lock()
			e.unlifted = append(e.unlifted, f)
			e.mu.Unlock()
		} else if !f.IsSet() {
			e.o.Log.Info("fence lifted", "uid", f.UID())
			e.count(func(c *Status) { c.Lifted++ })
		}
	}
}

// owns reports whether a pod's eviction has a fence, or none.
func (e *Evictions) owns(f *podfence.Fence) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.byUID[f.UID()]
	return v != nil && (v.fence == f || v.fence == nil && e.setting[f.UID()] == 0)
}

// liftOrphans lifts those of the set fences that have belonged to no eviction for checkInterval.
// There should be none: one that was found only now is just being lifted.
func (e *Evictions) liftOrphans(set []*podfence.Fence, now time.Time) {
	orphans := map[*podfence.Fence]time.Time{}
	e.mu.Lock()
	for _, f := range set {
		v := e.byUID[f.UID()]
		if (v == nil || v.fence != f) && !e.shutdown[f] && e.setting[f.UID()] == 0 && !slices.Contains(e.unlifted, f) {
			orphans[f] = now
		}
	}
	e.mu.Unlock()
	for f := range orphans {
		found, before := e.orphans[f]
		if !before {
			continue
		}
		if orphans[f] = found; now.Sub(found) >= checkInterval {
			e.o.Log.Error("lifting the fence of a pod that has no pending eviction", "uid", f.UID(), "cgroup", f.Path())
			e.liftFence(f)
		}
	}
	e.orphans = orphans
}

// gone records that a pod's cgroup was removed.
func (e *Evictions) gone(uid string) {
	e.mu.Lock()
	delete(e.byUID, uid)
	e.mu.Unlock()
	e.o.Orders.CgroupGone(uid)
}

// follow does what is due for an eviction.
func (e *Evictions) follow(ctx context.Context, v *eviction, now time.Time) {
	switch {
	case v.void != "":
		e.end(v, v.void)
	case !e.o.Orders.Pending(v.uid):
		e.drop(v) // the order ended before its fence was set
	case v.restored:
		e.recover(ctx, v)
	case v.fence != nil && !v.fence.IsSet():
		e.forgetFence(v)
	case v.fence == nil:
		e.followUnfenced(v, now)
	case !v.revived && now.Sub(v.killed) >= lateStart && v.restarted(e.o.Inventory.Running(v.uid).LastStart):
		e.killRevived(ctx, v)
	case (v.gaveUp || e.stopping.Load()) && !v.ended:
		e.endIfEmpty(v) // the actuator reports nothing more
	}
}

// forgetFence forgets a fence that is not set: it was lifted, or its cgroup was removed, before the eviction had it. v is
// a copy, as of drop.
func (e *Evictions) forgetFence(v *eviction) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if live := e.byUID[v.uid]; live != nil && live.fence == v.fence && e.setting[v.uid] == 0 {
		live.fence = nil
	}
}

// killRevived kills a pod again of which the kubelet has started a container in spite of the
// fence, because that was incomplete or came too late.
func (e *Evictions) killRevived(ctx context.Context, v *eviction) {
	decided, dryRun := e.o.Decided()
	if !decided || dryRun || e.stopping.Load() || !e.setRevived(v, true) {
		return
	}
	if !e.o.Resume(ctx, evict.Order{UID: v.uid, Pod: v.pod, Hard: true}) {
		e.setRevived(v, false) // the loop's list has not got the container yet
		return
	}
	e.revived(v, "the kubelet has started an evicted pod again before its fence was set; killing it again")
}

// setRevived sets whether it is known that the kubelet has started a container of an evicted pod
// again. v is a copy: nothing is set if the pod was killed again since, or is just being fenced.
func (e *Evictions) setRevived(v *eviction, revived bool) (ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	live := e.byUID[v.uid]
	if ok = live != nil && live.id == v.id && live.killed.Equal(v.killed) && live.fence == v.fence && e.setting[v.uid] == 0; ok {
		live.revived = revived
	}
	return ok
}

// revived counts and logs that the kubelet has started a container of an evicted pod again.
func (e *Evictions) revived(v *eviction, message string) {
	e.count(func(c *Status) { c.Revived++ })
	e.o.Log.Warn(message, "pod", v.pod, "uid", v.uid)
}

// followUnfenced looks for the end of a pod without a fence, and for containers that its
// kubelet has started again.
func (e *Evictions) followUnfenced(v *eviction, now time.Time) {
	r := e.o.Inventory.Running(v.uid)
	switch {
	case !r.Known:
	case !v.refused.IsZero():
		e.followRefused(v, &r, now)
	case len(r.Sandboxes) == 0:
		e.gone(v.uid)
	case !v.restarted(r.LastStart):
	case !v.revived:
		if !e.setRevived(v, true) {
			return
		}
		e.revived(v, "the kubelet has started an evicted pod again, which has no fence")
		if v.exclusive != "" && !e.reported(v.uid) {
			// Its phase would become Failed while it runs.
			e.end(v, "its kubelet has started it again")
		}
	case now.Sub(v.killed) >= lateReport && !e.reported(v.uid):
		e.end(v, "its kubelet has started it again, and it was not reported in time")
	}
}

// followRefused looks for the end of a pod that was refused. The runtime may list its sandbox only
// later, and the kubelet may start a container while the report is on its way: then the report ends it.
func (e *Evictions) followRefused(v *eviction, r *pods.Running, now time.Time) {
	switch {
	case e.reported(v.uid):
		if len(r.Sandboxes) == 0 {
			e.gone(v.uid)
		}
	case r.Containers == 0:
	case v.exclusive != "":
		// Its phase would become Failed while it runs.
		e.end(v, "no container of it had run, and one runs now")
	case now.Sub(v.refused) >= lateReport:
		e.end(v, "a container of it runs now, and it was not reported in time")
	}
}

// restarted reports whether a container was created after the kill. Both times are of the wall
// clock at that moment: a clock that was set back since must not make the killed container newer
// than the kill.
func (v *eviction) restarted(lastStart int64) bool {
	return !v.killed.IsZero() && lastStart > v.killedAt
}

// reported reports whether evictd-kube has reported the eviction of a pod.
func (e *Evictions) reported(uid string) bool {
	answer, pending := e.o.Orders.Answer(uid)
	return !pending || wasReported(answer)
}

func wasReported(a kube.Answer) bool {
	return a != "" && a != kube.AnswerMarked && a != kube.AnswerDelayed
}

// endIfEmpty ends the wait for the processes of a fenced pod if none is left.
func (e *Evictions) endIfEmpty(v *eviction) (ended bool) {
	left, err := e.processesLeft(v.fence)
	if err != nil {
		if skipped, ok := e.problems.Allow(time.Now()); ok {
			e.o.Log.Error("could not list the processes of an evicted pod; its eviction is not reported until that succeeds", "pod", v.pod, "uid", v.uid, "error", err, "not_logged", skipped)
		}
	} else if !left {
		e.ended(v.uid)
	}
	return err == nil && !left
}

// processesLeft reports whether the pod's cgroup has a process of a container: one that is
// neither the first of the pod's sandbox nor essential, as a shim is.
func (e *Evictions) processesLeft(f *podfence.Fence) (bool, error) {
	group, err := e.o.Hierarchy.Open(f.Path())
	if errors.Is(err, cgroup.ErrGone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer group.Close()
	pids, err := group.Procs(nil)
	if errors.Is(err, cgroup.ErrGone) {
		return false, nil
	}
	sandboxes, guard := e.o.Inventory.Running(f.UID()).Sandboxes, e.o.Inventory.Guard()
	stays := func(pid int) bool {
		_, essential := guard.Protected[pid]
		return (essential || slices.Contains(sandboxes, guard.Inits[pid])) && !guard.Reused(pid, e.startOf)
	}
	if err != nil || slices.ContainsFunc(pids, func(pid int) bool { return !stays(pid) }) {
		return true, err
	}
	return e.exitsBelow(group, f.Path(), stays)
}

// exitsBelow reports whether a cgroup below a pod's has a process that is not listed: one whose last
// thread has begun to exit and hangs in that, closing files of a network filesystem for example. The
// cgroups of processes that stay are left out. On v1, the kernel does not tell.
func (e *Evictions) exitsBelow(pod *cgroup.Cgroup, at string, stays func(pid int) bool) (bool, error) {
	names, err := pod.Children()
	if err != nil {
		return false, ignoreGone(err)
	}
	for _, name := range names {
		populated, err := e.exitsIn(path.Join(at, name), stays)
		if populated || err != nil {
			return populated, err
		}
	}
	return false, nil
}

// exitsIn is exitsBelow for one cgroup.
func (e *Evictions) exitsIn(at string, stays func(pid int) bool) (bool, error) {
	group, err := e.o.Hierarchy.Open(at)
	if err != nil {
		return false, ignoreGone(err)
	}
	defer group.Close()
	pids, err := group.Procs(nil)
	if err != nil || slices.ContainsFunc(pids, stays) {
		return false, ignoreGone(err)
	}
	populated, err := group.Populated()
	return populated, ignoreGone(err)
}

// ignoreGone returns nil for the error about a cgroup that was removed.
func ignoreGone(err error) error {
	if errors.Is(err, cgroup.ErrGone) {
		return nil
	}
	return err
}

// startOf returns the start time of a process, 0 if it can't be read.
func (e *Evictions) startOf(pid int) uint64 {
	stat, err := process.ReadStat(e.o.Procfs, pid)
	if err != nil {
		return 0
	}
	return stat.StartTime
}
