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
	for _, p := range u.targets {
		if !p.want || p.job != nil || u.jobs.full(p.pod) {
			continue
		}
		late := now.Sub(p.lastTried) - u.usageIntervalOf(p)
		switch {
		case late < 0:
			wait = min(wait, -late)
		case next == nil || u.precedes(p, late, next, longest):
			next, longest = p, late
		}
	}
	return next, wait
}

func (u *UsageMeter) precedes(p *target, late time.Duration, other *target, otherLate time.Duration) bool {
	mounted := func(p *target) int {
		if p.mounted {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(u.jobs.detachedByPod[p.pod], u.jobs.detachedByPod[other.pod]), cmp.Compare(mounted(p), mounted(other)),
		cmp.Compare(otherLate, late), cmp.Compare(p.path, other.path), cmp.Compare(p.only, other.only),
	) < 0
}

// usageIntervalOf returns the interval at which a target is measured.
func (u *UsageMeter) usageIntervalOf(p *target) time.Duration {
	switch {
	case u.diskLow: // the disk is more urgent than the cost of the walk
		return max(usageIntervals[urgent], min(p.took, usageIntervals[limited]))
	case p.limited:
		return max(usageIntervals[limited], walkShare*p.took)
	}
	return max(usageIntervals[unlimited], walkShare*p.took)
}

// measureTarget measures a target on the worker thread.
func (u *UsageMeter) measureTarget(ctx context.Context, p *target) {
	j := newJob(p.pod, p.path)
	w := &disk.Walker{MaxEntries: maxWalkEntries}
	if p.only != "" {
		w.Include = func(name string) bool {
			return name == p.only || len(name) > len(p.only) && name[:len(p.only)+1] == p.only+"."
		}
	}
	ctx, cancel := context.WithTimeout(ctx, walkTimeout)
	u.mu.Lock()
	p.job, p.walker = j, w
	quota := !p.mustWalk && p.only == ""
	u.mu.Unlock()
	began := time.Now()
	u.run(ctx, j, w.Entries, func(pause func()) {
		defer cancel()
		w.Pause = pause
		got, err := u.measure(ctx, w, p.path, quota)
		u.storeMeasured(p, got, err, began)
	})
}

// storeMeasured stores the result of a measurement, however late.
func (u *UsageMeter) storeMeasured(p *target, got Measurement, err error, began time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	before, failed := p.got, p.job.isHung() || p.err != nil
	defer func() {
		before.At = p.got.At
		if p.got != before || failed || p.err != nil {
			u.version++
		}
	}()
	p.took = time.Since(began)
	if p.job != nil {
		p.took -= p.job.throttledTime()
	}
	// Files that existed at began are counted; later ones may not be.
	p.lastTried, p.err, got.At = began, err, began
	p.job, p.walker = nil, nil
	switch {
	case err == nil:
		p.got = got
		u.dropSharedQuota(p)
	case errors.Is(err, disk.ErrIncomplete):
		got.Incomplete = err.Error()
		p.got, p.err = got, nil
	}
	notify(u.wake)
}

// soFar returns the intermediate result of a walk in flight if it is more than the
// last result, else the last result.
func (p *target) soFar() Measurement {
	if p.walker == nil {
		return p.got
	}
	now := p.walker.Counted()
	if now.Bytes <= p.got.Bytes && now.Inodes <= p.got.Inodes {
		return p.got
	}
	return Measurement{
		Usage: disk.Usage{Bytes: max(now.Bytes, p.got.Bytes), Inodes: max(now.Inodes, p.got.Inodes)},
		At:    p.job.began, Method: "walk", Incomplete: "the walk of " + p.path + " has not ended",
	}
}

// dropSharedQuota lets directories be walked that have the same project: the quota
// is the usage of both together.
func (u *UsageMeter) dropSharedQuota(p *target) {
	project := p.got.project
	if project == 0 {
		return
	}
	for _, other := range u.targets {
		if other != p && other.want && other.got.project == project {
			for _, both := range []*target{p, other} {
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
