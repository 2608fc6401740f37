package disks

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pollinterval"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/disk"
)

// Pod is a pod whose disk usage is measured.
type Pod struct {
	UID        string
	Containers []evict.RunningContainer
	// Limited reports that the pod has a limit for its disk usage.
	Limited bool
}

// Measurement is the usage of a directory, or of a writable layer as reported by the
// runtime.
type Measurement struct {
	disk.Usage
	At time.Time // zero if there was no measurement
	// Method is "project quota", "walk" or "runtime".
	Method string
	// Incomplete is the reason why the usage may be higher; empty if all was counted.
	Incomplete string

	project uint32 // the project ID, if Method is a quota; else 0
}

// UsageMeterOptions are the options of [NewUsageMeter].
type UsageMeterOptions struct {
	Procfs kernel.FS
	// Rootfs is where the host's root is mounted; empty is "/".
	Rootfs string
	// PodsDir is the kubelet's directory of pods, as the host sees it; empty is the
	// one below [KubeletDir].
	PodsDir string
	// RuntimeLayers returns the sizes of writable layers by container ID, as the runtime
	// reports them. It is used if a layer's directory is not found; nil if not
	// available.
	RuntimeLayers func(ctx context.Context) (map[string]Measurement, error)
	// LayersDir returns the directory of writable layers, as this process sees it;
	// "" if not known.
	LayersDir func() string
	// OnSurvey is called with each new result of [UsageMeter.LargestDirectories]; it may
	// be nil.
	OnSurvey func(point string, byBytes, byInodes []evict.DirectoryUsage)
	Log      *slog.Logger
}

// UsageMeter measures the disk usage of pods: it measures one directory after the
// other, at low priority, and caches the results. Its methods are safe for
// concurrent use and, except Run, do not block.
type UsageMeter struct {
	o             UsageMeterOptions
	wake          chan struct{}
	layersMissing chan struct{} // a writable layer was not found
	// measure and surveyWalk are replaced in tests.
	measure    func(ctx context.Context, w *disk.Walker, path string, quota bool) (Measurement, error)
	surveyWalk func(ctx context.Context, w *disk.Walker, path string) (disk.Usage, error)

	// budget is the processor time that measuring may take. cpu returns the
	// processor time that the calling thread has used.
	budget *pollinterval.Budget
	cpu    func() (time.Duration, error)

	// Used by Run's goroutine only: the worker thread, nil if none runs; and when
	// the pods' directories were last searched, and how long that took.
	worker     *worker
	locatedAt  time.Time
	locateTook time.Duration

	mu          sync.Mutex
	version     uint64 // incremented when the known usage changes
	podsChanged bool   // their directories were not searched yet
	changedAt   time.Time
	pods        []Pod
	podFiles    map[string]*podFiles   // by UID
	lookups     map[string]*job        // searches in flight, by UID; the read of the mount table by its name
	mounted     map[string]string      // type of the mounted filesystem, by mount point
	targets     map[string]*target     // by path, logs in a shared directory by logFiles.key
	layers      map[string]Measurement // by container ID, as the runtime reports them
	diskLow     bool
	jobs        jobs
	surveys     map[string]*survey // by mount point
	surveyQueue []*survey
	// activeSurvey is the survey that runs; nil if none runs, or if it hangs.
	activeSurvey *job
}

// target is a directory to measure.
type target struct {
	path string
	only string // if set, only the file of this name and its rotations (only.*) count
	// got is the last result; zero if there was none. err is the error of the last
	// attempt, which began at lastTried; nil if it succeeded.
	got       Measurement
	err       error
	lastTried time.Time
	took      time.Duration
	mustWalk  bool // the project quota is shared with another directory
	// job is the measurement in flight, nil for none, and walker its walker.
	job    *job
	walker *disk.Walker
	want   bool   // still part of a pod to measure
	pod    string // the UID of a pod that it belongs to
	// mounted reports that another filesystem is mounted there. If a directory of
	// the pod hangs, it is most likely this one.
	mounted bool
	// limited reports that the directory belongs to a pod with a limit for its disk
	// usage.
	limited bool
}

// NewUsageMeter returns a UsageMeter without measurements.
func NewUsageMeter(o UsageMeterOptions) *UsageMeter {
	if o.Rootfs == "" {
		o.Rootfs = "/"
	}
	if o.PodsDir == "" {
		o.PodsDir = KubeletDir + "/pods"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &UsageMeter{
		o: o, wake: make(chan struct{}, 1), layersMissing: make(chan struct{}, 1), measure: measure, surveyWalk: surveyWalk,
		budget: pollinterval.NewBudget(budgetShare, budgetBurst), cpu: disk.ThreadTime,
		podFiles: map[string]*podFiles{}, lookups: map[string]*job{}, targets: map[string]*target{}, jobs: newJobs(),
		surveys: map[string]*survey{},
	}
}

// SetPods sets the pods to measure. low reports that a disk is low: then directories
// are measured more often. A change of either takes effect at once.
func (u *UsageMeter) SetPods(pods []Pod, low bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	changed := low != u.diskLow || !slices.EqualFunc(pods, u.pods, func(a, b Pod) bool {
		return a.UID == b.UID && a.Limited == b.Limited && slices.EqualFunc(a.Containers, b.Containers, sameFiles)
	})
	u.pods, u.diskLow = pods, low
	if changed {
		u.podsChanged, u.changedAt = true, time.Now()
		u.version++
		notify(u.wake)
	}
}

// sameFiles reports whether two handles refer to the same files of a container.
func sameFiles(a, b evict.RunningContainer) bool {
	return a.ID == b.ID && a.Name == b.Name && a.InitPID == b.InitPID && a.InitStart == b.InitStart && a.LogPath == b.LogPath
}

// Version returns a number that increases when the known usage of a pod changes. A
// new measurement with the same result does not increase it.
func (u *UsageMeter) Version() uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.version
}

// Unmeasured returns the name of a directory or pod that was not measured since the
// given time, "" if there is none. It does not wait for directories that hang, or for
// those that are not measured because too many directories of the pod hang.
func (u *UsageMeter) Unmeasured(since time.Time) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, p := range u.pods {
		lookup := u.lookups[p.UID]
		if (u.podFiles[p.UID] == nil || u.podFiles[p.UID].locatedAt.Before(since)) && !lookup.isHung() && !(lookup == nil && u.jobs.exhausted(p.UID)) {
			return "directories of pod " + p.UID
		}
	}
	for _, t := range u.targets {
		if t.want && t.lastTried.Before(since) && !t.job.isHung() && !(t.job == nil && u.jobs.exhausted(t.pod)) {
			return t.path
		}
	}
	return ""
}

// Run measures until ctx ends. It returns even if a job hangs.
func (u *UsageMeter) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	if u.o.RuntimeLayers != nil {
		running.Go(func() { u.queryLayers(ctx) })
	}
	defer u.stopWorker()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-u.wake:
		case <-timer.C:
		}
		u.startSurvey(ctx)
		if u.locateDue(time.Now()) {
			began := time.Now()
			u.locatePods(ctx)
			u.locatedAt = time.Now()
			u.locateTook = u.locatedAt.Sub(began)
		}
		began := time.Now()
		wait := time.Duration(0)
		for ctx.Err() == nil {
			var next *target
			if next, wait = u.nextTarget(time.Now()); next == nil {
				break
			}
			u.measureTarget(ctx, next)
			if time.Since(began) >= maxWalkRun { // there may always be another target
				wait = 0
				break
			}
		}
		timer.Reset(wait)
	}
}

// locateDue reports whether it is time to search for the pods' directories.
func (u *UsageMeter) locateDue(now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	due := u.podsChanged || now.Sub(u.locatedAt) >= u.locateInterval(now)
	u.podsChanged = u.podsChanged && !due
	return due
}

// locateInterval returns the interval at which the pods' directories are searched.
// mu must be locked.
func (u *UsageMeter) locateInterval(now time.Time) time.Duration {
	switch {
	case u.diskLow:
		return max(usageIntervals[urgent], locateShare*u.locateTook)
	case now.Sub(u.changedAt) < newContainerWindow && u.missingLayersLocked():
		return queryRetry
	}
	return usageIntervals[limited]
}
