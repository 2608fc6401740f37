package evictions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/podfence"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// Inventory lists the pods of the node.
type Inventory interface {
	Running(uid string) pods.Running
	Guard() *evict.Guard
}

// Options configure Evictions.
type Options struct {
	Orders    *kube.Orders
	Inventory Inventory
	Records   *execute.Records
	Hierarchy *cgroup.Hierarchy
	Procfs    kernel.FS
	// Runtime returns the name of the container runtime; "" before it was listed.
	Runtime func() string
	// Exclusive returns why two instances of a pod must not run at the same time; "" if they
	// may.
	Exclusive func(uid string) string
	// DaemonSet reports whether a DaemonSet owns a pod.
	DaemonSet func(uid string) bool
	// Decided reports whether the decision loop has decided on a complete list of the pods, and
	// therefore resumed those evictions of an earlier run that it knows, and whether it is in
	// dry run. Resume kills a pod again; it returns false if it finds no container to kill. ctx
	// ends when evictd does.
	Decided func() (ok, dryRun bool)
	Resume  func(ctx context.Context, order evict.Order) bool
	// Connected reports whether evictd-kube is connected, so that answers may come.
	Connected func() bool
	// ShuttingDown reports whether evictd stops the pods because the node shuts down.
	ShuttingDown func() bool
	Log          *slog.Logger
}

// Evictions are the evictions that evictd-kube reports. The methods are safe for concurrent
// use.
type Evictions struct {
	o       Options
	started time.Time
	table   *podfence.Table // nil if the file of marks can't be opened; then there are no fences
	found   []podfence.Left // by Open, until Restore
	wake    chan struct{}   // Run has something to do

	stopTimeout time.Duration // how long Stop waits for answers
	stopping    atomic.Bool   // Stop was called

	// fencing is locked for reading while a fence is set, and for writing to set stopped.
	fencing sync.RWMutex
	stopped bool

	mu       sync.Mutex
	byUID    map[string]*eviction
	setting  map[string]int           // calls of Fence, by UID
	unlifted []*podfence.Fence        // that could not be lifted; Table.Check tries again
	shutdown map[*podfence.Fence]bool // without an order, until the node does not shut down any more
	counts   Status                   // the counters only

	// These are used by Run. orphans are the fences without an eviction in the last check, with
	// the time of the first check that found them.
	changes, problems kube.LogLimiter
	orphans           map[*podfence.Fence]time.Time
}

// eviction is what is known about the eviction of one pod until its cgroup is removed, or its
// order ends.
type eviction struct {
	uid, pod, id string
	exclusive    string
	killed       time.Time // the last kill; zero if the kubelet still stops the pod
	// killedAt is killed by the clock by which the runtime says when a container was created; that of the
	// newest container if the clock was set back since.
	killedAt    int64
	fence       *podfence.Fence // nil if none is set
	ended       bool            // no process of the containers is left
	gaveUp      bool            // the actuator no longer waits for the processes
	unfencedEnd bool            // ended was reported while the fence was being set
	revived     bool            // the kubelet has started a container again
	refused     time.Time       // when the pod was refused before any container of it had run; zero if it was not
	void        string          // why the order has to be withdrawn
	// restored is set for an eviction of an earlier run until it is known what goes on.
	// reported is set if evictd-kube had reported it by then.
	restored, reported bool
}

// Status describes the fences.
type Status struct {
	// Set is the number of fences that are set, without Unlifted, which is the number of those
	// that could not be lifted. They include those of a node shutdown.
	Set, Unlifted int
	// These count since the start: evictions without a fence, fences that were lifted, limits of
	// fences that others wrote, and evicted pods of which the kubelet started a container again.
	Failed, Lifted, Changed, Revived uint64
}

// New returns Evictions without any. It performs no I/O.
func New(o Options) *Evictions {
	return &Evictions{
		o: o, started: time.Now(), wake: make(chan struct{}, 1), byUID: map[string]*eviction{}, setting: map[string]int{},
		shutdown: map[*podfence.Fence]bool{}, stopTimeout: StopTimeout,
	}
}

// Status returns the present status.
func (e *Evictions) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.counts
	s.Unlifted = len(e.unlifted)
	s.Set = max(0, e.fences()-s.Unlifted)
	return s
}

// fences returns the number of fences that are set.
func (e *Evictions) fences() int {
	if e.table == nil {
		return 0
	}
	return e.table.Len()
}

// Report takes the progress of an eviction. It does not block. A job that is not Reported has
// no order, and says nothing about that of an earlier kill.
func (e *Evictions) Report(r execute.Report) {
	if r.Record.DryRun || !r.Reported {
		return
	}
	switch r.Stage {
	case act.Signalled:
		// The loop has resumed the eviction, if it is one of an earlier run.
		e.update(r.UID, func(v *eviction) { v.restored = false })
		if r.KubeletStops {
			e.beginStop(r)
		}
	case act.LastGone:
		e.ended(r.UID)
	case act.Refused:
		e.refused(r.UID, r.Err)
	case act.Finished:
		e.update(r.UID, func(v *eviction) { v.gaveUp = true })
		e.notify()
	}
}

// Refuse begins the order for a pod of which no container has run, so that nothing was killed and
// there is nothing to fence. decided is the time of the decision. It does not block.
func (e *Evictions) Refuse(order *evict.Order, decided time.Time) error {
	namespace, name, _ := strings.Cut(order.Pod, "/")
	id, err := e.o.Orders.Begin(kube.Eviction{
		UID: order.UID, Namespace: namespace, Name: name, Exclusive: e.o.Exclusive(order.UID), NotStarted: true, Decided: decided,
		Reason: order.Reason, Message: order.Message, Annotations: order.Annotations,
	})
	if err != nil {
		return err
	}
	e.mu.Lock()
	if e.byUID[order.UID] == nil {
		e.byUID[order.UID] = &eviction{uid: order.UID, pod: order.Pod, id: id, exclusive: e.o.Exclusive(order.UID), ended: true, refused: decided}
	}
	e.mu.Unlock()
	e.notify()
	return nil
}

// refused records that a pod was not killed. If an earlier kill has fenced it or ended all its
// containers, or the kubelet has stopped it, the order stays.
func (e *Evictions) refused(uid string, err error) {
	e.update(uid, func(v *eviction) {
		if v.ended || !v.killed.IsZero() && (v.fence != nil || e.setting[uid] > 0 || errors.Is(err, act.ErrEnded)) {
			v.gaveUp = true
		} else {
			v.void = fmt.Sprintf("the pod was not killed: %v", err)
		}
	})
	e.notify()
}

// beginStop begins the order for a pod that the kubelet is to stop.
func (e *Evictions) beginStop(r execute.Report) {
	order := evict.Order{UID: r.UID}
	if r.Order != nil {
		order = *r.Order // an eviction of an earlier run may have no record
	}
	if _, err := e.begin(&order, max(minGrace, r.Grace), false); err != nil {
		e.o.Log.Error("the eviction of the pod can't be reported; the kubelet does not stop it", "uid", r.UID, "error", err)
	}
}

// ended records that no process of a pod's containers is left. The order of a pod that must not
// run twice advances when its fence is set.
func (e *Evictions) ended(uid string) {
	wait := false
	if e.update(uid, func(v *eviction) {
		if wait = v.exclusive != "" && v.fence == nil && e.setting[uid] > 0; wait {
			v.unfencedEnd = true
		} else {
			v.ended = true
		}
	}) && !wait {
		e.o.Orders.Ended(uid)
	}
}

// update changes what is known about an eviction. It returns false if the pod has none.
func (e *Evictions) update(uid string, change func(*eviction)) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.byUID[uid]
	if v != nil {
		change(v)
	}
	return v != nil
}

func (e *Evictions) count(add func(*Status)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	add(&e.counts)
}

// notify wakes Run.
func (e *Evictions) notify() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}
