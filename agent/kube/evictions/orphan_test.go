package evictions

import (
	"sync"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/podfence"
)

// An order may end while its fence is being set, as when the report is forbidden at once. The
// fence is lifted.
func TestForbiddenWhileFencing(t *testing.T) {
	n := newNode(t)
	n.evict(false)
	// A futile record lets the test keep the mutex of the records locked.
	n.execute.Evict(t.Context(), evict.Record{UID: "other", Futile: true, Result: evict.ResultPending}, *n.job())
	n.run()
	n.connect(kube.AnswerForbidden, 0)
	release, locked := make(chan struct{}), make(chan struct{})
	var once sync.Once
	n.saves = func() {
		once.Do(func() { // in begin, after the order has begun
			go n.records.EachFutile(func(*evict.Record) {
				select {
				case <-locked:
				default:
					close(locked)
					<-release
				}
			})
			<-locked
		})
	}
	done := make(chan error)
	go func() { done <- n.Fence(n.job()) }()
	n.until("the order has ended", func() bool { return n.orders.Forbidden(testUID) && !n.orders.Pending(testUID) })
	close(release)
	if err := <-done; err == nil {
		t.Error("Fence succeeded without an order")
	}
	n.wantFenced(false)
	if s := n.Status(); s.Set != 0 || n.checkNow() {
		t.Errorf("status = %+v; want no fence", s)
	}
}

// The fence is set between the beginning of a check and the end of the eviction in it.
func TestFenceSetInCheck(t *testing.T) {
	n := newNode(t)
	n.evict(false)
	job := n.job()
	v, err := n.begin(&job.Order, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	n.update(testUID, func(v *eviction) { v.void = "refused" })
	n.Evictions.mu.Lock()
	copied := *n.byUID[testUID]
	n.Evictions.mu.Unlock()
	f, err := n.set(job, v.id)
	if err != nil {
		t.Fatal(err)
	}
	n.update(testUID, func(v *eviction) { v.fence = f })
	n.follow(t.Context(), &copied, time.Now())
	n.wantFenced(false)
	n.wantStage("")
}

// A copy of an eviction does not end another one of the same pod, nor one that is just being
// fenced again.
func TestCopyOfAnotherEviction(t *testing.T) {
	for name, change := range map[string]func(*node, *eviction){
		"another order": func(_ *node, v *eviction) { v.id = "earlier" },
		"being fenced":  func(n *node, _ *eviction) { n.beginSetting(testUID) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.fence()
			n.Evictions.mu.Lock()
			copied := *n.byUID[testUID]
			n.Evictions.mu.Unlock()
			change(n, &copied)
			n.drop(&copied)
			n.end(&copied, "a test")
			n.wantFenced(true)
			n.wantStage(kube.StageKilled)
		})
	}
}

// A fence that belongs to no eviction is counted, and lifted in the first check that finds it
// after checkInterval: until then it may just be being lifted.
func TestOrphan(t *testing.T) {
	n := newNode(t)
	n.fence()
	n.Evictions.mu.Lock()
	delete(n.byUID, testUID)
	n.Evictions.mu.Unlock()
	if s := n.Status(); s.Set != 1 || !n.checkNow() {
		t.Errorf("status = %+v; want the fence counted and checked", s)
	}
	n.checkNow()
	n.wantFenced(true)
	n.check(t.Context(), time.Now().Add(checkInterval))
	n.wantFenced(false)
	if s := n.Status(); s.Set != 0 || n.checkNow() {
		t.Errorf("status = %+v; want no fence", s)
	}
}

// A removed cgroup ends the eviction only if it had that eviction's fence.
func TestOwns(t *testing.T) {
	n := newNode(t)
	n.fence()
	own := n.byUID[testUID].fence
	if !n.owns(own) || n.owns(&podfence.Fence{}) {
		t.Error("want the eviction's own fence to be its only one")
	}
	n.update(testUID, func(v *eviction) { v.fence = &podfence.Fence{} })
	if n.owns(own) {
		t.Error("the earlier fence of the pod is taken for that of its eviction")
	}
	n.update(testUID, func(v *eviction) { v.fence = nil })
	if !n.owns(own) {
		t.Error("a fence of the pod is not its eviction's")
	}
	n.beginSetting(testUID)
	if n.owns(own) {
		t.Error("the earlier fence of the pod is taken for the one that is just being set")
	}
}

// A fence that was lifted before its eviction had it is no fence: the eviction goes on without one.
func TestFenceLiftedBefore(t *testing.T) {
	n := newNode(t)
	n.evict(false)
	n.fence()
	n.Evictions.mu.Lock()
	f := n.byUID[testUID].fence
	n.Evictions.mu.Unlock()
	if err := f.Lift(); err != nil {
		t.Fatal(err)
	}
	n.checkNow()
	n.removePod()
	if n.checkNow(); n.checkNow() {
		t.Errorf("the pod is followed after its end\n%s", n.log)
	}
}
