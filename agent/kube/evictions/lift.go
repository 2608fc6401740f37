package evictions

import (
	"context"
	"time"

	"github.com/evictd/evictd/agent/podfence"
)

// Lift releases the fence of a pod whose order ends although the pod's cgroup exists. The caller
// logs why. The condition DisruptionTarget of such a pod is left to the disruption controller, which
// sets it to False after two minutes (pkg/controller/disruption/disruption.go:
// syncStalePodDisruption). The admission policy lets evictd-kube only set it to True.
func (e *Evictions) Lift(uid, _ string) {
	e.mu.Lock()
	v := e.byUID[uid]
	delete(e.byUID, uid)
	e.mu.Unlock()
	if v != nil && v.fence != nil {
		e.release(v.fence, v.id)
	}
}

// release lifts the fence of a pod whose order has ended. While the node shuts down it keeps the
// fence, without an order: the pod would run again until evictd stops it a second time. Run lifts
// it when the shutdown is canceled.
func (e *Evictions) release(f *podfence.Fence, order string) {
	if !e.o.ShuttingDown() {
		e.liftFence(f)
		return
	}
	e.disown(f, order)
	e.mu.Lock()
	e.shutdown[f] = true
	e.mu.Unlock()
	e.notify() // the shutdown may have been canceled by now
}

// disown removes an order that has ended from the mark of a fence that stays.
func (e *Evictions) disown(f *podfence.Fence, order string) {
	if err := f.Disown(order); err != nil {
		e.o.Log.Error("the mark of a fence still has an order that has ended; the next evictd might go on with it", "uid", f.UID(), "order", order, "error", err)
	}
}

// drop removes an eviction whose order has ended and releases its fence, if it has one. v is a
// copy: nothing is done if the pod has another order by now, or is just being fenced.
func (e *Evictions) drop(v *eviction) {
	if live := e.remove(v); live != nil && live.fence != nil {
		e.release(live.fence, live.id)
	}
}

// remove removes the eviction that v is a copy of and returns it; nil if it goes on, because the
// pod was killed again since.
func (e *Evictions) remove(v *eviction) *eviction {
	e.mu.Lock()
	defer e.mu.Unlock()
	live := e.byUID[v.uid]
	if live == nil || live.id != v.id || live.void != v.void || e.setting[v.uid] > 0 {
		return nil
	}
	delete(e.byUID, v.uid)
	return live
}

func (e *Evictions) liftFence(f *podfence.Fence) {
	e.mu.Lock()
	delete(e.shutdown, f) // it is lifted once
	e.mu.Unlock()
	if err := f.Lift(); err != nil {
		e.o.Log.Error("could not lift the fence of the pod; its containers can't start until it is lifted, trying again", "uid", f.UID(), "cgroup", f.Path(), "error", err)
		e.mu.Lock()
		e.unlifted = append(e.unlifted, f)
		e.mu.Unlock()
		e.notify()
		return
	}
	e.count(func(c *Status) { c.Lifted++ })
}

// end withdraws the order of an eviction and releases the fence. v is a copy, as of drop.
func (e *Evictions) end(v *eviction, why string) {
	live := e.remove(v)
	if live == nil {
		return // Run looks at it again
	}
	e.o.Orders.Refused(live.uid, why)
	if live.fence != nil {
		e.release(live.fence, live.id)
	}
}

// StopTimeout is how long a clean stop waits for answers: half of TimeoutStopSec= of the unit.
const StopTimeout = 5 * time.Second

// Stop ends all evictions: it waits for answers if evictd-kube is connected, withdraws the
// orders and lifts all fences. While the node shuts down the fences stay: they end with the node,
// or the next evictd goes on with the shutdown. Fence fails from then on. Run must run until Stop
// returns.
func (e *Evictions) Stop() {
	e.stopping.Store(true)
	e.notify() // the actuator's jobs have ended: Run finds the end of the pods
	timeout := e.stopTimeout
	if !e.o.Connected() {
		timeout = 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	e.o.Orders.Stop(ctx)
	e.fencing.Lock()
	e.stopped = true
	e.fencing.Unlock()
	if e.table == nil {
		return
	}
	if e.o.ShuttingDown() {
		if err := e.table.DisownAll(); err != nil {
			e.o.Log.Error("marks of fences still have orders that are withdrawn; the next evictd goes on with them", "error", err)
		}
		return
	}
	lifted, err := e.table.LiftAll()
	if err != nil {
		e.o.Log.Error("not all fences were lifted; evictd --release-fences lifts them", "error", err)
	}
	if lifted > 0 {
		e.o.Log.Info("fences lifted, because evictd stops; kubelets may start pods again that were not reported", "fences", lifted)
	}
}
