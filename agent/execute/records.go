package execute

import (
	"slices"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// keptRecords is how many records of evictions are kept, and keptKernelRecords how
// many of kills by the kernel: a container that the kernel kills in again and again
// must not displace evictions.
const keptRecords, keptKernelRecords = 50, 10

// KernelKillGap is how far two kills by the kernel in one pod are apart for each to
// have a record of its own.
const KernelKillGap = time.Minute

// resumeFor is for how long after a start the records of an earlier run that were
// under way are kept whatever comes: their pods are taken up again by then.
const resumeFor = time.Minute

// Records are the last evictions, and all that are under way: only when one ends is
// it counted. They are safe for concurrent use.
type Records struct {
	mu       sync.Mutex
	list     []evict.Record // oldest first
	restored time.Time      // when those of an earlier run were
}

// Restore takes over the records of an earlier run. What was under way then
// can't be followed any more.
func (r *Records) Restore(list []evict.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = slices.Clone(list)
	for i := range r.list {
		if r.list[i].Result == evict.ResultPending {
			r.list[i].Result = evict.ResultUnknown
			r.list[i].Error = "evictd was restarted before the end was seen"
		}
	}
	r.restored = time.Now()
	r.trim()
}

// trim drops the oldest records of each kind that are too many and have ended. The
// caller holds mu.
func (r *Records) trim() {
	evictions, kernel := -keptRecords, -keptKernelRecords
	for i := range r.list {
		if r.list[i].Result == evict.ResultKernel {
			kernel++
		} else {
			evictions++
		}
	}
	resumed := time.Since(r.restored) >= resumeFor
	r.list = slices.DeleteFunc(r.list, func(rec evict.Record) bool {
		excess := &evictions
		if rec.Result == evict.ResultKernel {
			excess = &kernel
		}
		if *excess <= 0 || rec.Result == evict.ResultPending || rec.Result == evict.ResultUnknown && !resumed {
			return false
		}
		*excess--
		return true
	})
}

// add begins a record. Reports tell the pod, not the order: from now on they
// are this one's.
func (r *Records) add(record evict.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.list {
		if rec := &r.list[i]; rec.UID == record.UID && rec.Result == evict.ResultPending {
			rec.Result, rec.Error = evict.ResultUnknown, "the pod was ordered to go again before the end was seen"
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

// update changes the newest record of a pod that is under way, and returns it
// as it is then; ok is false where there is none.
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

// Last returns a pod's newest record.
func (r *Records) Last(uid string) (record evict.Record, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.list) - 1; i >= 0; i-- {
		if r.list[i].UID == uid {
			return r.list[i], true
		}
	}
	return evict.Record{}, false
}

// takeUp makes a pod's newest record one under way again.
func (r *Records) takeUp(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.list) - 1; i >= 0; i-- {
		if r.list[i].UID == uid && r.list[i].Result == evict.ResultUnknown {
			r.list[i].Result, r.list[i].Error = evict.ResultPending, ""
			return
		}
	}
}

// Outside adds the largest cgroups outside the pods to a pod's newest record.
func (r *Records) Outside(uid string, largest []evict.CgroupUsage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.list) - 1; i >= 0; i-- {
		if r.list[i].UID == uid {
			r.list[i].Outside = largest
			return
		}
	}
}

// EachFutile calls f for the records of evictions that could not relieve their signal,
// to be completed in place.
func (r *Records) EachFutile(f func(*evict.Record)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.list {
		if r.list[i].Futile {
			f(&r.list[i])
		}
	}
}

// Overshoot deepens how far the cause fell below its threshold, in the records
// from a time on.
func (r *Records) Overshoot(cause string, since time.Time, available int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.list {
		if rec := &r.list[i]; rec.Cause == cause && !rec.Decided.Before(since) {
			rec.Overshoot = max(rec.Overshoot, rec.Threshold-available)
		}
	}
}

// KernelKilled adds the record of a process that the kernel took. While the kernel
// goes on to take processes of one pod, with less than KernelKillGap between
// two, they make one record, whose LastGone is the time of the last.
func (r *Records) KernelKilled(record evict.Record) {
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

// apply notes an order's progress in a record.
func apply(p act.Progress, rec *evict.Record) {
	switch p.Stage {
	case act.Signalled:
		if rec.SignalSent.IsZero() {
			rec.SignalSent = p.Time
		}
		rec.Processes = max(rec.Processes, p.Processes)
	case act.Hardened:
		rec.Hardened = p.Time
	case act.FirstGone:
		rec.FirstGone = p.Time
	case act.LastGone:
		// What an empty cgroup held has been given back.
		rec.LastGone = p.Time
		if s, ok := signal.Parse(rec.Cause); !ok || !s.IsDisk() {
			rec.Freed = rec.Expected
		} // what lies on a disk comes back with what is left of the pod: see the reclaims
	case act.Refused:
		rec.Result = evict.ResultFailed
	case act.Finished:
		rec.Processes = max(rec.Processes, p.Processes)
		rec.Result = result(rec)
	}
	if p.Err != nil {
		rec.Error = p.Err.Error()
	}
}

func result(rec *evict.Record) string {
	switch {
	case rec.DryRun:
		return evict.ResultDryRun
	case rec.LastGone.IsZero():
		return evict.ResultStuck
	case rec.Hard || !rec.Hardened.IsZero():
		return evict.ResultKilled
	}
	return evict.ResultStopped
}
