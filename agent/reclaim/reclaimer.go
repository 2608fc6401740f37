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
	"github.com/evictd/evictd/kernel"
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
	// DryRun tells whether to look only, Kubelet what is known of a kubelet here.
	DryRun  func() bool
	Kubelet func() evict.Kubelet
	// Changed is told of every report, Seen when the images were looked at: what
	// Uses returns is worth to be kept then. They must not call back.
	Changed func(evict.ReclaimReport)
	Seen    func()
	// Rootfs is where the host's root is mounted; empty is "/". Procfs is its /proc,
	// empty is "/proc".
	Rootfs string
	Procfs kernel.FS
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
}

const (
	// minimumAge spares what is dead for less long: somebody may look at it.
	minimumAge = time.Minute
	// lookEvery is how often images are looked at for their age and their use,
	// and checkEvery the filesystem for its usage.
	lookEvery, checkEvery = time.Minute, 10 * time.Second
	// reclaimFor bounds a reclaim that was ordered: its lists, its removals and the
	// wait for the filesystem's numbers. What it has not come to is removed later.
	reclaimFor = 10 * time.Second
	// endFor is how long of that a reclaim waits for the runtime to see the end of
	// evicted containers: it leaves time to remove them.
	endFor = 7 * time.Second
	// lateFor bounds the wait for most (enough of ten) of what evicted pods are known
	// to have held, once the runtime has removed them: filesystems and runtimes free
	// it later. containerd collects garbage for at most a fiftieth of the time
	// (pause_threshold), so that a slow collection delays the next one: a layer was
	// seen of which most was still there after ten seconds. The kubelet waits for as
	// long (podCleanupTimeout in pkg/kubelet/eviction/eviction_manager.go).
	lateFor = 30 * time.Second
	enough  = 8
	// measureFor bounds the wait for the pods' usage to be measured. It begins with
	// the reclaim, as the measurements do.
	measureFor = 10 * time.Second
	// repeatLog is after how long a fault that lasts is logged again.
	repeatLog = time.Hour
	// keptReports is how many reports are kept.
	keptReports = 20
)

// Reclaimer carries out node-level reclaims, one at a time, and collects images.
// Its methods are safe for concurrent use.
type Reclaimer struct {
	o      Options
	orders chan evict.Reclaim
	done   chan evict.ReclaimReport

	// mu is locked for moments only: the decision loop waits for it.
	mu      sync.Mutex
	policy  Policy
	evicted map[string]Held // by sandbox
	kubelet []kubeletHeld
	reports []evict.ReclaimReport
	own     map[string]int64 // not changed any more

	// imagesMu may be locked for as long as a long list of images takes.
	imagesMu sync.Mutex
	history  history

	calls calls
	// rest is what the last order has not come to; nil where it came to its end.
	// unmeasured is when a missing measurement was logged last, zero since all is
	// measured. Only Run's goroutine uses them.
	rest       *rest
	unmeasured time.Time
}

// rest is an order that its deadline has ended.
type rest struct {
	order  evict.Reclaim
	target int64 // of the signal
}

// New returns a reclaimer that knows nothing of the images yet.
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
		history: history{}, evicted: map[string]Held{},
	}
}

// Configure takes another policy.
func (r *Reclaimer) Configure(p Policy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.policy = p
}

// RestoreReports takes over the reports of an earlier run.
func (r *Reclaimer) RestoreReports(reports []evict.ReclaimReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports = slices.Clone(reports[max(0, len(reports)-keptReports):])
}

// Restore takes over what an earlier run knew of the images.
func (r *Reclaimer) Restore(uses []evict.ImageUse) {
	r.imagesMu.Lock()
	defer r.imagesMu.Unlock()
	for _, u := range uses {
		r.history[u.ID] = u
	}
}

// Uses returns what is known of the images, to be kept.
func (r *Reclaimer) Uses() []evict.ImageUse {
	r.imagesMu.Lock()
	defer r.imagesMu.Unlock()
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
func (r *Reclaimer) Reports() []evict.ReclaimReport {
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

// kubeletHeld is what an evicted pod of a kubelet used, and until when its return is
// waited for.
type kubeletHeld struct {
	Held
	uid   string
	until time.Time
}

// EvictedFromKubelet notes that an evicted pod of a kubelet has no process left. The
// kubelet alone removes its volumes, layers and logs, and does so seconds later: a
// reclaim waits for that, as the kubelet's own eviction manager does
// (waitForPodsCleanup), before another pod is chosen for the same space.
func (r *Reclaimer) EvictedFromKubelet(uid string, held Held) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetHeld(func(h *kubeletHeld) bool { return h.uid == uid || !h.until.After(now) })
	r.kubelet = append(r.kubelet, kubeletHeld{held, uid, now.Add(lateFor)})
}

// Revived notes that the kubelet has started containers of an evicted pod again: then it
// keeps the pod's volumes.
func (r *Reclaimer) Revived(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetHeld(func(h *kubeletHeld) bool { return h.uid == uid })
}

// forgetHeld drops what a kubelet is no longer waited for. The caller holds mu.
func (r *Reclaimer) forgetHeld(over func(*kubeletHeld) bool) {
	r.kubelet = slices.DeleteFunc(r.kubelet, func(h kubeletHeld) bool { return over(&h) })
}

// fromKubelet returns what a kubelet is still to free of a signal's unit, and until
// when that is waited for.
func (r *Reclaimer) fromKubelet(s signal.Signal) (amount int64, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.forgetHeld(func(h *kubeletHeld) bool { return !h.until.After(now) })
	for _, h := range r.kubelet {
		if h.Inodes == s.IsInodes() {
			amount += h.Amount
			until = h.until // the latest is the last
		}
	}
	return amount, until
}

// returned forgets what fromKubelet counted: it is back, or was waited for.
func (r *Reclaimer) returned(s signal.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetHeld(func(h *kubeletHeld) bool { return h.Inodes == s.IsInodes() })
}

// Order begins with a reclaim; its report comes from Done. There is one order at
// a time.
func (r *Reclaimer) Order(o evict.Reclaim) { r.orders <- o }

// Done is where the report of an order comes.
func (r *Reclaimer) Done() <-chan evict.ReclaimReport { return r.done }

// Run works until ctx ends.
func (r *Reclaimer) Run(ctx context.Context) error {
	if r.o.Runtime == nil {
		return r.refuse(ctx)
	}
	check := time.NewTimer(checkEvery)
	defer check.Stop()
	r.calls.ctx = ctx
	var looked time.Time
	for {
		var order *evict.Reclaim
		select {
		case <-ctx.Done():
			return nil
		case o := <-r.orders:
			order = &o
		case <-check.C:
			now := time.Now()
			check.Reset(pace.Together(now, checkEvery))
			due := now.Sub(looked) >= lookEvery
			if due {
				looked = now
			}
			order = r.background(ctx, func(ctx context.Context) {
				if r.rest != nil {
					r.finish(ctx)
				}
				// What a dry run would remove stays, and need not be reported so often.
				if s, over := r.overused(now); ctx.Err() == nil && (due || over && !r.o.DryRun()) {
					r.collect(ctx, s, over)
				}
			})
		}
		if order != nil && ctx.Err() == nil {
			report := r.carryOut(ctx, *order)
			if ctx.Err() != nil {
				return nil
			}
			r.keep(report)
			r.done <- report
		}
	}
}

// background runs f and returns when f has. An order that arrives meanwhile ends
// f's context, so that it does not wait for f, and is returned.
func (r *Reclaimer) background(ctx context.Context, f func(context.Context)) *evict.Reclaim {
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
			r.done <- evict.ReclaimReport{At: now, Kind: o.Kind, Reason: Pressure, Signal: o.Signal, Note: errNoRuntime.Error(), Took: time.Since(now)}
		}
	}
}

func (r *Reclaimer) settings() Policy {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.policy
}
