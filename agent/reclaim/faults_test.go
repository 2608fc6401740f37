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

// Nothing is concluded from a list that failed, and no order is left unanswered.
func TestFailures(t *testing.T) {
	n := &node{available: 50, fails: errors.New("boom")}
	images(n, "a")
	run(t, n, Policy{Images: On}, nil, func(r *Reclaimer) {
		for range 3 {
			r.Order(low)
			if report := <-r.Done(); report.Error != "boom" || n.did() != "" {
				t.Errorf("report %+v, removed %q; want boom", report, n.did())
			}
		}
		if got := len(r.Reports()); got != 1 {
			t.Errorf("%d reports of the same; want one", got)
		}
		unknown := low
		unknown.Signal = signal.PIDAvailable
		r.Order(unknown)
		if report := <-r.Done(); !strings.Contains(report.Note, "can't be read") {
			t.Errorf("report %+v", report)
		}
	})
	run(t, n, Policy{}, func(o *Options) { o.Runtime = nil }, func(r *Reclaimer) {
		r.Order(low)
		if report := <-r.Done(); !strings.Contains(report.Note, "no container runtime") {
			t.Errorf("report without a runtime %+v", report)
		}
	})
}

// A fault that lasts is logged when it begins and then every hour.
func TestLastingFaultIsLoggedHourly(t *testing.T) {
	n := &node{available: 50, fails: errors.New("boom")}
	var log strings.Builder
	run(t, n, Policy{Images: On}, func(o *Options) {
		o.Unmeasured = func(time.Time) string { return "pod a" }
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
	}, func(r *Reclaimer) {
		for began := time.Now(); time.Since(began) < 90*time.Minute; {
			r.Order(low)
			<-r.Done()
		}
	})
	for _, text := range []string{"boom", "not measured in time"} {
		if got := strings.Count(log.String(), text); got != 2 {
			t.Errorf("%q is logged %d times in 90 minutes; want 2", text, got)
		}
	}
}

// What was evicted is forgotten once its sandbox is gone, also where no reclaim
// follows.
func TestEvictedIsForgotten(t *testing.T) {
	n := &node{available: 900}
	n.sandboxes = []cri.Sandbox{{ID: "there", Ready: true, Created: start}}
	run(t, n, Policy{}, nil, func(r *Reclaimer) {
		for i := range 100 {
			r.Evicted(fmt.Sprintf("gone%d", i), Held{Amount: 1})
		}
		r.Evicted("there", Held{Amount: 1})
		time.Sleep(2 * lookEvery)
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if _, known := r.evicted["there"]; len(r.evicted) != 1 || !known {
			t.Errorf("%d evicted sandboxes are remembered; want the one that is there", len(r.evicted))
		}
	})
}

// What the decision loop calls does not wait for a list of images to be evaluated.
func TestLoopDoesNotWaitForImages(t *testing.T) {
	r := New(Options{}, Policy{})
	r.imagesMu.Lock() // as long as that takes
	defer r.imagesMu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Evicted("s", Held{})
		r.Spared("s")
		r.ImageBytes()
		r.Reports()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("a call of the loop waits for the images")
	}
}

// What would be removed in dry run, and stays, is reported once.
func TestDryRunReportsOnce(t *testing.T) {
	n := &node{available: 50}
	deadPods(n, 3, false)
	run(t, n, Policy{}, func(o *Options) { o.DryRun = func() bool { return true } }, func(r *Reclaimer) {
		for range 3 {
			r.Order(lowNode)
			<-r.Done()
		}
		n.mu.Lock()
		n.sandboxes = n.sandboxes[1:]
		n.mu.Unlock()
		r.Order(lowNode)
		<-r.Done()
		if got := r.Reports(); len(got) != 2 || len(got[0].Removed) != 3 || len(got[1].Removed) != 2 {
			t.Errorf("reports %+v; want one with three pods and one with two", got)
		}
	})
}

// Of a reclaim that evictd's end cuts off there is no report: what it freed is not known.
// Those before it are taken over by the next run, which adds to them.
func TestReportsOverRestart(t *testing.T) {
	n := &node{available: 50, holds: map[string]int64{"s000": 30, "s001": 500}}
	deadPods(n, 2, false)
	order := evict.Reclaim{Kind: evict.ReclaimContainers, Signal: signal.NodeFsAvailable, Deficit: 20}
	var before []evict.ReclaimReport
	var first *Reclaimer
	run(t, n, Policy{}, nil, func(r *Reclaimer) {
		r.Order(order)
		<-r.Done()
		first, before = r, r.Reports()
		if len(before) != 1 || before[0].Deficit != 20 || before[0].Freed != 30 || len(before[0].Removed) != 1 {
			t.Fatalf("reports %+v; want one, of 30 freed where 20 were missing", before)
		}
		n.mu.Lock()
		n.hangs = map[string]bool{"s001": true}
		n.mu.Unlock()
		r.Order(order)
		synctest.Wait()
		time.Sleep(time.Second) // it hangs
	})
	if diff := cmp.Diff(before, first.Reports()); diff != "" {
		t.Errorf("reports after the end in the middle of a reclaim (-before +after):\n%s", diff)
	}
	n.hangs = nil
	run(t, n, Policy{}, nil, func(r *Reclaimer) {
		r.RestoreReports(before)
		if diff := cmp.Diff(before, r.Reports()); diff != "" {
			t.Errorf("reports after the restart (-before +after):\n%s", diff)
		}
		r.Order(evict.Reclaim{Kind: evict.ReclaimContainers, Signal: signal.NodeFsAvailable, Deficit: 900})
		<-r.Done()
		if got := r.Reports(); len(got) != 2 || got[1].Freed != 500 || got[1].Deficit != 900 {
			t.Errorf("reports %+v; want another, of 500 freed where 900 were missing", got)
		}
	})
}
