package reclaim

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/cri/critest"
)

// deadPods adds dead sandboxes to a node, each with one exited container unless
// empty is set.
func deadPods(n *node, count int, empty bool) {
	for i := range count {
		id := fmt.Sprintf("s%03d", i)
		n.sandboxes = append(n.sandboxes, cri.Sandbox{ID: id, Namespace: "ns", Name: "p" + id[1:], UID: "u" + id[1:], Created: start.Add(time.Duration(i) * time.Second)})
		if !empty {
			n.containers = append(n.containers, cri.Container{ID: "c" + id, SandboxID: id, Name: "main", State: cri.StateExited, Created: start})
		}
	}
}

var lowNode = evict.Reclaim{Kind: evict.ReclaimContainers, Signal: signal.NodeFsAvailable, Deficit: 150}

// A reclaim that brings nothing ends after settleTimeout or, where each removal
// might have brought something, after reclaimFor, however many dead pods there are.
func TestReclaimEndsInTime(t *testing.T) {
	for _, tt := range []struct {
		pods   int
		empty  bool
		within time.Duration
	}{
		{40, true, 2 * time.Second}, {500, true, 2 * time.Second}, {40, false, reclaimFor}, {500, false, reclaimFor},
	} {
		n := &node{available: 50}
		deadPods(n, tt.pods, tt.empty)
		run(t, n, Policy{}, nil, func(r *Reclaimer) {
			r.Order(lowNode)
			report := <-r.Done()
			if report.Took > tt.within+100*time.Millisecond || report.Error != "" {
				t.Errorf("%d dead pods, empty: %t: took %v, error %q; want at most %v", tt.pods, tt.empty, report.Took, report.Error, tt.within)
			}
			if tt.empty && len(report.Removed) != tt.pods {
				t.Errorf("%d empty dead pods: %d removed; want all", tt.pods, len(report.Removed))
			}
		})
	}
}

// A removal that hangs delays no other one, and is not waited for again. It is
// tried again later.
func TestReclaimGoesOnWhereRemovalsHang(t *testing.T) {
	n := &node{available: 50, holds: map[string]int64{"s019": 500}}
	deadPods(n, 20, false)
	n.hangs = map[string]bool{}
	for i := range 12 {
		n.hangs[fmt.Sprintf("s%03d", i)] = true
	}
	run(t, n, Policy{}, nil, func(r *Reclaimer) {
		r.Order(lowNode)
		report := <-r.Done()
		if report.Took > reclaimFor+100*time.Millisecond || report.Freed != 500 || !strings.Contains(report.Error, "has not answered") {
			t.Errorf("report %+v; want the 8 that do not hang removed within %v, and the others named", report, reclaimFor)
		}
		r.Order(lowNode)
		if report := <-r.Done(); report.Took > 2*time.Second {
			t.Errorf("the second reclaim took %v; want the hanging removals left alone", report.Took)
		}
		n.mu.Lock()
		n.hangs = nil
		n.mu.Unlock()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if left := n.left(); left != 0 {
			t.Errorf("%d sandboxes are left ten minutes after the runtime has recovered; want none", left)
		}
	})
}

// An evicted pod that can't be removed is waited for only as long as its space is
// needed.
func TestHangingEvictedPod(t *testing.T) {
	for _, tt := range []struct {
		others int64 // what they bring
		took   time.Duration
	}{{200, callPatience}, {0, reclaimFor}} {
		n := &node{available: 50, holds: map[string]int64{"s000": tt.others}, hangs: map[string]bool{"evicted": true}}
		deadPods(n, 1, false)
		n.sandboxes = append(n.sandboxes, cri.Sandbox{ID: "evicted", Name: "evicted", UID: "evicted", Created: start})
		run(t, n, Policy{}, nil, func(r *Reclaimer) {
			r.Evicted("evicted", Held{Amount: 500})
			r.Order(lowNode)
			if report := <-r.Done(); report.Took < tt.took || report.Took > tt.took+200*time.Millisecond || len(report.Removed) != 1 || report.Error == "" {
				t.Errorf("others bring %d: report %+v; want it after %v, with the other removed", tt.others, report, tt.took)
			}
		})
	}
}

// An order does not wait for the collection of images that goes on.
func TestOrderInterruptsCollection(t *testing.T) {
	n := &node{available: 150}
	images(n, "a", "b", "c")
	deadPods(n, 1, true)
	n.hangs = map[string]bool{"a": true, "b": true, "c": true}
	run(t, n, Policy{Images: On, High: 85, Low: 20}, nil, func(r *Reclaimer) {
		time.Sleep(checkEvery + time.Second) // the collection hangs by now
		ordered := time.Now()
		r.Order(lowNode)
		if report := <-r.Done(); time.Since(ordered) > 2*time.Second || len(report.Removed) != 1 {
			t.Errorf("report %+v after %v; want the dead sandbox removed at once", report, time.Since(ordered))
		}
	})
}

// The runtime, a real server, hangs over some sandboxes and images: the others go,
// and the order is answered.
func TestReclaimWithHangingRuntime(t *testing.T) {
	server := critest.Start(t)
	var ids []string
	for i := range 6 {
		pod := server.AddPod(critest.Pod{Name: fmt.Sprintf("p%d", i), NotReady: true, Created: time.Now().Add(time.Duration(i-60) * time.Minute)})
		ids = append(ids, pod.ID)
	}
	server.Break("RemovePodSandbox", critest.Fault{Hang: true, Times: 3})
	client, err := cri.Connect(server.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	r := New(Options{
		Runtime: client, Space: &node{available: 50},
		DryRun: func() bool { return false }, Kubelet: withKubelet(evict.Kubelet{Known: true}),
	}, Policy{Settle: 50 * time.Millisecond, High: 100})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	left := func() (n int) {
		for _, id := range ids {
			if _, exists := server.Ready(id); exists {
				n++
			}
		}
		return n
	}
	// On a busy machine a call that does not hang can take longer than callPatience, too:
	// then the next order finds it ended.
	for order := range 10 {
		r.Order(lowNode)
		if report := <-r.Done(); order == 0 && !strings.Contains(report.Error, "has not answered") {
			t.Errorf("report %+v; want it to say that the runtime has not answered", report)
		}
		if left() == 3 {
			break
		}
	}
	if n := left(); n != 3 {
		t.Errorf("%d sandboxes are left; want the three over which the runtime hangs", n)
	}
	r.Order(lowNode)
	<-r.Done()
	removals := map[string]int{}
	for _, c := range server.Calls() {
		if c.Method == "RemovePodSandbox" {
			removals[c.ID]++
		}
	}
	for _, id := range ids {
		if removals[id] != 1 {
			t.Errorf("%s was removed %d times; want once, although that hangs", id, removals[id])
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}
