package evictions

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/podfence"
	"github.com/evictd/evictd/kernel/cgroup"
)

var (
	errStopped = errors.New("evictd stops: no fence is set")
	errEnded   = errors.New("the eviction's order ended before its fence was set")
	errNoTable = errors.New("the file of fence marks could not be opened")
	errRuntime = errors.New("no fence is set with the container runtime cri-o: it is not known to keep its containers from starting")
)

const (
	// unmeasured is the runtime with which no fence is set. Its containers may start in spite of one: it
	// may execute crun.
	unmeasured = "cri-o"
	// measuredV1 is the only OCI runtime with which a fence is set on cgroup v1. A container of crun may start
	// in spite of one (agent/podfence).
	measuredV1 = "runc"
)

// Allowed implements [act.Fencer].
func (e *Evictions) Allowed(job *act.Job) error {
	if e.o.Orders.Forbidden(job.Order.UID) && !(job.Shutdown && e.o.ShuttingDown()) {
		return kube.ErrForbidden
	}
	return nil
}

// Fence implements [act.Fencer]. It begins the order and then sets the fence, whose mark has
// the order's ID. In a shutdown of the node a pod that can't be reported has a fence without one,
// and a pod with containers in their grace period none on cgroup v1.
func (e *Evictions) Fence(job *act.Job) error {
	e.fencing.RLock()
	defer e.fencing.RUnlock()
	if e.stopped {
		return errStopped
	}
	if job.Stopping && e.o.Hierarchy.Version != cgroup.V2 {
		return nil // pids.max would keep their processes from forking
	}
	if !job.Reported {
		return e.fenceForShutdown(job)
	}
	uid := job.Order.UID
	e.beginSetting(uid)
	v, err := e.begin(&job.Order, graceOf(job), true)
	if err != nil {
		e.endSetting(uid, nil)
		if job.Shutdown {
			return e.fenceForShutdown(job)
		}
		e.count(func(c *Status) { c.Failed++ })
		return err
	}
	fence, err := e.set(job, v.id)
	if fence != nil && err == nil {
		// Before the order may reach its last stage. That a fence set in part is complete, Run does not
		// record: a container may have started before that, and after the end of the pod's processes was
		// seen, on which the order rests. evictd-kube carries out such an order as one without a fence.
		e.o.Orders.Fenced(uid)
	}
	known, unfencedEnd := e.endSetting(uid, fence)
	switch {
	case fence == nil:
		e.count(func(c *Status) { c.Failed++ })
		if v.exclusive == "" || unfencedEnd {
			// Every millisecond counts: the kubelet starts the pod again unless it sees the report.
			e.o.Orders.Ended(uid)
		}
		return err
	case !known:
		e.release(fence, v.id)
		return errEnded
	case err != nil:
		e.o.Log.Warn("fence of the pod is incomplete; the rest is set within 500 ms", "pod", v.pod, "uid", uid, "error", err)
	}
	if unfencedEnd {
		e.notify() // Run looks for the end of the pod
	}
	return nil
}

// beginSetting begins a call of Fence.
func (e *Evictions) beginSetting(uid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.setting[uid]++
}

// endSetting ends a call of Fence, which has set a fence or none. It returns whether the pod's
// eviction is known, and whether its end was reported before.
func (e *Evictions) endSetting(uid string, fence *podfence.Fence) (known, unfencedEnd bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.setting[uid]--; e.setting[uid] == 0 {
		delete(e.setting, uid)
	}
	v := e.byUID[uid]
	if v == nil {
		return false, false
	}
	unfencedEnd, v.unfencedEnd = v.unfencedEnd, false
	if fence == nil {
		v.ended = v.ended || unfencedEnd
		return true, unfencedEnd
	}
	v.fence = fence
	// Until now the kubelet could start a container, so Run looks at the pod's cgroup.
	v.gaveUp = v.gaveUp || unfencedEnd
	return true, unfencedEnd
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
	if e.o.DaemonSet(uid) {
		x.Taint = kube.TaintFor(e.causeOf(order))
	}
	if killed {
		x.LastStart = e.o.Inventory.Running(uid).LastStart
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
		v.killed, v.killedAt, v.revived, v.ended, v.refused = now, max(now.UnixNano(), x.LastStart), false, false, time.Time{}
	}
	known := *v
	e.mu.Unlock()
	e.notify()
	e.catchUp(uid, killed)
	return known, nil
}

// catchUp takes what was reported of an eviction before it was known here: a fence that takes a second is
// no longer waited for (agent/act). The record of an eviction that is resumed may have the end of containers
// that an earlier run killed.
func (e *Evictions) catchUp(uid string, killed bool) {
	rec, _ := e.o.Records.Last(uid)
	switch {
	case !rec.LastGone.After(e.started):
	case rec.Result == evict.ResultPending:
		e.ended(uid)
	case killed:
		// All is reported. Run looks at the pod's cgroup.
		e.update(uid, func(v *eviction) { v.gaveUp = true })
	}
}

// causeOf returns the cause of an order, which a resumed one may have in its record only.
func (e *Evictions) causeOf(order *evict.Order) string {
	rec, _ := e.o.Records.Last(order.UID)
	return cmp.Or(order.Cause, rec.Cause)
}

// set sets the fence of a job's pod. It returns nil and an error if there is none, and a
// fence with an error if it is incomplete.
func (e *Evictions) set(job *act.Job, id string) (*podfence.Fence, error) {
	switch {
	case e.table == nil:
		return nil, errNoTable
	case e.o.Runtime() == unmeasured:
		return nil, errRuntime
	case e.o.Hierarchy.Version != cgroup.V2 && cmp.Or(job.OCIRuntime, measuredV1) != measuredV1:
		return nil, fmt.Errorf("no fence is set on cgroup v1 with the OCI runtime %s: its containers may start in spite of one", job.OCIRuntime)
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
	set, note := f.Set, ""
	if o, ok := e.o.Orders.Order(job.Order.UID); ok && o.Order.ID == id {
		if note = noteOf(&o, e.causeOf(&job.Order)); note == "" {
			e.o.Log.Warn("the order for a pod does not fit into the mark of its fence; a crash before it is saved would lose it", "uid", job.Order.UID)
		}
	}
	if job.Stopping {
		set = f.SetForking
	}
	err = set(id, note)
	for began := time.Now(); errors.Is(err, podfence.ErrBusy) && time.Since(began) < busyTimeout; err = set(id, note) {
		time.Sleep(time.Millisecond)
	}
	if err != nil && !errors.Is(err, podfence.ErrPartial) {
		return nil, err
	}
	return f, err
}

// busyTimeout is how long a fence is waited for that another goroutine sets or lifts: the kill of
// a pod while the runtime stops it. That takes some milliseconds.
const busyTimeout = time.Second
