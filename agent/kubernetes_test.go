package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/podfence"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// Saved facts are used at the next start, and saved again at its end. Those that can't be
// decoded are moved aside, with a warning.
func TestFactsAreKept(t *testing.T) {
	d := buildHere(t)
	d.close()
	d.closers = nil
	path := filepath.Join(d.options.StateDir, "facts.json")
	saved := `{"format":1,"pods":[{"uid":"u1","namespace":"default","name":"web","priority":7,"containers":[{"name":"c"}]}]}`
	for content, want := range map[string]int{saved: 1, `{"format":0}`: 0} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		again, err := build(d.options, d.log)
		if err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		again.facts.SaveChanges(ended, again.store, again.log.Logger)
		again.close()
		if got := again.facts.Status(time.Now()).Pods; got != want {
			t.Errorf("%d pods with facts from %s; want %d", got, content, want)
		}
		kept, err := os.ReadFile(path)
		if err != nil || strings.Contains(string(kept), `"uid":"u1"`) != (want == 1) {
			t.Errorf("saved again: %s, %v; want %d pods", kept, err, want)
		}
		_, err = os.Stat(path + ".corrupt")
		if warned := strings.Contains(strings.Join(again.startWarnings, ""), path); warned != (want == 0) || (err == nil) != (want == 0) {
			t.Errorf("warnings %q, moved aside: %v; want %d pods", again.startWarnings, err, want)
		}
		os.Remove(path + ".corrupt")
	}
}

// Without the right to create the socket for evictd-kube evictd runs, and the status shows
// the reason.
func TestNoSocketForEvictdKube(t *testing.T) {
	d := buildHere(t)
	d.options.KubeSocket = t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	g := group{cancel: cancel}
	d.startKube(ctx, &g)
	defer g.wait.Wait()
	defer cancel(nil)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if k := d.statusBackend.Status().Kubernetes; strings.Contains(k.Error, "is not a socket") {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("status %+v; want the reason why there is no socket", k)
		}
	}
	if err := context.Cause(ctx); err != nil {
		t.Errorf("evictd ended: %v", err)
	}
}

// A pod whose report is forbidden is exempt from the next list on, which comes at once.
func TestForbiddenReport(t *testing.T) {
	d := buildHere(t)
	ctx, cancel := context.WithCancel(t.Context())
	var g group
	g.run("inventory", func() error { return d.inventory.Run(ctx) })
	defer g.wait.Wait()
	defer cancel()
	for d.inventory.LastAttempt().IsZero() {
		time.Sleep(time.Millisecond)
	}
	listed := d.inventory.Changed()
	if d.facts.Forbidden == nil {
		t.Error("arrivals do not know of refused reports")
	}
	d.answered("u", kube.AnswerReported, time.Now())
	select {
	case <-listed:
		t.Error("a list after a report; want none")
	case <-time.After(200 * time.Millisecond):
	}
	d.answered("u", kube.AnswerForbidden, time.Now())
	select {
	case <-listed:
	case <-time.After(pods.ListInterval / 2):
		t.Error("no list after a refused report")
	}
}

// The loop has decided when its view is of the last list, and its mode is decided by known rights.
func TestDecided(t *testing.T) {
	d := buildHere(t)
	if ok, _ := d.decided(); ok {
		t.Error("decided before the first step")
	}
	if err := d.inventory.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	listed := d.inventory.LastAttempt()
	for _, tt := range []struct {
		listed, attempt time.Time
		rightsKnown     bool
		resuming, want  bool
	}{
		{time.Time{}, listed, true, false, false}, {listed, listed.Add(-time.Second), true, false, false},
		{listed, listed, false, false, false}, {listed, listed, true, true, false}, {listed, listed, true, false, true},
	} {
		d.lastView.Store(&loop.View{Mode: loop.Mode{DryRun: true, RightsKnown: tt.rightsKnown}, Resuming: tt.resuming, Snapshot: pods.Snapshot{Listed: tt.listed, LastAttempt: tt.attempt}})
		if ok, dryRun := d.decided(); ok != tt.want || !dryRun {
			t.Errorf("decided() of a view of the list at %v, %v, rights known %t, resuming %t = %t, %t; want %t in dry run", tt.listed, tt.attempt, tt.rightsKnown, tt.resuming, ok, dryRun, tt.want)
		}
	}
}

// A run continues with the orders to evictd-kube that the run before has saved, unless it is in
// dry run, and marks fences where the options say.
func TestOrdersAreSaved(t *testing.T) {
	d := buildHere(t)
	d.close()
	d.closers = nil
	dryRun, err := os.ReadFile(d.options.ConfigPath)
	if err != nil {
		t.Fatal(err)
	}
	start := func(config string) *daemon {
		if err := os.WriteFile(d.options.ConfigPath, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := build(d.options, d.log)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	enforce := strings.ReplaceAll(string(dryRun), "dryRun: true", "dryRun: false")
	first := start(enforce)
	report := execute.Report{Progress: act.Progress{UID: "u", Stage: act.Signalled, Reported: true, KubeletStops: true}}
	first.records.Restore([]evict.Record{{UID: "u", Pod: "default/p", Reason: evict.ReasonEvicted, Decided: time.Now()}})
	first.evictions.Report(report)
	first.lastView.Store(&loop.View{})
	if err := first.save(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(d.options.FenceFile); err != nil {
		t.Error(err)
	}
	first.close()
	for _, tt := range []struct {
		config string
		want   int
	}{{enforce, 1}, {string(dryRun), 0}} {
		again := start(tt.config)
		if o := again.statusBackend.Status().Kubernetes.Orders; o.Pending != tt.want {
			t.Errorf("%d orders are pending; want %d", o.Pending, tt.want)
		}
		again.close()
	}
}

// An evictd that has no evictd-kube, or can't start, lifts the fences of the run before.
func TestFencesAreReleased(t *testing.T) {
	d := buildHere(t)
	d.close()
	d.closers = nil
	fence := func() (limit string) {
		t.Helper()
		h := d.hierarchy
		root := h.Pids
		if h.Version == cgroup.V2 {
			root = h.Memory
		}
		at := kerneltest.Cgroup(t, root)
		for _, name := range []string{"kubepods", "podu", "ctr"} {
			if h.Version == cgroup.V2 {
				if err := kerneltest.EnableControllers(root.Path(at), "pids"); err != nil {
					t.Fatal(err)
				}
			}
			at = filepath.Join(at, name)
			kerneltest.MakeCgroup(t, root.Path(at))
		}
		table, _, err := podfence.Open(podfence.Options{File: d.options.FenceFile, BootID: d.bootID, Hierarchy: h})
		if err != nil {
			t.Fatal(err)
		}
		defer table.Close()
		f, err := table.Prepare("u", []string{at})
		if err == nil {
			err = f.Set("order", "")
		}
		if err != nil {
			t.Fatal(err)
		}
		return root.Path(filepath.Dir(at), "pids.max")
	}
	start := func(config string) (*daemon, error) {
		t.Helper()
		if err := os.WriteFile(d.options.ConfigPath, []byte("apiVersion: evictd.io/v1alpha1\nkind: AgentConfiguration\n"+config), 0o600); err != nil {
			t.Fatal(err)
		}
		return build(d.options, d.log)
	}
	want := func(file, limit string) {
		t.Helper()
		if got, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(got)) != limit {
			t.Errorf("pids.max is %q, %v; want %s", got, err, limit)
		}
	}
	file := fence()
	want(file, "0")
	again, err := start("runtimeEndpoint: none\ndryRun: true\n")
	if err != nil {
		t.Fatal(err)
	}
	again.close()
	want(file, "max")

	file = fence()
	if _, err := start("evictionHrad: {}\n"); err == nil {
		t.Fatal("evictd starts with a wrong configuration")
	}
	want(file, "0") // Run has the rest of that
	o := d.options
	o.Stderr = io.Discard
	if err := Run(t.Context(), o); !errors.Is(err, ErrConfig) {
		t.Errorf("Run = %v; want %v", err, ErrConfig)
	}
	want(file, "max")
}
