package reclaim

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri"
)

// A failed list removes nothing, and every order gets a report.
func TestFailures(t *testing.T) {
	n := &node{available: 50, listErr: errors.New("boom")}
	images(n, "a")
	run(t, n, Policy{Images: On}, nil, func(r *Reclaimer) {
		for range 3 {
			r.Start(imageOrder)
			if report := <-r.Done(); report.Error != "boom" || n.removals() != "" {
				t.Errorf("report %+v, removed %q; want boom", report, n.removals())
			}
		}
		if got := len(r.Reports()); got != 1 {
			t.Errorf("%d equal reports; want one", got)
		}
		unknown := imageOrder
		unknown.Signal = signal.PIDAvailable
		r.Start(unknown)
		if report := <-r.Done(); !strings.Contains(report.Note, "can't be read") {
			t.Errorf("report %+v", report)
		}
	})
	run(t, n, Policy{}, func(o *Options) { o.Runtime = nil }, func(r *Reclaimer) {
		r.Start(imageOrder)
		if report := <-r.Done(); !strings.Contains(report.Note, "no container runtime") {
			t.Errorf("report without a runtime %+v", report)
		}
	})
}

// A lasting error is logged at first and then every hour.
func TestLastingErrorLoggedHourly(t *testing.T) {
	n := &node{available: 50, listErr: errors.New("boom")}
	var log strings.Builder
	run(t, n, Policy{Images: On}, func(o *Options) {
		o.Unmeasured = func(time.Time) string { return "pod a" }
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
	}, func(r *Reclaimer) {
		for began := time.Now(); time.Since(began) < 90*time.Minute; {
			r.Start(imageOrder)
			<-r.Done()
		}
	})
	for _, text := range []string{"boom", "not measured in time"} {
		if got := strings.Count(log.String(), text); got != 2 {
			t.Errorf("%q logged %d times in 90 minutes; want 2", text, got)
		}
	}
}

// The records of evicted sandboxes that no longer exist are deleted, also without a
// further reclaim.
func TestEvictedPruned(t *testing.T) {
	n := &node{available: 900}
	n.sandboxes = []cri.Sandbox{{ID: "remaining", Ready: true, Created: start}}
	run(t, n, Policy{}, nil, func(r *Reclaimer) {
		for i := range 100 {
			r.Evicted(fmt.Sprintf("gone%d", i), EvictedUsage{Amount: 1})
		}
		r.Evicted("remaining", EvictedUsage{Amount: 1})
		time.Sleep(2 * imageInterval)
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if _, known := r.evicted["remaining"]; len(r.evicted) != 1 || !known {
			t.Errorf("%d evicted sandboxes are recorded; want the one that exists", len(r.evicted))
		}
	})
}

// Methods that the decision loop calls do not wait while a list of images is
// evaluated.
func TestLoopDoesNotWaitForImages(t *testing.T) {
	r := New(Options{}, Policy{})
	r.imagesMu.Lock() // as while a list is evaluated
	defer r.imagesMu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Evicted("s", EvictedUsage{})
		r.NotEvicted("s")
		r.ExclusiveImageBytes()
		r.Reports()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("a method of the loop waits for imagesMu")
	}
}

// In dry run the same objects are reported once.
func TestDryRunReportedOnce(t *testing.T) {
	n := &node{available: 50}
	deadPods(n, 3, false)
	run(t, n, Policy{}, func(o *Options) { o.DryRun = func() bool { return true } }, func(r *Reclaimer) {
		for range 3 {
			r.Start(containerOrder)
			<-r.Done()
		}
		n.mu.Lock()
		n.sandboxes = n.sandboxes[1:]
		n.mu.Unlock()
		r.Start(containerOrder)
		<-r.Done()
		if got := r.Reports(); len(got) != 2 || len(got[0].Removed) != 3 || len(got[1].Removed) != 2 {
			t.Errorf("reports %+v; want one with three pods and one with two", got)
		}
	})
}

// A reclaim that is interrupted by the end of evictd has no report, because the
// freed space is unknown. The next run restores the earlier reports and adds to
// them.
func TestReportsOverRestart(t *testing.T) {
	n := &node{available: 50, sizes: map[string]int64{"s000": 30, "s001": 500}}
	deadPods(n, 2, false)
	order := evict.Reclaim{Kind: evict.ReclaimContainers, Signal: signal.NodeFsAvailable, Deficit: 20}
	var before []evict.ReclaimReport
	var first *Reclaimer
	run(t, n, Policy{}, nil, func(r *Reclaimer) {
		r.Start(order)
		<-r.Done()
		first, before = r, r.Reports()
		if len(before) != 1 || before[0].Deficit != 20 || before[0].Freed != 30 || len(before[0].Removed) != 1 {
			t.Fatalf("reports %+v; want one with a deficit of 20 and 30 freed", before)
		}
		n.mu.Lock()
		n.hungIDs = map[string]bool{"s001": true}
		n.mu.Unlock()
		r.Start(order)
		synctest.Wait()
		time.Sleep(time.Second) // the call hangs
	})
	if diff := cmp.Diff(before, first.Reports()); diff != "" {
		t.Errorf("reports after an interrupted reclaim (-before +after):\n%s", diff)
	}
	n.hungIDs = nil
	run(t, n, Policy{}, nil, func(r *Reclaimer) {
		r.RestoreReports(before)
		if diff := cmp.Diff(before, r.Reports()); diff != "" {
			t.Errorf("reports after the restart (-before +after):\n%s", diff)
		}
		r.Start(evict.Reclaim{Kind: evict.ReclaimContainers, Signal: signal.NodeFsAvailable, Deficit: 900})
		<-r.Done()
		if got := r.Reports(); len(got) != 2 || got[1].Freed != 500 || got[1].Deficit != 900 {
			t.Errorf("reports %+v; want another with a deficit of 900 and 500 freed", got)
		}
	})
}
