package disks

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/evictd/evictd/kernel/disk"
)

const (
	// mostEntries ends a walk, and so does longestWalk, which is about what so many
	// entries take with the budget of the walks: what was counted by then is at least
	// used.
	mostEntries = 2_000_000
	longestWalk = 2 * time.Minute
	// calmly and hastily are how often a directory is looked at, while nothing is
	// low and else, and share how small a part of the time a walk may take. Where
	// nobody has a limit, what a pod holds matters only once something is low, and
	// is found out then: until then it is looked at this seldom.
	calmly, hastily = 15 * time.Second, 500 * time.Millisecond
	seldom          = time.Minute
	share           = 20
	// findAgain is how long new pods may wait while others are walked.
	findAgain = time.Second
)

// due returns the target to look at next, or how long until there is one: the one
// that has waited longest beyond its time, of the pods with the fewest looks that have
// not returned. A pod whose directories hang comes after all others.
func (u *Usages) due(now time.Time) (next *target, wait time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	wait = max(0, u.findEvery(now)-now.Sub(u.found)) // when the directories are looked for again
	var longest time.Duration
	for _, p := range u.places {
		if !p.want || p.job != nil || u.jobs.full(p.pod) {
			continue
		}
		late := now.Sub(p.tried) - u.every(p)
		switch {
		case late < 0:
			wait = min(wait, -late)
		case next == nil || u.before(p, late, next, longest):
			next, longest = p, late
		}
	}
	return next, wait
}

func (u *Usages) before(p *target, late time.Duration, other *target, otherLate time.Duration) bool {
	mounted := func(p *target) int {
		if p.mounted {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(u.jobs.open[p.pod], u.jobs.open[other.pod]), cmp.Compare(mounted(p), mounted(other)),
		cmp.Compare(otherLate, late), cmp.Compare(p.path, other.path), cmp.Compare(p.only, other.only),
	) < 0
}

// every returns how often a target is looked at.
func (u *Usages) every(p *target) time.Duration {
	switch {
	case u.hasty: // what is low is more urgent than what the walk costs
		return max(hastily, min(p.took, calmly))
	case p.limited:
		return max(calmly, share*p.took)
	}
	return max(seldom, share*p.took)
}

// walk measures a target on another thread.
func (u *Usages) walk(ctx context.Context, p *target) {
	j := newJob(p.pod, p.path)
	w := &disk.Walker{Most: mostEntries}
	if p.only != "" {
		w.Only = func(name string) bool {
			return name == p.only || len(name) > len(p.only) && name[:len(p.only)+1] == p.only+"."
		}
	}
	ctx, cancel := context.WithTimeout(ctx, longestWalk)
	u.mu.Lock()
	p.job, p.walker = j, w
	quota := !p.walk && p.only == ""
	u.mu.Unlock()
	began := time.Now()
	u.run(ctx, j, w.Seen, func(pause func()) {
		defer cancel()
		w.Pause = pause
		got, err := u.measure(ctx, w, p.path, quota)
		u.take(p, got, err, began)
	})
}

// take notes what a walk found, however late.
func (u *Usages) take(p *target, got Measured, err error, began time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	before, failed := p.got, p.job.hangs() || p.err != nil
	defer func() {
		before.At = p.got.At
		if p.got != before || failed || p.err != nil {
			u.version++
		}
	}()
	p.took = time.Since(began)
	if p.job != nil {
		p.took -= p.job.rested()
	}
	// What was there then is counted; what came later may not be.
	p.tried, p.err, got.At = began, err, began
	p.job, p.walker = nil, nil
	switch {
	case err == nil:
		p.got = got
		u.disown(p)
	case errors.Is(err, disk.ErrAtLeast):
		got.Short = err.Error()
		p.got, p.err = got, nil
	}
	tell(u.wake)
}

// soFar returns what a walk that has not returned has counted, where that is more
// than the last one found.
func (p *target) soFar() Measured {
	if p.walker == nil {
		return p.got
	}
	now := p.walker.SoFar()
	if now.Bytes <= p.got.Bytes && now.Inodes <= p.got.Inodes {
		return p.got
	}
	return Measured{
		Usage: disk.Usage{Bytes: max(now.Bytes, p.got.Bytes), Inodes: max(now.Inodes, p.got.Inodes)},
		At:    p.job.began, By: "walk", Short: "the walk of " + p.path + " has not ended",
	}
}

// disown walks directories whose project's quota is also another's: it tells
// what they take up together.
func (u *Usages) disown(p *target) {
	project := p.got.project
	if project == 0 {
		return
	}
	for _, other := range u.places {
		if other != p && other.want && other.got.project == project {
			for _, both := range []*target{p, other} {
				both.walk, both.got, both.tried = true, Measured{}, time.Time{}
			}
		}
	}
}

// measure asks the filesystem, which knows at once where it accounts for
// projects, or looks at everything.
func measure(ctx context.Context, w *disk.Walker, path string, quota bool) (Measured, error) {
	if quota {
		if p, err := disk.ReadProject(path); err == nil {
			return Measured{Usage: p.Usage, By: "project quota", project: p.ID}, nil
		}
	}
	got, err := w.Usage(ctx, path)
	return Measured{Usage: got, By: "walk"}, err
}
