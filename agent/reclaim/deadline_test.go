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

var containerOrder = evict.Reclaim{Kind: evict.ReclaimContainers, Signal: signal.NodeFsAvailable, Deficit: 150}

// A reclaim that frees nothing ends after settleTimeout or, if each removal might
// have freed something, after orderTimeout, however many dead pods there are.
func TestReclaimEndsInTime(t *testing.T) {
	for _, tt := range []struct {
		pods   int
		empty  bool
		within time.Duration
	}{
		{40, true, 2 * time.Second}, {500, true, 2 * time.Second}, {40, false, orderTimeout}, {500, false, orderTimeout},
	} {
		n := &node{available: 50}
		deadPods(n, tt.pods, tt.empty)
		run(t, n, Policy{}, nil, func(r *Reclaimer) {
			r.Start(containerOrder)
			report := <-r.Done()
			if report.Duration > tt.within+100*time.Millisecond || report.Error != "" {
				t.Errorf("%d dead pods, empty: %t: took %v, error %q; want at most %v", tt.pods, tt.empty, report.Duration, report.Error, tt.within)
			}
			if tt.empty && len(report.Removed) != tt.pods {
				t.Errorf("%d empty dead pods: %d removed; want all", tt.pods, len(report.Removed))
			}
		})
	}
}

// A removal that hangs does not delay others; it is retried later.
func TestHungRemovalsDoNotDelayOthers(t *testing.T) {
	n := &node{available: 50, sizes: map[string]int64{"s019": 500}}
	deadPods(n, 20, false)
	n.hungIDs = map[string]bool{}
	for i := range 12 {
		n.hungIDs[fmt.Sprintf("s%03d", i)] = true
	}
	run(t, n, Policy{}, nil, func(r *Reclaimer) {
		r.Start(containerOrder)
		report := <-r.Done()
		if report.Duration > orderTimeout+100*time.Millisecond || report.Freed != 500 || !strings.Contains(report.Error, "no answer in time") {
			t.Errorf("report %+v; want the 8 that do not hang removed within %v, and the others named", report, orderTimeout)
		}
		r.Start(containerOrder)
		if report := <-r.Done(); report.Duration > 2*time.Second {
			t.Errorf("the second reclaim took %v; want no wait for the hung removals", report.Duration)
		}
		n.mu.Lock()
		n.hungIDs = nil
		n.mu.Unlock()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if left := n.countSandboxes(); left != 0 {
			t.Errorf("%d sandboxes exist ten minutes after the runtime has recovered; want none", left)
		}
	})
}

// A reclaim waits for the removal of an evicted pod only while its space is needed.
func TestHungEvictedPod(t *testing.T) {
	for _, tt := range []struct {
		others int64 // bytes that the other pod frees
		took   time.Duration
	}{{200, callTimeout}, {0, orderTimeout}} {
		n := &node{available: 50, sizes: map[string]int64{"s000": tt.others}, hungIDs: map[string]bool{"evicted": true}}
		deadPods(n, 1, false)
		n.sandboxes = append(n.sandboxes, cri.Sandbox{ID: "evicted", Name: "evicted", UID: "evicted", Created: start})
		run(t, n, Policy{}, nil, func(r *Reclaimer) {
			r.Evicted("evicted", EvictedUsage{Amount: 500})
			r.Start(containerOrder)
			if report := <-r.Done(); report.Duration < tt.took || report.Duration > tt.took+200*time.Millisecond || len(report.Removed) != 1 || report.Error == "" {
				t.Errorf("other pod frees %d: report %+v; want it after %v, with the other pod removed", tt.others, report, tt.took)
			}
		})
	}
}

// An order interrupts a collection of images.
func TestOrderInterruptsCollection(t *testing.T) {
	n := &node{available: 150}
	images(n, "a", "b", "c")
	deadPods(n, 1, true)
	n.hungIDs = map[string]bool{"a": true, "b": true, "c": true}
	run(t, n, Policy{Images: On, High: 85, Low: 20}, nil, func(r *Reclaimer) {
		time.Sleep(signal.KubeletInterval + time.Second) // the collection hangs now
		ordered := time.Now()
		r.Start(containerOrder)
		if report := <-r.Done(); time.Since(ordered) > 2*time.Second || len(report.Removed) != 1 {
			t.Errorf("report %+v after %v; want the dead sandbox removed at once", report, time.Since(ordered))
		}
	})
}

// A real CRI server hangs when it removes some sandboxes: the others are removed,
// and the order is answered.
func TestReclaimWithHungRuntime(t *testing.T) {
	server := critest.Start(t)
	var ids []string
	for i := range 6 {
		pod := server.AddPod(critest.Pod{Name: fmt.Sprintf("p%d", i), NotReady: true, Created: time.Now().Add(time.Duration(i-60) * time.Minute)})
		ids = append(ids, pod.ID)
	}
	server.SetFault("RemovePodSandbox", critest.Fault{Hang: true, Times: 3})
	client, err := cri.Connect(server.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	r := New(Options{
		Runtime: client, Filesystems: &node{available: 50},
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
	// On a busy machine a call that does not hang can exceed callTimeout as well:
	// the next order then finds it completed.
	for order := range 10 {
		r.Start(containerOrder)
		if report := <-r.Done(); order == 0 && !strings.Contains(report.Error, "no answer in time") {
			t.Errorf("report %+v; want the missing answer of the runtime in it", report)
		}
		if left() == 3 {
			break
		}
	}
	if n := left(); n != 3 {
		t.Errorf("%d sandboxes exist; want the three whose removal hangs", n)
	}
	r.Start(containerOrder)
	<-r.Done()
	removals := map[string]int{}
	for _, c := range server.Calls() {
		if c.Method == "RemovePodSandbox" {
			removals[c.ID]++
		}
	}
	for _, id := range ids {
		if removals[id] != 1 {
			t.Errorf("RemovePodSandbox(%s) called %d times; want once, also if it hangs", id, removals[id])
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}
