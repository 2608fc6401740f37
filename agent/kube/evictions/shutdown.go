package evictions

import (
	"errors"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/podfence"
)

// shutdownMark is what the mark of a fence has that belongs to no order.
const shutdownMark = "node.shutdown"

var errNoShutdown = errors.New("the node does not shut down any more: no fence is set")

// fenceForShutdown sets the fence of a pod that can't be reported and must not run again while the
// node shuts down. Run lifts it when the shutdown is canceled.
func (e *Evictions) fenceForShutdown(job *act.Job) error {
	if !e.o.ShuttingDown() {
		return errNoShutdown
	}
	uid := job.Order.UID
	e.beginSetting(uid)
	fence, err := e.set(job, shutdownMark)
	e.endShutdownSetting(uid, fence)
	if fence == nil {
		e.count(func(c *Status) { c.Failed++ })
		e.o.Log.Warn("pod could not be fenced in the shutdown of the node; its kubelet may start it again, and evictd then stops it again", "uid", uid, "error", err)
		return err
	}
	e.notify()
	return nil
}

// endShutdownSetting ends a call of Fence that has set a fence without an order, or none.
func (e *Evictions) endShutdownSetting(uid string, fence *podfence.Fence) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.setting[uid]--; e.setting[uid] == 0 {
		delete(e.setting, uid)
	}
	if fence != nil {
		e.shutdown[fence] = true
	}
}

// Answered implements [act.Fencer].
func (e *Evictions) Answered(uid string) (answered, waiting bool) {
	if !e.o.ShuttingDown() {
		return true, true // canceled: the pod goes on as in any eviction with a grace period
	}
	answer, pending := e.o.Orders.Answer(uid)
	if !pending || e.o.Orders.Forbidden(uid) {
		return false, false // also if the order could not be begun, or has been withdrawn
	}
	return wasReported(answer), e.o.Connected()
}

// liftAfterShutdown lifts the fences without an order if the node does not shut down any more.
func (e *Evictions) liftAfterShutdown() {
	if e.o.ShuttingDown() {
		return
	}
	var fences []*podfence.Fence
	e.mu.Lock()
	for f := range e.shutdown {
		if e.setting[f.UID()] > 0 {
			continue // it may be the fence of an eviction in a moment
		}
		delete(e.shutdown, f)
		// The pod may have been evicted since, and its order then has the same fence.
		if v := e.byUID[f.UID()]; v == nil || v.fence != f {
			fences = append(fences, f)
		}
	}
	e.mu.Unlock()
	for _, f := range fences {
		e.liftFence(f)
	}
	if len(fences) > 0 {
		e.o.Log.Info("fences lifted, because the shutdown of the node was canceled; kubelets start the pods again", "fences", len(fences))
	}
}

// goneInShutdown forgets the fence of a pod whose cgroup was removed.
func (e *Evictions) goneInShutdown(f *podfence.Fence) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.shutdown, f)
}
