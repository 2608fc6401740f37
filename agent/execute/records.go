package execute

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// maxRecords is the number of records of evictions that are kept, maxKernelRecords that of kills
// by the kernel, and maxRefusalRecords that of pods that were refused on arrival: repeated kills
// by the kernel must not displace evictions, nor must the pods that a controller replaces.
const maxRecords, maxKernelRecords, maxRefusalRecords = 50, 10, 10

// KernelKillGap is the time between two kills by the kernel in one pod from which the
// second has a record of its own.
const KernelKillGap = time.Minute

// resumeWindow is how long after a start the unfinished records of an earlier run are kept
// regardless of their number: Resume finds their pods within that time.
const resumeWindow = time.Minute

// Records are the records of the last evictions and kernel kills. A pending record is kept
// even beyond the limit. They are safe for concurrent use.
type Records struct {
	mu         sync.Mutex
	list       []evict.Record // oldest first
	restoredAt time.Time      // when Restore was called
}

// Restore adds the records of an earlier run. The result of its pending evictions is
// unknown until Resume.
func (r *Records) Restore(list []evict.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = slices.Clone(list)
	for i := range r.list {
		if r.list[i].Result == evict.ResultPending {
			r.list[i].Result = evict.ResultUnknown
			r.list[i].Error = "evictd restarted before the eviction ended"
		}
	}
	r.restoredAt = time.Now()
	r.trim()
}

// Recover adds the record of an eviction that an earlier run has ordered, if that was killed before it
// saved the record. Its result is unknown until Resume.
func (r *Records) Recover(record evict.Record) {
	if last, ok := r.Last(record.UID); ok && last.Result == evict.ResultUnknown {
		return
	}
	record.Result, record.Error = evict.ResultUnknown, "evictd was killed before it saved this record"
	r.add(record)
}

// trim drops the oldest records of each kind beyond the limit, except pending ones and those
// that Resume may still find. The caller has locked mu.
func (r *Records) trim() {
	evictions, kernel, refusals := -maxRecords, -maxKernelRecords, -maxRefusalRecords
	counter := func(rec *evict.Record) *int {
		switch {
		case rec.Result == evict.ResultKernel:
			return &kernel
		case rec.Cause == evict.CauseAdmission:
			return &refusals
		}
		return &evictions
	}
	for i := range r.list {
		*counter(&r.list[i])++
	}
	resumeOver := time.Since(r.restoredAt) >= resumeWindow
	r.list = slices.DeleteFunc(r.list, func(rec evict.Record) bool {
		excess := counter(&rec)
		if *excess <= 0 || rec.Result == evict.ResultPending || rec.Result == evict.ResultUnknown && !resumeOver {
			return false
		}
		*excess--
		return true
	})
}

// add adds the record of a new eviction. Progress names the pod and not the order, so an
// older pending record of the pod ends here.
func (r *Records) add(record evict.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.list {
		if rec := &r.list[i]; rec.UID == record.UID && rec.Result == evict.ResultPending {
			rec.Result, rec.Error = evict.ResultUnknown, "the pod was evicted again before this eviction ended"
		}
	}
	r.list = append(r.list, record)
	r.trim()
}

// List returns the records, the oldest first.
func (r *Records) List() []evict.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

// update changes the pending record of a pod and returns it; ok is false if there is none.
func (r *Records) update(uid string, change func(*evict.Record)) (record evict.Record, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.list) - 1; i >= 0; i-- {
		if r.list[i].UID == uid && r.list[i].Result == evict.ResultPending {
			change(&r.list[i])
			record = r.list[i]
			if record.Result != evict.ResultPending {
				r.trim()
			}
			return record, true
		}
	}
	return evict.Record{}, false
}

// last returns the newest record of a pod's evictions; nil if there is none. What the kernel has killed is
// no eviction. The caller has locked mu.
func (r *Records) last(uid string) *evict.Record {
	for i := len(r.list) - 1; i >= 0; i-- {
		if rec := &r.list[i]; rec.UID == uid && rec.Result != evict.ResultKernel {
			return rec
		}
	}
	return nil
}

// Last returns the newest record of a pod's evictions.
func (r *Records) Last(uid string) (record evict.Record, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec := r.last(uid); rec != nil {
		return *rec, true
	}
	return evict.Record{}, false
}

// resume makes the newest record of a pod's evictions pending again, if its result is unknown. Its times
// will be those of what is done now.
func (r *Records) resume(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec := r.last(uid); rec != nil && rec.Result == evict.ResultUnknown {
		rec.Result, rec.Error = evict.ResultPending, ""
		rec.SignalSent, rec.FirstGone, rec.LastGone = time.Time{}, time.Time{}, time.Time{}
	}
}

// refusalFailed sets the error in the newest record of a pod that was refused.
func (r *Records) refusalFailed(uid, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.list) - 1; i >= 0; i-- {
		if rec := &r.list[i]; rec.UID == uid && rec.Result == evict.ResultRefused {
			rec.Result, rec.Error = evict.ResultFailed, why
			return
		}
	}
}

// SetReport sets what became of the report of a pod's last eviction to the API server, and when
// evictd-kube has answered that. It reports whether the pod has a record.
func (r *Records) SetReport(uid, answer string, at time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.list) - 1; i >= 0; i-- {
		rec := &r.list[i]
		if rec.UID != uid || rec.Result == evict.ResultKernel || rec.DryRun {
			continue
		}
		if rec.ReportAnswer != answer {
			rec.ReportAnswer, rec.Reported = answer, at
		}
		return true
	}
	return false
}

// SetSystemCgroups sets the largest cgroups outside the pods in the newest record of a pod's evictions.
func (r *Records) SetSystemCgroups(uid string, largest []evict.CgroupUsage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec := r.last(uid); rec != nil {
		rec.SystemCgroups = largest
	}
}

// EachFutile calls f for the records of futile evictions, which f may change.
func (r *Records) EachFutile(f func(*evict.Record)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.list {
		if r.list[i].Futile {
			f(&r.list[i])
		}
	}
}

// UpdateOvershoot raises the overshoot of a cause to available, in the records decided at or
// after since.
func (r *Records) UpdateOvershoot(cause string, since time.Time, available int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.list {
		if rec := &r.list[i]; rec.Cause == cause && !rec.Decided.Before(since) {
			rec.Overshoot = max(rec.Overshoot, rec.Threshold-available)
		}
	}
}

// AddKernelKill adds the record of a process that the kernel's OOM killer killed. Kills in
// one pod with less than KernelKillGap between them share a record, whose LastGone is the
// time of the last.
func (r *Records) AddKernelKill(record evict.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.list {
		known := &r.list[i]
		if known.UID == record.UID && known.Result == evict.ResultKernel && record.Decided.Sub(known.LastGone) < KernelKillGap {
			known.Processes++
			known.LastGone = record.LastGone
			return
		}
	}
	r.list = append(r.list, record)
	r.trim()
}

// applyProgress applies the progress of an order to its record.
func applyProgress(p act.Progress, rec *evict.Record) {
	switch p.Stage {
	case act.Signalled:
		if rec.SignalSent.IsZero() {
			rec.SignalSent = p.Time
		}
		rec.Processes = max(rec.Processes, p.Processes)
	case act.Escalated:
		rec.Escalated = p.Time
	case act.FirstGone:
		rec.FirstGone = p.Time
	case act.LastGone:
		// The memory of an empty cgroup is free.
		rec.LastGone = p.Time
		if s, ok := signal.Parse(rec.Cause); !ok || !s.IsDisk() {
			rec.Freed = rec.Expected
		} // disk space is freed later, by the reclaims
	case act.Refused:
		rec.Result = evict.ResultFailed
		if errors.Is(p.Err, act.ErrEnded) {
			rec.Result = evict.ResultEnded
		}
	case act.Finished:
		rec.Processes = max(rec.Processes, p.Processes)
		rec.Result = result(rec)
	}
	if p.Err != nil {
		rec.Error = p.Err.Error()
	}
}

// result returns the result of an eviction that has finished.
func result(rec *evict.Record) string {
	switch {
	case rec.DryRun:
		return evict.ResultDryRun
	case rec.LastGone.IsZero():
		return evict.ResultStuck
	case rec.Hard || !rec.Escalated.IsZero():
		return evict.ResultKilled
	}
	return evict.ResultStopped
}
