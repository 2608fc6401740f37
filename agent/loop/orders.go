package loop

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/signal"
)

// MaxSystemCgroups is how many of the largest cgroups outside the pods are named in the log and
// the record when evicting pods is futile.
const MaxSystemCgroups = 5

// act gives the step's orders to the hot path, the executor and the reclaimer: hard memory
// thresholds first, then other hard ones.
func (l *Loop) act(ctx context.Context, v *View) {
	guard := l.inventory.Guard()
	rest := l.killUrgent(ctx, v, guard)
	l.escalate(ctx, v)
	l.resumeEvictions(ctx, v)
	slices.SortStableFunc(rest, func(a, b evict.Order) int {
		switch {
		case a.Hard == b.Hard:
			return 0
		case a.Hard:
			return -1
		}
		return 1
	})
	for _, order := range rest {
		l.expectDiskSpace(v, &order)
		rec := l.record(v, &order)
		l.logOrder(&rec)
		l.execute.Evict(ctx, rec, l.job(order, v, guard))
	}
	for _, order := range v.Orders.Evict {
		switch s, known := signal.Parse(order.Cause); {
		case !order.Futile:
		case known && s.IsDisk():
			directories := l.largestDirectories(s)
			l.records.EachFutile(func(rec *evict.Record) {
				if rec.UID == order.UID && rec.SystemDirectories == nil {
					rec.SystemDirectories = directories
				}
			})
			l.log.Error("evicting pods can't relieve the signal", "signal", order.Cause, "deficit", order.Deficit,
				"largest_outside", directories)
		case known && !s.IsMemory():
			l.log.Error("evicting pods can't relieve the signal", "signal", order.Cause, "deficit", order.Deficit)
		default:
			// This reads the whole cgroup tree, so it comes after the kills.
			cgroups := l.inventory.SystemCgroups(MaxSystemCgroups)
			l.records.SetSystemCgroups(order.UID, cgroups)
			l.log.Error("evicting pods can't relieve the signal", "signal", order.Cause,
				"deficit", order.Deficit, "largest_outside", cgroups)
		}
	}
	l.revived(v)
	l.reclaim(v)
	l.refuseArrivals(v)
}

// logOrder logs an order before it is carried out, so that the end of an eviction is not
// logged before its start. Kills of the hot path have happened by then.
func (l *Loop) logOrder(rec *evict.Record) {
	l.log.Warn(execute.InDryRun(rec.DryRun, "evicting pod", "would evict pod"), "pod", rec.Pod, "uid", rec.UID, "signal", rec.Cause, "hard", rec.Hard,
		"available", rec.Available, "threshold", rec.Threshold, "deficit", rec.Deficit, "expected", rec.Expected,
		"lane", rec.Lane, "futile", rec.Futile, "dry_run", rec.DryRun, "message", strings.TrimSpace(rec.Message))
}

// escalate ends grace periods early. A victim of an earlier run is killed when its
// eviction is resumed.
func (l *Loop) escalate(ctx context.Context, v *View) {
	if len(v.Orders.Escalate) == 0 {
		return
	}
	guard := l.inventory.Guard()
	for _, uid := range v.Orders.Escalate {
		if why := l.unreportable(uid, v); why != "" && !l.toResume[uid] {
			l.log.Warn("grace period is not ended early: the kubelet would start the pod again", "uid", uid, "reason", why)
			l.outcomes = append(l.outcomes, evict.Outcome{UID: uid, Err: errors.New(why)}) // so that another pod is chosen
			continue
		}
		if _, listed := v.Snapshot.Handles[uid]; listed && !l.toResume[uid] {
			l.execute.Escalate(ctx, l.job(evict.Order{UID: uid, Hard: true}, v, guard), v.Mode.DryRun)
		}
		l.log.Warn("grace period ended early: a hard threshold is met", "uid", uid)
	}
}

// resumeFactsTimeout bounds the wait for facts about a victim of an earlier run. The saved facts may be older than
// the pod, and evictd-kube connects again some seconds after a restart.
const resumeFactsTimeout = 10 * time.Second

// resumeEvictions resumes the unfinished evictions of an earlier run as soon as their pods
// are listed and can be reported: with the rest of the grace period, or with another kill.
func (l *Loop) resumeEvictions(ctx context.Context, v *View) {
	if v.Mode.DryRun || v.Snapshot.Listed.IsZero() || len(l.toResume) == 0 {
		return
	}
	if l.factsUntil.IsZero() {
		l.factsUntil = v.Time.Add(resumeFactsTimeout)
	}
	guard := l.inventory.Guard()
	waiting := map[string]bool{}
	for _, victim := range v.State.Victims {
		h, listed := v.Snapshot.Handles[victim.UID]
		if !listed || !l.toResume[victim.UID] {
			continue
		}
		if why := l.unreportable(victim.UID, v); why != "" {
			if !h.Facts && v.Time.Before(l.factsUntil) {
				waiting[victim.UID] = true
				continue
			}
			l.log.Warn("an eviction of an earlier run is not resumed: the kubelet would start the pod again", "pod", victim.Pod, "uid", victim.UID, "reason", why)
			l.outcomes = append(l.outcomes, evict.Outcome{UID: victim.UID, Err: errors.New(why)})
			continue
		}
		order := evict.Order{UID: victim.UID, Pod: victim.Pod, Cause: victim.Cause, Hard: !victim.Soft, Grace: max(0, victim.Due.Sub(v.Time))}
		l.log.Warn("resuming an eviction of an earlier run", "pod", victim.Pod, "hard", order.Hard, "grace", order.Grace.String())
		l.execute.Resume(ctx, l.job(order, v, guard), false)
	}
	// A victim that the first complete list lacks has gone.
	l.toResume, v.Resuming = waiting, len(waiting) > 0
}

// Job returns the actuator's job for an order: with the handle of its pod.
func Job(o evict.Order, s *pods.Snapshot, guard *evict.Guard) act.Job {
	h := s.Handles[o.UID]
	return act.Job{
		Order: o, SandboxID: h.SandboxID, Owned: h.Owned, Containers: h.Containers, Guard: guard,
		SandboxPID: h.SandboxPID, SandboxStart: h.SandboxStart, OtherContainers: h.OtherContainers, OCIRuntime: h.OCIRuntime,
	}
}

// ReportedJob returns the job for another kill of a pod whose eviction evictd-kube reports; ok is
// false if the view has no container of the pod, of which a kill would therefore miss those that
// were listed since.
func (v *View) ReportedJob(o evict.Order, guard *evict.Guard) (job act.Job, ok bool) {
	job = Job(o, &v.Snapshot, guard)
	job.Reported = true
	return job, len(job.Containers) > 0
}

// job is Job, and says whether evictd-kube reports the eviction.
func (l *Loop) job(o evict.Order, v *View, guard *evict.Guard) act.Job {
	job := Job(o, &v.Snapshot, guard)
	job.Reported = l.reports(&job, v.Mode.DryRun) && (v.Snapshot.Handles[o.UID].Facts || l.ordered(o.UID))
	return job
}

// reports reports whether evictd-kube reports the evictions of such a pod as a job's.
func (l *Loop) reports(job *act.Job, dryRun bool) bool {
	return l.config.Kubelet == config.KubeletAuto && !job.Owned && !dryRun
}

// ordered reports whether the report of a pod's eviction is ordered already. evictd-kube has no facts about a pod
// that it has reported as Failed, in its grace period, say.
func (l *Loop) ordered(uid string) bool { return l.hasOrder != nil && l.hasOrder(uid) }

// unreportable returns why a listed pod whose eviction has begun must be left alone: under
// kubelet: auto a kubelet's pod is killed only if that can be reported. "" if nothing is in
// the way.
func (l *Loop) unreportable(uid string, v *View) string {
	h, listed := v.Snapshot.Handles[uid]
	if !listed || h.Owned || l.config.Kubelet != config.KubeletAuto || l.ordered(uid) {
		return ""
	}
	for i := range v.Snapshot.Pods {
		if pod := &v.Snapshot.Pods[i]; pod.UID == uid && pod.Unreportable != "" {
			return pod.Unreportable
		}
	}
	if !h.Facts {
		return "no facts of the API server are used"
	}
	return ""
}

// killedJob returns the job for an order whose pod was killed through a handle, in dry run or
// not: the mode may have changed since. If the pod is no longer listed, the job is the one that
// the handle was opened for. Under kubelet: auto a kubelet's pod without facts is not evicted,
// so the job is Reported whatever facts there are now.
func (l *Loop) killedJob(o evict.Order, v *View, guard *evict.Guard, handle *act.KillHandle, dryRun bool) act.Job {
	job := handle.Job()
	if _, listed := v.Snapshot.Handles[o.UID]; listed {
		job = Job(o, &v.Snapshot, guard)
	}
	job.Order, job.Guard = o, guard
	job.Reported = l.reports(&job, dryRun)
	return job
}
