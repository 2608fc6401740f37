package reclaim

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pollinterval"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel"
)

// Runtime lists and removes images and containers.
type Runtime interface {
	PodRuntime
	Images(ctx context.Context) ([]cri.Image, error)
	RemoveImage(ctx context.Context, id string) error
	SandboxImage(ctx context.Context) (string, error)
}

// PodRuntime lists and removes sandboxes and containers.
type PodRuntime interface {
	Sandboxes(ctx context.Context) ([]cri.Sandbox, error)
	Containers(ctx context.Context) ([]cri.Container, error)
	ContainerDetail(ctx context.Context, id string) (cri.ContainerDetail, error)
	StopSandbox(ctx context.Context, id string) error
	RemoveSandbox(ctx context.Context, id string) error
	RemoveContainer(ctx context.Context, id string) error
}

// Filesystems reports the available space of the filesystems.
type Filesystems interface {
	// SyncFreed commits pending deletions on the signal's filesystem and requests a
	// new reading. It does not wait for either. Read returns the last readings.
	SyncFreed(signal.Signal)
	Read(now time.Time, into *signal.Observations)
}

// Options are the options of New.
type Options struct {
	Runtime     Runtime
	Filesystems Filesystems
	// Unmeasured returns the name of a directory or pod whose disk usage was not
	// measured since a time, "" if there is none. An order waits for the
	// measurements, up to orderTimeout, because the decision after it may rank the
	// pods by them.
	Unmeasured func(since time.Time) string
	// DryRun reports whether nothing may be removed. Kubelet returns what is known
	// of a kubelet on this node.
	DryRun  func() bool
	Kubelet func() evict.Kubelet
	// OnReport is called with every stored report. OnImagesListed is called after
	// each list of the images, so that the caller saves the result of ImageUses.
	// Neither may call the Reclaimer. Both may be nil.
	OnReport       func(evict.ReclaimReport)
	OnImagesListed func()
	// Rootfs is where the host's root is mounted; empty is "/". Procfs is its /proc,
	// empty is "/proc".
	Rootfs string
	Procfs kernel.FS
	Log    *slog.Logger
}

// Mode controls image collection.
type Mode string

// The modes.
const (
	Auto Mode = "auto" // on, unless a kubelet collects images
	On   Mode = "on"
	Off  Mode = "off"
)

// Policy is the configuration.
type Policy struct {
	Images Mode
	// Images first seen less than MinAge ago are kept. Images unused for longer
	// than MaxAge are removed; with a MaxAge of 0 none is removed for its age.
	MinAge, MaxAge time.Duration
	// High and Low are percentages of usage, 0 to 100: images are collected from
	// High on, down to Low.
	High, Low int32
	// Settle is how long the available space must not grow before the reclaim
	// counts as complete.
	Settle time.Duration
}

const (
	// minDeadAge is the minimum age of a dead container: until then an operator may
	// inspect it.
	minDeadAge = time.Minute
	// imageInterval is how often the images are listed, for their age and use. The usage of
	// imagefs is compared with High every signal.KubeletInterval.
	imageInterval = time.Minute
	// orderTimeout bounds an order: its removals, and from the same start the wait
	// for measurements of the pods' usage. Run removes the rest later.
	orderTimeout = 10 * time.Second
	// containerExitTimeout bounds the wait until the runtime reports evicted
	// containers as exited; the rest of orderTimeout is for their removal.
	containerExitTimeout = 7 * time.Second
	// lateFreeTimeout bounds the wait until the space of evicted pods is available
	// again, which containerd's garbage collector can delay by ten seconds
	// (pause_threshold); it is the kubelet's podCleanupTimeout
	// (pkg/kubelet/eviction/eviction_manager.go).
	lateFreeTimeout = 30 * time.Second
	// lateFreeTenths is the part of their known usage, in tenths, that ends that
	// wait.
	lateFreeTenths = 8
	// repeatLogInterval is the interval at which a lasting error is logged again.
	repeatLogInterval = time.Hour
	// maxReports is how many reports are stored.
	maxReports = 20
)

// Reclaimer executes node-level reclaims, one at a time, and collects images. Its
// methods are safe for concurrent use.
type Reclaimer struct {
	o      Options
	orders chan evict.Reclaim
	done   chan evict.ReclaimReport

	// mu is locked only briefly: the decision loop waits for it.
	mu              sync.Mutex
	policy          Policy
	evicted         map[string]EvictedUsage // by sandbox ID
	pendingCleanups []pendingCleanup
	reports         []evict.ReclaimReport
	exclusiveBytes  map[string]int64 // by container ID; immutable once set

	// imagesMu may be locked while a long list of images is evaluated.
	imagesMu sync.Mutex
	history  history

	calls calls
	// unfinished is the rest of the last order; nil if it was completed.
	// unmeasuredLogged is when a missing measurement was last logged, zero once all
	// is measured. Only Run's goroutine uses them.
	unfinished       *unfinishedOrder
	unmeasuredLogged time.Time
}

// unfinishedOrder is an order that did not reach its target within orderTimeout.
type unfinishedOrder struct {
	order  evict.Reclaim
	target int64 // of the signal's available amount
}

// New returns a Reclaimer without image history.
func New(o Options, p Policy) *Reclaimer {
	if o.Rootfs == "" {
		o.Rootfs = "/"
	}
	if o.Procfs == "" {
		o.Procfs = "/proc"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Reclaimer{
		o: o, policy: p, orders: make(chan evict.Reclaim, 1), done: make(chan evict.ReclaimReport, 1),
		history: history{}, evicted: map[string]EvictedUsage{},
	}
}

// Configure sets the policy.
func (r *Reclaimer) Configure(p Policy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.policy = p
}

// RestoreReports sets the reports of an earlier run. It bounds them: an earlier
// version may not have done so.
func (r *Reclaimer) RestoreReports(reports []evict.ReclaimReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports = slices.Clone(reports[max(0, len(reports)-maxReports):])
	for i := range r.reports {
		r.reports[i] = r.reports[i].Bounded()
	}
}

// RestoreImageUses sets the image history of an earlier run.
func (r *Reclaimer) RestoreImageUses(uses []evict.ImageUse) {
	r.imagesMu.Lock()
	defer r.imagesMu.Unlock()
	for _, u := range uses {
		r.history[u.ID] = u
	}
}

// ImageUses returns the image history, to be saved.
func (r *Reclaimer) ImageUses() []evict.ImageUse {
	r.imagesMu.Lock()
	defer r.imagesMu.Unlock()
	return r.history.list()
}

// ExclusiveImageBytes returns, by container ID, the bytes of images that only the
// container's pod uses, as of the last list of images. The caller must not change
// the map.
func (r *Reclaimer) ExclusiveImageBytes() map[string]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.exclusiveBytes
}

// Reports returns the last reports, oldest first.
func (r *Reclaimer) Reports() []evict.ReclaimReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.reports)
}

// EvictedUsage is the known disk usage of an evicted pod. The zero value means
// unknown.
type EvictedUsage struct {
	Amount int64
	Inodes bool // Amount counts inodes, not bytes
}

// Evicted records that evictd kills or has killed a pod that is not a kubelet's, with
// the given sandbox. The next reclaim of containers removes the sandbox first,
// whatever its age, and waits until most of its usage is free. A known usage stays if
// a later call has none.
func (r *Reclaimer) Evicted(sandboxID string, usage EvictedUsage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.evicted[sandboxID] == (EvictedUsage{}) {
		r.evicted[sandboxID] = usage
	}
}

// NotEvicted undoes Evicted for a sandbox whose pod was not killed after all.
func (r *Reclaimer) NotEvicted(sandboxID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.evicted, sandboxID)
}

// pendingCleanup is the usage of an evicted pod that the kubelet has yet to free. A
// reclaim waits for that, until the time in until.
type pendingCleanup struct {
	EvictedUsage
	uid   string
	until time.Time
}

// EvictedFromKubelet records that no process of an evicted pod of a kubelet is left.
// The kubelet removes the pod's volumes, layers and logs seconds later. A reclaim
// waits for that, up to lateFreeTimeout from now, so that no second pod is evicted for
// the same space; the kubelet's eviction manager does the same
// (waitForPodsCleanup).
func (r *Reclaimer) EvictedFromKubelet(uid string, usage EvictedUsage) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deleteCleanupsIf(func(p *pendingCleanup) bool { return p.uid == uid || !p.until.After(now) })
	r.pendingCleanups = append(r.pendingCleanups, pendingCleanup{usage, uid, now.Add(lateFreeTimeout)})
}

// Revived records that the kubelet has restarted containers of an evicted pod and
// will not remove its volumes. It undoes EvictedFromKubelet.
func (r *Reclaimer) Revived(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deleteCleanupsIf(func(p *pendingCleanup) bool { return p.uid == uid })
}

// deleteCleanupsIf deletes the pending cleanups that match. mu must be locked.
func (r *Reclaimer) deleteCleanupsIf(match func(*pendingCleanup) bool) {
	r.pendingCleanups = slices.DeleteFunc(r.pendingCleanups, func(p pendingCleanup) bool { return match(&p) })
}

// pendingFromKubelet returns the amount that a kubelet has yet to free, in the
// signal's unit, and until when to wait for it. It deletes the pending cleanups
// whose time is up.
func (r *Reclaimer) pendingFromKubelet(s signal.Signal) (amount int64, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.deleteCleanupsIf(func(p *pendingCleanup) bool { return !p.until.After(now) })
	for _, p := range r.pendingCleanups {
		if p.Inodes == s.IsInodes() {
			amount += p.Amount
			until = p.until // the list is in order of until
		}
	}
	return amount, until
}

// deleteCleanups deletes the pending cleanups in the signal's unit, once the wait for
// them has ended: their space is free, or the time is up.
func (r *Reclaimer) deleteCleanups(s signal.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deleteCleanupsIf(func(p *pendingCleanup) bool { return p.Inodes == s.IsInodes() })
}

// Start passes an order to Run. Its report is sent to Done. The caller must receive
// the report before it calls Start again.
func (r *Reclaimer) Start(o evict.Reclaim) { r.orders <- o }

// Done returns the channel of the reports of orders.
func (r *Reclaimer) Done() <-chan evict.ReclaimReport { return r.done }

// Run executes orders and collects images until ctx ends.
func (r *Reclaimer) Run(ctx context.Context) error {
	if r.o.Runtime == nil {
		return r.rejectOrders(ctx)
	}
	check := time.NewTimer(signal.KubeletInterval)
	defer check.Stop()
	r.calls.ctx = ctx
	var imagesInspected time.Time
	for {
		var order *evict.Reclaim
		select {
		case <-ctx.Done():
			return nil
		case o := <-r.orders:
			order = &o
		case <-check.C:
			now := time.Now()
			check.Reset(pollinterval.AlignedWait(now, signal.KubeletInterval))
			due := now.Sub(imagesInspected) >= imageInterval
			if due {
				imagesInspected = now
			}
			order = r.untilOrder(ctx, func(ctx context.Context) {
				if r.unfinished != nil {
					r.resume(ctx)
				}
				// In dry run the images stay, so usage above High is reported only
				// every imageInterval.
				if s, over := r.overThreshold(now); ctx.Err() == nil && (due || over && !r.o.DryRun()) {
					r.collect(ctx, s, over)
				}
			})
		}
		if order != nil && ctx.Err() == nil {
			report := r.execute(ctx, *order)
			if ctx.Err() != nil {
				return nil
			}
			r.addReport(report)
			r.done <- report
		}
	}
}

// untilOrder runs f until it returns, and returns nil. If an order arrives before, it
// cancels f's context, waits for f, and returns the order.
func (r *Reclaimer) untilOrder(ctx context.Context, f func(context.Context)) *evict.Reclaim {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	select {
	case <-done:
		return nil
	case o := <-r.orders:
		cancel()
		<-done
		return &o
	}
}

var errNoRuntime = errors.New("no container runtime")

// rejectOrders reports on each order that there is no runtime. Like execute, it first
// waits until the pods' usage was measured, because pods are ranked by it next.
func (r *Reclaimer) rejectOrders(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case o := <-r.orders:
			now := time.Now()
			r.awaitMeasurements(ctx, now)
			r.done <- evict.ReclaimReport{At: now, Kind: o.Kind, Reason: Pressure, Signal: o.Signal, Note: errNoRuntime.Error(), Duration: time.Since(now)}
		}
	}
}

func (r *Reclaimer) currentPolicy() Policy {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.policy
}
