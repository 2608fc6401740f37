package reclaim

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pace"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri"
)

// Runtime is what holds images and containers.
type Runtime interface {
	Pods
	Images(ctx context.Context) ([]cri.Image, error)
	RemoveImage(ctx context.Context, id string) error
	SandboxImage(ctx context.Context) (string, error)
}

// Pods is what holds containers.
type Pods interface {
	Sandboxes(ctx context.Context) ([]cri.Sandbox, error)
	Containers(ctx context.Context) ([]cri.Container, error)
	ContainerDetail(ctx context.Context, id string) (cri.ContainerDetail, error)
	StopSandbox(ctx context.Context, id string) error
	RemoveSandbox(ctx context.Context, id string) error
	RemoveContainer(ctx context.Context, id string) error
}

// Space tells what a filesystem has left.
type Space interface {
	// Freeing has it free what was removed and read anew, soon; Read fills in what
	// was read last.
	Freeing(signal.Signal)
	Read(now time.Time, into *signal.Observations)
}

// Options are what a Reclaimer is made of.
type Options struct {
	Runtime Runtime
	Space   Space
	// Unmeasured names what of the pods' disk usage was not measured since a time,
	// "" for nothing; an order is not done before, for a while, as what comes next
	// may be to choose a pod by it.
	Unmeasured func(since time.Time) string
	// DryRun tells whether to look only; KubeletSeen whether a kubelet runs here,
	// as far as is known without the runtime.
	DryRun      func() bool
	KubeletSeen func() bool
	// Changed is told of every report, Seen when the images were looked at: what
	// Uses returns is worth to be kept then. They must not call back.
	Changed func(Report)
	Seen    func()
	// Rootfs is where the host's root is mounted; empty is "/".
	Rootfs string
	Log    *slog.Logger
}

// Mode tells whether images are collected.
type Mode string

// The modes.
const (
	Auto Mode = "auto" // unless a kubelet does
	On   Mode = "on"
	Off  Mode = "off"
)

// Policy is what an operator configured.
type Policy struct {
	Images Mode
	// MinAge spares images that were seen first less long ago, MaxAge dooms those
	// that have not been used for longer; 0 dooms none.
	MinAge, MaxAge time.Duration
	// High and Low are the percentages of usage from which and down to which
	// images are collected, 0 to 100.
	High, Low int32
	// Settle is how long space that comes back late is waited for.
	Settle time.Duration
	// KubeletAbsent declares that what looks like a kubelet's is left over.
	KubeletAbsent bool
}

const (
	// minimumAge spares what is dead for less long: somebody may look at it.
	minimumAge = time.Minute
	// lookEvery is how often images are looked at for their age and their use,
	// and checkEvery the filesystem for its usage.
	lookEvery, checkEvery = time.Minute, 10 * time.Second
	// endFor is how long the end of what is evicted is waited for, and lateFor for
	// most of what it is known to have held, enough of ten: filesystems remove files,
	// and runtimes layers, when they have the time. containerd collects its garbage
	// for at most a fiftieth of it (pause_threshold, by its documentation), so that a
	// slow collection puts the next one off. Seen was a layer of which most was still
	// there after ten seconds, on a loaded machine. The kubelet waits for half a
	// minute, too.
	endFor, lateFor = 10 * time.Second, 30 * time.Second
	enough          = 8
	// measureFor is how long measurements of the pods' usage are waited for.
	measureFor = 10 * time.Second
	// keptReports is how many reports are kept.
	keptReports = 20
)

// Reason is why something was reclaimed.
type Reason string

// The reasons.
const (
	Pressure  Reason = "pressure"  // a threshold of a signal is met
	Threshold Reason = "threshold" // usage is above imageGCHighThresholdPercent
	Age       Reason = "age"       // unused for longer than imageMaximumGCAge
)

// Report tells what a reclaim did.
type Report struct {
	At     time.Time         `json:"at"`
	Kind   evict.ReclaimKind `json:"kind"`
	Reason Reason            `json:"reason"`
	// Signal is the one that it was for; that of imagefs where it was for its
	// usage or for age.
	Signal signal.Signal `json:"signal"`
	DryRun bool          `json:"dryRun,omitempty"`
	// Removed names what was removed, or would have been.
	Removed []string `json:"removed"`
	// Freed is by how much more the filesystem has left than before, in the
	// signal's unit: what others wrote or removed meanwhile is in it.
	Freed int64         `json:"freed"`
	Took  time.Duration `json:"tookNanoseconds"`
	// Note says why nothing was tried; Error what went wrong last.
	Note  string `json:"note,omitempty"`
	Error string `json:"error,omitempty"`
}

// Reclaimer carries out node-level reclaims, one at a time, and collects images.
// Its methods are safe for concurrent use.
type Reclaimer struct {
	o      Options
	orders chan evict.Reclaim
	done   chan Report

	mu      sync.Mutex
	policy  Policy
	history history
	evicted map[string]Held // by sandbox
	reports []Report
	own     map[string]int64 // not changed any more
}

// New returns a reclaimer that knows nothing of the images yet.
func New(o Options, p Policy) *Reclaimer {
	if o.Rootfs == "" {
		o.Rootfs = "/"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Reclaimer{
		o: o, policy: p, orders: make(chan evict.Reclaim, 1), done: make(chan Report, 1),
		history: history{}, evicted: map[string]Held{},
	}
}

// Configure takes another policy.
func (r *Reclaimer) Configure(p Policy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.policy = p
}

// Restore takes over what an earlier run knew of the images.
func (r *Reclaimer) Restore(uses []Use) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, u := range uses {
		r.history[u.ID] = u
	}
}

// Uses returns what is known of the images, to be kept.
func (r *Reclaimer) Uses() []Use {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.history.list()
}

// ImageBytes returns, by container, the bytes of images that nobody but its pod
// uses, as they were seen last. They must not be changed.
func (r *Reclaimer) ImageBytes() map[string]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.own
}

// Reports returns the last reports, the oldest first.
func (r *Reclaimer) Reports() []Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.reports)
}

// Held is what an evicted pod holds on the disks: bytes, or inodes. The zero Held
// is not known.
type Held struct {
	Amount int64
	Inodes bool
}

// Evicted tells that a sandbox that no kubelet made is evicted: what will be left
// of it is nobody's, goes first, and is waited for.
func (r *Reclaimer) Evicted(sandboxID string, held Held) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.evicted[sandboxID] == (Held{}) {
		r.evicted[sandboxID] = held
	}
}

// Spared takes that back.
func (r *Reclaimer) Spared(sandboxID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.evicted, sandboxID)
}

// Order begins with a reclaim; its report comes from Done. There is one order at
// a time.
func (r *Reclaimer) Order(o evict.Reclaim) { r.orders <- o }

// Done is where the report of an order comes.
func (r *Reclaimer) Done() <-chan Report { return r.done }

// Run works until ctx ends.
func (r *Reclaimer) Run(ctx context.Context) error {
	if r.o.Runtime == nil {
		return r.refuse(ctx)
	}
	check := time.NewTimer(checkEvery)
	defer check.Stop()
	var looked time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case o := <-r.orders:
			report := r.carryOut(ctx, o)
			if ctx.Err() != nil {
				return nil
			}
			r.keep(report)
			r.done <- report
		case <-check.C:
			now := time.Now()
			check.Reset(pace.Together(now, checkEvery))
			due := now.Sub(looked) >= lookEvery
			if due {
				looked = now
			}
			// What a dry run would remove stays, and need not be told so often.
			if s, over := r.overused(now); due || over && !r.o.DryRun() {
				r.collect(ctx, s, over)
			}
		}
	}
}

var errNoRuntime = errors.New("there is no container runtime")

// refuse answers orders where nothing can be reclaimed.
func (r *Reclaimer) refuse(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case o := <-r.orders:
			now := time.Now()
			r.await(ctx, now)
			r.done <- Report{At: now, Kind: o.Kind, Reason: Pressure, Signal: o.Signal, Note: errNoRuntime.Error(), Took: time.Since(now)}
		}
	}
}

// keep keeps a report, and tells it. Of many in a row that found nothing it is the
// first.
func (r *Reclaimer) keep(report Report) {
	r.mu.Lock()
	if r.repeats(&report) {
		r.mu.Unlock()
		return
	}
	r.reports = append(r.reports, report)
	if n := len(r.reports) - keptReports; n > 0 {
		r.reports = slices.Delete(r.reports, 0, n)
	}
	r.mu.Unlock()
	level := slog.LevelInfo
	if report.Error != "" {
		level = slog.LevelWarn
	}
	r.o.Log.Log(context.Background(), level, "reclaimed from the node", "kind", report.Kind, "reason", report.Reason, "signal", report.Signal.String(),
		"removed", len(report.Removed), "freed", report.Freed, "took", report.Took.String(), "dry_run", report.DryRun, "note", report.Note, "error", report.Error)
	if r.o.Changed != nil {
		r.o.Changed(report)
	}
}

// repeats reports whether the last report of the kind says the same: nothing.
func (r *Reclaimer) repeats(report *Report) bool {
	for i := len(r.reports) - 1; i >= 0; i-- {
		last := &r.reports[i]
		if last.Kind == report.Kind && last.Signal == report.Signal {
			return len(last.Removed) == 0 && len(report.Removed) == 0 && last.Note == report.Note && last.Error == report.Error
		}
	}
	return false
}

// carryOut does what an order asks for.
func (r *Reclaimer) carryOut(ctx context.Context, o evict.Reclaim) Report {
	report := Report{At: time.Now(), Kind: o.Kind, Reason: Pressure, Signal: o.Signal, DryRun: r.o.DryRun(), Removed: []string{}}
	before, ok := r.left(o.Signal)
	target := before + max(1, o.Deficit)
	var promised int64
	switch {
	case !ok:
		report.Note = "the signal can't be read"
	case o.Kind == evict.ReclaimContainers:
		promised = r.removeDead(ctx, &report, target)
	default:
		r.removeImages(ctx, &report, target, r.settings())
	}
	if ok {
		// What others removed, and what evicted pods held, comes back late too.
		if !report.DryRun {
			r.settle(ctx, o.Signal, target)
			if promised > 0 {
				r.wait(ctx, o.Signal, min(target, before+promised/10*enough))
			}
		}
		after, _ := r.left(o.Signal)
		report.Freed = max(0, after-before)
	}
	r.await(ctx, report.At)
	report.Took = time.Since(report.At)
	return report
}

func (r *Reclaimer) settings() Policy {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.policy
}

// await waits until the pods' usage was measured since a time.
func (r *Reclaimer) await(ctx context.Context, since time.Time) {
	if r.o.Unmeasured == nil {
		return
	}
	for began := time.Now(); ; {
		lacks := r.o.Unmeasured(since)
		if lacks == "" || !pause(ctx) {
			return
		}
		if time.Since(began) >= measureFor {
			r.o.Log.Warn("the disk usage of pods was not measured in time", "lacks", lacks)
			return
		}
	}
}

// left returns what a signal's filesystem has left, as far as that is known.
func (r *Reclaimer) left(s signal.Signal) (int64, bool) {
	var o signal.Observations
	r.o.Space.Read(time.Now(), &o)
	return o[s].Available, o[s].Status == signal.Observed
}

// settle waits until a signal has come up to a target or has stopped to grow:
// runtimes free images and layers after they have said so. It returns whether
// the target is reached.
func (r *Reclaimer) settle(ctx context.Context, s signal.Signal, target int64) bool {
	patience := r.settings().Settle
	most, grew := int64(-1), time.Now()
	for {
		r.o.Space.Freeing(s)
		if !pause(ctx) {
			return false
		}
		left, ok := r.left(s)
		switch {
		case ok && left >= target:
			return true
		case ok && left > most:
			if most >= 0 {
				grew = time.Now()
			}
			most = left
		}
		if time.Since(grew) >= patience {
			return false
		}
	}
}

// wait waits until a signal has come up to what is known to come back.
func (r *Reclaimer) wait(ctx context.Context, s signal.Signal, promised int64) {
	for end := time.Now().Add(lateFor); time.Now().Before(end); {
		if left, ok := r.left(s); !ok || left >= promised {
			return
		}
		r.o.Space.Freeing(s)
		if !pause(ctx) {
			return
		}
	}
}

// pause waits for a moment; it returns false when ctx ends.
func pause(ctx context.Context) bool {
	timer := time.NewTimer(20 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
