package disks

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/disk"
)

const (
	// mostEntries ends a walk, and so does longestWalk: what was counted by then
	// is at least used.
	mostEntries = 2_000_000
	longestWalk = 30 * time.Second
	// stalls is how long a walk may see nothing new before it counts as hung, and
	// mostHung how many threads may hang before nothing more is walked.
	stalls   = 2 * time.Second
	mostHung = 8
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

// Subject is a pod whose disk usage is wanted.
type Subject struct {
	UID        string
	Containers []SubjectContainer
	// Limited tells that it may not hold more than so much.
	Limited bool
}

// SubjectContainer is a running container of it.
type SubjectContainer struct {
	ID string
	// InitPID is its first process and InitStart when that began, in clock ticks
	// since boot; 0 is not known.
	InitPID   int
	InitStart uint64
	// LogPath is its log, as the host sees it; "" is not known.
	LogPath string
	// Name tells whether the log's directory is the container's own.
	Name string
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
	Log       *slog.Logger
}

// Usages knows what pods hold on the disks: it looks at one directory after the
// other, at low priority, and keeps what it found. Its methods are safe for
// concurrent use and answer at once, but for Run.
type Usages struct {
	o       UsageOptions
	wake    chan struct{}
	lacking chan struct{} // somebody's writable layer was not found
	// measure is the kernel's, but in tests.
	measure func(ctx context.Context, w *disk.Walker, path string, quota bool) (Measured, error)

	// Of Run's goroutine: the thread that walks at low priority, nil for none; and
	// when the pods' directories were looked for last.
	calm  *worker
	found time.Time

	mu       sync.Mutex
	version  uint64 // another whenever something else is known
	fresh    bool   // subjects are, and nobody has found their directories
	changed  time.Time
	subjects []Subject
	pods     map[string]*holdings // by UID
	places   map[string]*target   // by path
	layers   map[string]Measured  // by container, as the runtime says
	hasty    bool
	hurry    func() // gives up a walk that is under way at low priority
	hung     int
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
	walk  bool      // its project's quota is not its own
	open  time.Time // since when a walk of it has not come back; zero for none
	turn  int       // tells that walk from one that was given up
	hung  bool
	want  bool // somebody's still
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
		o: o, wake: make(chan struct{}, 1), lacking: make(chan struct{}, 1), measure: measure, hurry: func() {},
		pods: map[string]*holdings{}, places: map[string]*target{},
	}
}

// Want tells which pods to measure from now on, and whether a disk is low: then
// they are measured more often, and again at once.
func (u *Usages) Want(subjects []Subject, low bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	changed := low != u.hasty || !slices.EqualFunc(subjects, u.subjects, func(a, b Subject) bool {
		return a.UID == b.UID && a.Limited == b.Limited && slices.Equal(a.Containers, b.Containers)
	})
	u.subjects, u.hasty = subjects, low
	if low {
		u.hurry()
	}
	if changed {
		u.fresh, u.changed = true, time.Now()
		u.version++
		tell(u.wake)
	}
}

// Version is another number whenever something else is known of what is wanted
// than before; that it is known anew does not count.
func (u *Usages) Version() uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.version
}

// Unmeasured names something that is wanted, does not hang, and has not been
// measured since t; "" is nothing.
func (u *Usages) Unmeasured(t time.Time) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.subjects {
		if u.pods[s.UID] == nil || u.pods[s.UID].found.Before(t) {
			return "directories of pod " + s.UID
		}
	}
	for _, p := range u.places {
		if p.want && !p.hung && p.tried.Before(t) {
			return p.path
		}
	}
	return ""
}

// Run measures until ctx ends. A walk that hangs does not keep it from
// returning.
func (u *Usages) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	if u.o.Layers != nil {
		running.Go(func() { u.ask(ctx) })
	}
	defer func() { u.calm.end() }()
	looking := errand[map[string]*holdings]{what: "looking for the pods' directories"}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-u.wake:
		case <-timer.C:
		}
		if u.findDue(time.Now()) {
			u.find(ctx, &looking)
			u.found = time.Now()
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
		return hastily
	case now.Sub(u.changed) < settles && u.lacks():
		return askAgain
	}
	return calmly
}

// settles is how long directories that were not found are looked for again soon: a
// container that has just begun may have no root yet.
const settles = 10 * time.Second

// due returns the target that has waited longest beyond its time, or how long
// until there is one.
func (u *Usages) due(now time.Time) (next *target, wait time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	period := calmly
	if u.hasty {
		period = hastily
	}
	wait = max(0, u.findEvery(now)-now.Sub(u.found)) // when the directories are looked for again
	if u.hung >= mostHung {
		return nil, wait
	}
	var longest time.Duration
	for _, p := range u.places {
		if !p.want || !p.open.IsZero() {
			continue
		}
		every := max(period, share*p.took)
		if !p.limited {
			every = max(every, seldom)
		}
		if u.hasty { // what is low is more urgent than what the walk costs
			every = max(period, min(p.took, calmly))
		}
		late := now.Sub(p.tried) - every
		switch {
		case late < 0:
			wait = min(wait, -late)
		case next == nil || late > longest || late == longest && p.path < next.path:
			next, longest = p, late
		}
	}
	return next, wait
}

// worker is a thread that yields to all others.
type worker struct{ jobs chan func() }

func newWorker() *worker {
	w := &worker{make(chan func(), 1)} // who has a job waits for no processor
	go func() {
		// Where the kernel grants no low priority, an ordinary one has to do.
		_ = disk.LowPriority()
		for job := range w.jobs {
			job()
		}
	}()
	return w
}

// end ends the thread once its job has come back; that of nil is none.
func (w *worker) end() {
	if w != nil {
		close(w.jobs)
	}
}

// begin runs a job, on the thread at low priority where nothing is low.
func (u *Usages) begin(calm bool, job func()) {
	if !calm {
		go job()
		return
	}
	if u.calm == nil {
		u.calm = newWorker()
	}
	u.calm.jobs <- job
}

// abandon leaves the thread at low priority to the job that it is at.
func (u *Usages) abandon() {
	u.calm.end()
	u.calm = nil
}

// walk measures a target on another thread, and leaves that behind when nothing
// comes of it.
func (u *Usages) walk(ctx context.Context, p *target) {
	w := &disk.Walker{Most: mostEntries}
	if p.only != "" {
		w.Only = func(name string) bool {
			return name == p.only || len(name) > len(p.only) && name[:len(p.only)+1] == p.only+"."
		}
	}
	began := time.Now()
	u.mu.Lock()
	p.open = began
	p.turn++
	quota, calm, turn := !p.walk, !u.hasty, p.turn
	ctx, cancel := context.WithTimeout(ctx, longestWalk)
	hurry := make(chan struct{})
	u.hurry = func() {}
	if calm {
		u.hurry = sync.OnceFunc(func() { close(hurry) })
	}
	u.mu.Unlock()
	done := make(chan struct{})
	u.begin(calm, func() {
		defer cancel()
		got, err := u.measure(ctx, w, p.path, quota && p.only == "")
		u.take(p, turn, got, err, began)
		close(done)
	})
	timer := time.NewTimer(stalls)
	defer timer.Stop()
	for seen := w.Seen(); ; seen = w.Seen() {
		select {
		case <-done:
			return
		case <-hurry:
			// It may be long before it gets to run again, and can't be sped up: it is
			// done again by another.
			cancel()
			u.abandon()
			u.mu.Lock()
			defer u.mu.Unlock()
			p.turn++
			p.open = time.Time{}
			return
		case <-timer.C:
		}
		if w.Seen() == seen {
			break
		}
		timer.Reset(stalls)
	}
	if calm {
		u.abandon()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if p.open.IsZero() {
		return // it has just come back
	}
	u.version++
	p.hung = true
	u.hung++
	u.o.Log.Error("directory hangs whoever looks into it and is not measured any more", "path", p.path, "hung", u.hung)
}

// take notes what a walk found, in time or not.
func (u *Usages) take(p *target, turn int, got Measured, err error, began time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if turn != p.turn {
		return // it was given up
	}
	if p.hung {
		u.hung--
		u.o.Log.Info("directory can be looked into again", "path", p.path)
	}
	before, failed := p.got, p.hung || p.err != nil
	defer func() {
		before.At = p.got.At
		if p.got != before || failed || p.err != nil {
			u.version++
		}
	}()
	p.open, p.hung, p.took, p.err = time.Time{}, false, time.Since(began), err
	// What was there then is counted; what came later may not be.
	p.tried, got.At = began, began
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
