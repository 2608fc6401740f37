package disks

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pace"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/disk"
)

// Subject is a pod whose disk usage is wanted.
type Subject struct {
	UID        string
	Containers []evict.ContainerHandle
	// Limited tells that it may not hold more than so much.
	Limited bool
}

// Measured is what a directory takes up, or what the runtime says it does.
type Measured struct {
	disk.Usage
	At time.Time // zero: never
	// By tells how: by "project quota", "walk" or "runtime".
	By string
	// Short says why there may be more; empty where all was counted.
	Short string

	project uint32 // whose quota told; 0 for none
}

// UsageOptions are what a Usages is made of.
type UsageOptions struct {
	Procfs kernel.FS
	// Rootfs is where the host's root is mounted; empty is "/".
	Rootfs string
	// PodsDir is where a kubelet has its pods' directories, as the host sees it;
	// empty is that of [KubeletDir].
	PodsDir string
	// Layers tells what writable layers take up, by container ID, where their
	// directories can't be found; nil is not known.
	Layers func(ctx context.Context) (map[string]Measured, error)
	// LayersDir returns the directory below which writable layers lie, as this
	// process sees it; "" is not known.
	LayersDir func() string
	// Surveyed is called with the answer that [Usages.Largest] will return; nil is
	// nothing.
	Surveyed func(point string, byBytes, byInodes []evict.DirectoryUsage)
	Log      *slog.Logger
}

// Usages knows what pods hold on the disks: it looks at one directory after the
// other, at low priority, and keeps what it found. Its methods are safe for
// concurrent use and answer at once, but for Run.
type Usages struct {
	o       UsageOptions
	wake    chan struct{}
	lacking chan struct{} // somebody's writable layer was not found
	// measure and surveyWalk are the kernel's, but in tests.
	measure    func(ctx context.Context, w *disk.Walker, path string, quota bool) (Measured, error)
	surveyWalk func(ctx context.Context, w *disk.Walker, path string) (disk.Usage, error)

	// budget is the processor time that looking at the disks may take, and cpu the
	// time that the calling thread has used.
	budget *pace.Budget
	cpu    func() (time.Duration, error)

	// Of Run's goroutine: the thread that works now, nil for none; and when the
	// pods' directories were looked for last, and how long that took.
	thread    *thread
	found     time.Time
	findingIn time.Duration

	mu       sync.Mutex
	version  uint64 // another whenever something else is known
	fresh    bool   // subjects are, and nobody has found their directories
	changed  time.Time
	subjects []Subject
	pods     map[string]*holdings // by UID
	lookups  map[string]*job      // by UID, those that have not returned
	mounted  map[string]string    // by directory, the type of what is mounted there
	places   map[string]*target   // by path
	layers   map[string]Measured  // by container, as the runtime says
	hasty    bool
	jobs     jobs
	surveys  map[string]*survey // by where the filesystem is mounted
	toSurvey []*survey
	// surveying is the one under way; nil for none, and where it hangs.
	surveying *job
}

// target is a directory to be measured.
type target struct {
	path string
	only string // where set, the beginning of the names that count
	// got is what was found last, and is not zero once anything was; err is why
	// the last attempt, at tried, found nothing.
	got   Measured
	err   error
	tried time.Time
	took  time.Duration
	walk  bool // its project's quota is not its own
	// job is the look that has not returned, nil for none, and walker what that
	// walks with.
	job    *job
	walker *disk.Walker
	want   bool   // somebody's still
	pod    string // the UID of one that it is wanted for
	// mounted tells that another filesystem is mounted there: if a directory of
	// the pod hangs, it is most likely this one.
	mounted bool
	// limited tells that it is somebody's who may not hold more than so much.
	limited bool
}

// NewUsages returns a Usages that knows nothing yet.
func NewUsages(o UsageOptions) *Usages {
	if o.Rootfs == "" {
		o.Rootfs = "/"
	}
	if o.PodsDir == "" {
		o.PodsDir = KubeletDir + "/pods"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Usages{
		o: o, wake: make(chan struct{}, 1), lacking: make(chan struct{}, 1), measure: measure, surveyWalk: surveyWalk,
		budget: pace.NewBudget(budgetShare, budgetSaved), cpu: disk.ThreadTime,
		pods: map[string]*holdings{}, lookups: map[string]*job{}, places: map[string]*target{}, jobs: newJobs(),
		surveys: map[string]*survey{},
	}
}

// Want tells which pods to measure from now on, and whether a disk is low: then
// they are measured more often, and again at once.
func (u *Usages) Want(subjects []Subject, low bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	changed := low != u.hasty || !slices.EqualFunc(subjects, u.subjects, func(a, b Subject) bool {
		return a.UID == b.UID && a.Limited == b.Limited && slices.EqualFunc(a.Containers, b.Containers, sameFiles)
	})
	u.subjects, u.hasty = subjects, low
	u.jobs.yield(!low)
	if changed {
		u.fresh, u.changed = true, time.Now()
		u.version++
		tell(u.wake)
	}
}

// sameFiles reports whether two handles lead to the same files of a container.
func sameFiles(a, b evict.ContainerHandle) bool {
	return a.ID == b.ID && a.Name == b.Name && a.InitPID == b.InitPID && a.InitStart == b.InitStart && a.LogPath == b.LogPath
}

// Version is another number whenever something else is known of what is wanted
// than before; that it is known anew does not count.
func (u *Usages) Version() uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.version
}

// Unmeasured names something that is wanted and has not been measured since t,
// "" for nothing. What hangs is not waited for, nor what is not looked at because
// too much of the same pod hangs.
func (u *Usages) Unmeasured(t time.Time) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.subjects {
		lookup := u.lookups[s.UID]
		if (u.pods[s.UID] == nil || u.pods[s.UID].found.Before(t)) && !lookup.hangs() && !(lookup == nil && u.jobs.refuses(s.UID)) {
			return "directories of pod " + s.UID
		}
	}
	for _, p := range u.places {
		if p.want && p.tried.Before(t) && !p.job.hangs() && !(p.job == nil && u.jobs.refuses(p.pod)) {
			return p.path
		}
	}
	return ""
}

// Run measures until ctx ends. A look that hangs does not keep it from returning.
func (u *Usages) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	if u.o.Layers != nil {
		running.Go(func() { u.ask(ctx) })
	}
	defer u.endThread()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-u.wake:
		case <-timer.C:
		}
		u.beginSurveys(ctx)
		if u.findDue(time.Now()) {
			began := time.Now()
			u.find(ctx)
			u.found = time.Now()
			u.findingIn = u.found.Sub(began)
		}
		began := time.Now()
		wait := time.Duration(0)
		for ctx.Err() == nil {
			var next *target
			if next, wait = u.due(time.Now()); next == nil {
				break
			}
			u.walk(ctx, next)
			if time.Since(began) >= findAgain { // there may be no end of what is due
				wait = 0
				break
			}
		}
		timer.Reset(wait)
	}
}

// findDue reports whether it is time to look for the pods' directories.
func (u *Usages) findDue(now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	due := u.fresh || now.Sub(u.found) >= u.findEvery(now)
	u.fresh = u.fresh && !due
	return due
}

// findEvery returns how often the pods' directories are looked for. The caller
// holds mu.
func (u *Usages) findEvery(now time.Time) time.Duration {
	switch {
	case u.hasty:
		return max(hastily, findShare*u.findingIn)
	case now.Sub(u.changed) < settles && u.lacks():
		return askAgain
	}
	return calmly
}

// findShare bounds the part of the time that looking for directories may take while a
// disk is low: the rest is for the walks.
const findShare = 4

// settles is how long directories that were not found are looked for again soon: a
// container that has just begun may have no root yet.
const settles = 10 * time.Second
