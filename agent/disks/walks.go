package disks

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/evictd/evictd/kernel/disk"
)

const (
	// maxWalkEntries ends a walk, and so does walkTimeout, which is about what so
	// many entries take with the budget. The usage counted by then is a lower
	// bound.
	maxWalkEntries = 2_000_000
	walkTimeout    = 2 * time.Minute
	// walkShare bounds the share of the time that the walk of a directory takes while
	// no disk is low to a twentieth: the interval is at least walkShare times the
	// duration of the last walk.
	walkShare = 20
	// maxWalkRun is how long the search for the directories of new pods waits for
	// walks.
	maxWalkRun = time.Second
	// locateShare bounds the share of the time that the search for the pods'
	// directories takes while a disk is low to a quarter: the rest is for the walks.
	locateShare = 4
	// newContainerWindow is how long after a change of the pods missing directories
	// are searched every queryRetry: a container that has just started may have no
	// root yet.
	newContainerWindow = 10 * time.Second
)

// urgency is how soon the usage of a directory is needed.
type urgency uint8

const (
	unlimited urgency = iota // of pods without a limit
	limited                  // of pods with a limit
	urgent                   // a disk is low
)

// usageIntervals are the intervals of measurements. The usage of pods without a limit
// matters only once a disk is low, and is then measured at once. That of pods with a
// limit is measured a little less often than the kubelet polls (10 s), because each
// measurement can be a walk. While a disk is low, pods are ranked by it.
var usageIntervals = [...]time.Duration{unlimited: time.Minute, limited: 15 * time.Second, urgent: 500 * time.Millisecond}

// nextTarget returns the target to measure next, or how long until one is due.
// Targets are ordered by the number of detached jobs of their pod, so that a pod
// whose directories hang comes last, and then by how long they are overdue.
func (u *UsageMeter) nextTarget(now time.Time) (next *target, wait time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	wait = max(0, u.locateInterval(now)-now.Sub(u.locatedAt)) // until the next search for directories
	var longest time.Duration
	for _, t := range u.targets {
		if !t.want || t.job != nil || u.jobs.full(t.pod) {
			continue
		}
		late := now.Sub(t.lastTried) - u.usageIntervalOf(t)
		switch {
		case late < 0:
			wait = min(wait, -late)
		case next == nil || u.precedes(t, late, next, longest):
			next, longest = t, late
		}
	}
	return next, wait
}

func (u *UsageMeter) precedes(t *target, late time.Duration, other *target, otherLate time.Duration) bool {
	mounted := func(t *target) int {
		if t.mounted {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(u.jobs.detachedByPod[t.pod], u.jobs.detachedByPod[other.pod]), cmp.Compare(mounted(t), mounted(other)),
		cmp.Compare(otherLate, late), cmp.Compare(t.path, other.path), cmp.Compare(t.only, other.only),
	) < 0
}

// usageIntervalOf returns the interval at which a target is measured.
func (u *UsageMeter) usageIntervalOf(t *target) time.Duration {
	switch {
	case u.diskLow: // the disk is more urgent than the cost of the walk
		return max(usageIntervals[urgent], min(t.took, usageIntervals[limited]))
	case t.limited:
		return max(usageIntervals[limited], walkShare*t.took)
	}
	return max(usageIntervals[unlimited], walkShare*t.took)
}

// measureTarget measures a target on the worker thread.
func (u *UsageMeter) measureTarget(ctx context.Context, t *target) {
	j := newJob(t.pod, t.path)
	w := &disk.Walker{MaxEntries: maxWalkEntries}
	if t.only != "" {
		w.Include = func(name string) bool {
			return name == t.only || len(name) > len(t.only) && name[:len(t.only)+1] == t.only+"."
		}
	}
	ctx, cancel := context.WithTimeout(ctx, walkTimeout)
	u.mu.Lock()
	t.job, t.walker = j, w
	quota := !t.mustWalk && t.only == ""
	u.mu.Unlock()
	began := time.Now()
	u.run(ctx, j, w.Entries, func(pause func()) {
		defer cancel()
		w.Pause = pause
		got, err := u.measure(ctx, w, t.path, quota)
		u.storeMeasured(t, got, err, began)
	})
}

// storeMeasured stores the result of a measurement, however late.
func (u *UsageMeter) storeMeasured(t *target, got Measurement, err error, began time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	before, failed := t.got, t.job.isHung() || t.err != nil
	defer func() {
		before.At = t.got.At
		if t.got != before || failed || t.err != nil {
			u.version++
		}
	}()
	t.took = time.Since(began)
	if t.job != nil {
		t.took -= t.job.throttledTime()
	}
	// Files that existed at began are counted; later ones may not be.
	t.lastTried, t.err, got.At = began, err, began
	t.job, t.walker = nil, nil
	switch {
	case err == nil:
		t.got = got
		u.dropSharedQuota(t)
	case errors.Is(err, disk.ErrIncomplete):
		got.Incomplete = err.Error()
		t.got, t.err = got, nil
	}
	notify(u.wake)
}

// soFar returns the intermediate result of a walk in flight if it is more than the
// last result, else the last result.
func (t *target) soFar() Measurement {
	if t.walker == nil {
		return t.got
	}
	now := t.walker.Counted()
	if now.Bytes <= t.got.Bytes && now.Inodes <= t.got.Inodes {
		return t.got
	}
	return Measurement{
		Usage: disk.Usage{Bytes: max(now.Bytes, t.got.Bytes), Inodes: max(now.Inodes, t.got.Inodes)},
		At:    t.job.began, Method: "walk", Incomplete: "the walk of " + t.path + " has not ended",
	}
}

// dropSharedQuota lets directories be walked that have the same project: the quota
// is the usage of both together.
func (u *UsageMeter) dropSharedQuota(t *target) {
	project := t.got.project
	if project == 0 {
		return
	}
	for _, other := range u.targets {
		if other != t && other.want && other.got.project == project {
			for _, both := range []*target{t, other} {
				both.mustWalk, both.got, both.lastTried = true, Measurement{}, time.Time{}
			}
		}
	}
}

// measure returns the usage of a directory: from its project quota, which the
// filesystem reports at once, or from a walk.
func measure(ctx context.Context, w *disk.Walker, path string, quota bool) (Measurement, error) {
	if quota {
		if p, err := disk.ReadProject(path); err == nil {
			return Measurement{Usage: p.Usage, Method: "project quota", project: p.ID}, nil
		}
	}
	got, err := w.Usage(ctx, path)
	return Measurement{Usage: got, Method: "walk"}, err
}
