package evictions

import (
	"cmp"
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
	// Exclusive returns why two instances of a pod must not run at the same time; "" if they
	// may.
	Exclusive func(uid string) string
	// Decided reports whether the decision loop has decided on a complete list of the pods, and
	// therefore resumed those evictions of an earlier run that it knows, and whether it is in
	// dry run. Resume kills a pod again. ctx ends when evictd does.
	Decided func() (ok, dryRun bool)
	Resume  func(ctx context.Context, order evict.Order)
	// Connected reports whether evictd-kube is connected, so that answers may come.
	Connected func() bool
	Log       *slog.Logger
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
	setting  map[string]int    // calls of Fence, by UID
	unlifted []*podfence.Fence // that could not be lifted; Table.Check tries again
	counts   Status            // the counters only

	// These are used by Run. orphans are the fences without an eviction in the last check.
	changes, problems kube.LogLimiter
	orphans           []*podfence.Fence
}

// eviction is what is known about the eviction of one pod until its cgroup is removed, or its
// order ends.
type eviction struct {
	uid, pod, id string
	exclusive    string
	killed       time.Time       // the last kill; zero if the kubelet still stops the pod
	fence        *podfence.Fence // nil if none is set
	ended        bool            // no process of the containers is left
	gaveUp       bool            // the actuator no longer waits for the processes
	unfencedEnd  bool            // ended was reported while the fence was being set
	revived      bool            // the kubelet has started a container again
	void         string          // why the order has to be withdrawn
	// restored is set for an eviction of an earlier run until it is known what goes on.
	// reported is set if evictd-kube had reported it by then.
	restored, reported bool
}

// Status describes the fences.
type Status struct {
	// Set is the number of fences that are set, without Unlifted, which is the number of those
	// that could not be lifted.
	Set, Unlifted int
	// These count since the start: evictions without a fence, fences that were lifted, limits of
	// fences that others wrote, and evicted pods of which the kubelet started a container again.
	Failed, Lifted, Changed, Revived uint64
}

// New returns Evictions without any. It performs no I/O.
func New(o Options) *Evictions {
	return &Evictions{o: o, started: time.Now(), wake: make(chan struct{}, 1), byUID: map[string]*eviction{}, setting: map[string]int{}, stopTimeout: stopTimeout}
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

var (
	errStopped = errors.New("evictd stops: no fence is set")
	errEnded   = errors.New("the eviction's order ended before its fence was set")
	errNoTable = errors.New("the file of fence marks could not be opened")
)

// Allowed implements [act.Fencer].
func (e *Evictions) Allowed(uid string) error {
	if e.o.Orders.Forbidden(uid) {
		return kube.ErrForbidden
	}
	return nil
}

// Fence implements [act.Fencer]. It begins the order and then sets the fence, whose mark has
// the order's ID.
func (e *Evictions) Fence(job *act.Job) error {
	e.fencing.RLock()
	defer e.fencing.RUnlock()
	if e.stopped {
		return errStopped
	}
	uid := job.Order.UID
	e.countSetting(uid, 1)
	defer e.countSetting(uid, -1)
	v, err := e.begin(&job.Order, graceOf(job), true)
	if err != nil {
		e.count(func(c *Status) { c.Failed++ })
		return err
	}
	fence, err := e.set(job, v.id)
	if fence != nil {
		if !e.update(uid, func(v *eviction) {
			v.fence = fence
			// Until now the kubelet could start a container, so Run looks at the pod's cgroup.
			v.gaveUp = v.gaveUp || v.unfencedEnd
		}) {
			e.liftFence(fence)
			return errEnded
		}
		if err != nil {
			e.o.Log.Warn("fence of the pod is incomplete; the rest is set within 500 ms", "pod", v.pod, "uid", uid, "error", err)
		}
		return nil
	}
	e.count(func(c *Status) { c.Failed++ })
	unfencedEnd := false
	e.update(uid, func(v *eviction) {
		unfencedEnd = v.unfencedEnd
		v.ended = v.ended || unfencedEnd
	})
	if v.exclusive == "" || unfencedEnd {
		// Every millisecond counts: the kubelet starts the pod again unless it sees the report.
		e.o.Orders.Ended(uid)
	}
	return err
}

// countSetting counts the calls of Fence for a pod.
func (e *Evictions) countSetting(uid string, change int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.setting[uid] += change; e.setting[uid] == 0 {
		delete(e.setting, uid)
	}
}

// minGrace is the grace period for containers that only the kubelet can stop.
const minGrace = time.Second

// graceOf returns 0 for a job whose containers were all killed. Those that evictd can't kill
// are stopped by the kubelet, which evictd-kube causes in an eviction with a grace period.
func graceOf(job *act.Job) time.Duration {
	for i := range job.Containers {
		if job.Containers[i].Cgroup == "" {
			return minGrace
		}
	}
	return 0
}

// begin begins the order of an eviction, or continues it, and returns what is known of it.
// killed is set after a kill.
func (e *Evictions) begin(order *evict.Order, grace time.Duration, killed bool) (eviction, error) {
	uid := order.UID
	rec, _ := e.o.Records.Last(uid) // a resumed order has no message
	pod := cmp.Or(order.Pod, rec.Pod)
	namespace, name, _ := strings.Cut(pod, "/")
	exclusive := e.o.Exclusive(uid)
	x := kube.Eviction{
		UID: uid, Namespace: namespace, Name: name, Exclusive: exclusive, Grace: grace, Decided: rec.Decided,
		Reason: cmp.Or(order.Reason, rec.Reason, evict.ReasonEvicted), Message: cmp.Or(order.Message, rec.Message), Annotations: order.Annotations,
	}
	if x.Annotations == nil {
		x.Annotations = rec.Annotations
	}
	now := time.Now()
	id, err := e.o.Orders.Begin(x)
	if err != nil {
		return eviction{}, err
	}
	e.mu.Lock()
	v := e.byUID[uid]
	if v == nil {
		v = &eviction{uid: uid, pod: pod, exclusive: exclusive}
		e.byUID[uid] = v
	}
	if v.id != "" && v.id != id { // the order of an earlier kill has ended
		*v = eviction{uid: uid, pod: pod, exclusive: exclusive, fence: v.fence}
	}
	v.id, v.restored, v.void = id, false, ""
	if killed {
		v.killed, v.revived, v.ended = now, false, false
	}
	known := *v
	e.mu.Unlock()
	e.notify()
	// A fence that takes a second is no longer waited for (agent/act). The record of an eviction
	// that is resumed may have the end of containers that an earlier run killed.
	if rec, _ := e.o.Records.Last(uid); rec.Result == evict.ResultPending && rec.LastGone.After(e.started) {
		e.ended(uid)
	}
	return known, nil
}

// set sets the fence of a job's pod. It returns nil and an error if there is none, and a
// fence with an error if it is incomplete.
func (e *Evictions) set(job *act.Job, id string) (*podfence.Fence, error) {
	if e.table == nil {
		return nil, errNoTable
	}
	var cgroups []string
	for i := range job.Containers {
		if at := job.Containers[i].Cgroup; at != "" {
			cgroups = append(cgroups, at)
		}
	}
	f, err := e.table.Prepare(job.Order.UID, cgroups)
	if err != nil {
		return nil, err
	}
	defer f.Close() // while it is set, the table keeps it open
	if err := f.Set(id); err != nil && !errors.Is(err, podfence.ErrPartial) {
		return nil, err
	} else {
		return f, err
	}
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
