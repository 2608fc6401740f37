package status

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/disks"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/metrics"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/agent/state"
	"github.com/evictd/evictd/agent/systemd"
)

// brokenStore returns a Store that can't save.
func brokenStore(t *testing.T) *state.Store {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := state.OpenOrDegrade(filepath.Join(dir, "file", "state"), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// podUsage returns the disk usage of a pod as measured at a time.
func podUsage(uid string, at time.Time) map[string]disks.PodUsage {
	return map[string]disks.PodUsage{uid: {Known: true, Methods: []string{"walk"}, Oldest: at}}
}

// check returns the result of a readiness check.
func (n *node) check(t *testing.T, name string) (metrics.Result, string) {
	t.Helper()
	for _, c := range n.Checks() {
		if c.Name == name {
			return c.Run()
		}
	}
	t.Fatalf("no check %q", name)
	return 0, ""
}

// TestChecks checks each readiness check in the states of the node.
func TestChecks(t *testing.T) {
	const settings = "evictionHard: {memory.available: 1Gi}\n"
	for _, tt := range []struct {
		check  string
		change func(t *testing.T, n *node)
		want   metrics.Result
		detail string
	}{
		{"observation", func(*testing.T, *node) {}, metrics.Pass, "complete"},
		{"observation", func(_ *testing.T, n *node) { n.view = nil }, metrics.Fail, "the first observation is not complete yet"},
		{"observation", func(_ *testing.T, n *node) {
			n.view.Orders.Unreadable = []signal.Signal{signal.MemoryAvailable}
			n.view.Observations[signal.MemoryAvailable] = signal.Observation{Status: signal.Unreadable, Err: errors.New("I/O error")}
		}, metrics.Fail, "memory.available can't be read: I/O error"},
		{"runtime", func(*testing.T, *node) {}, metrics.Pass, "declared absent"},
		{"lanes", func(*testing.T, *node) {}, metrics.Pass, ""},
		{"lanes", func(_ *testing.T, n *node) {
			n.o.Lanes = lanes.NewSet(lanes.SetOptions{Poll: lanes.NewPoll(nil, 1, 0)})
			n.Backend = New(*n.o)
		}, metrics.Fail, "poll: no reading yet"},
		{"node", func(*testing.T, *node) {}, metrics.Pass, "is not shutting down"},
		{"node", func(_ *testing.T, n *node) {
			n.o.Shutdown.Restore(shutdown.State{Phase: shutdown.Stopping, Began: time.Now()})
		}, metrics.Fail, "node is shutting down"},
		{"eligible pods", func(*testing.T, *node) {}, metrics.Pass, "at least one"},
		{"eligible pods", func(_ *testing.T, n *node) { n.view.Snapshot.Pods = nil }, metrics.Warn, "no pod is eligible for eviction"},
		{"state", func(*testing.T, *node) {}, metrics.Pass, "kept in /var/lib/evictd"},
		{"state", func(t *testing.T, n *node) {
			n.o.Store = brokenStore(t)
			n.Backend = New(*n.o)
		}, metrics.Warn, "state is not saved"},
		{"mode", func(*testing.T, *node) {}, metrics.Pass, "enforcing"},
		{"mode", func(_ *testing.T, n *node) {
			n.view.Mode = loop.Mode{DryRun: true, Reasons: []string{"a kubelet", "the configuration"}}
		}, metrics.Warn, "dry run: a kubelet; the configuration"},
	} {
		n := newNode(t)
		n.step(t, settings, pod("web", 2*gib))
		tt.change(t, n)
		if got, detail := n.check(t, tt.check); got != tt.want || !strings.HasPrefix(detail, tt.detail) {
			t.Errorf("check %q = %v, %q; want %v, %q", tt.check, got, detail, tt.want, tt.detail)
		}
	}
}

// TestRuntimeCheck checks the state of a runtime that does not answer, and of one that does.
func TestRuntimeCheck(t *testing.T) {
	n := newNode(t)
	runtime := &fakeRuntime{err: errors.New("connection refused")}
	inventory := pods.New(pods.Options{Runtime: runtime, Hierarchy: n.o.Hierarchy, Procfs: "/proc"})
	t.Cleanup(func() { inventory.Close() })
	n.o.Inventory = inventory
	n.Backend = New(*n.o)
	if got, detail := n.check(t, "runtime"); got != metrics.Fail || detail != "not listed yet" {
		t.Errorf("before the first list: %v, %q; want %v", got, detail, metrics.Fail)
	}
	runtime.run(t, inventory, func() bool { return strings.Contains(inventory.Status().Error, "refused") })
	if got, detail := n.check(t, "runtime"); got != metrics.Fail || !strings.Contains(detail, "connection refused") {
		t.Errorf("without an answer: %v, %q; want %v and the error", got, detail, metrics.Fail)
	}
	runtime.err = nil
	runtime.run(t, inventory, func() bool { return inventory.Status().Connected })
	if got, detail := n.check(t, "runtime"); got != metrics.Pass || detail != "connected" {
		t.Errorf("with a list: %v, %q; want %v", got, detail, metrics.Pass)
	}
	if r := n.Status().Runtime; !r.Connected || r.Name != "fake" || r.Version != "1.2" || r.LastSync.IsZero() {
		t.Errorf("status of the runtime: %+v; want it connected, with its name and version", r)
	}
}

// TestReady checks that evictd logs once that it is ready, and warns that no pod is eligible.
func TestReady(t *testing.T) {
	notifier, err := systemd.NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	var lines bytes.Buffer
	var view atomic.Pointer[loop.View]
	o := NewObserver(ObserverOptions{
		Log: slog.New(slog.NewTextHandler(&lines, nil)), Metrics: metrics.New(metrics.Build{}, func() uint64 { return 0 }), Notifier: notifier,
		Beat: &metrics.Heartbeat{}, View: &view, Backend: n.Backend,
		Changed: func() {}, Listed: func(*pods.Snapshot) {}, Waiting: func() {}, RequestSave: func() {},
	})
	v := n.step(t, "evictionHard: {memory.available: 1Gi}\n")
	v.Observations[signal.MemoryAvailable].Status = signal.Unreadable
	if o.Stepped(v); strings.Contains(lines.String(), "msg=ready") {
		t.Errorf("ready without a reading of memory:\n%s", lines.String())
	}
	for range 2 {
		o.Stepped(n.step(t, "evictionHard: {memory.available: 1Gi}\n"))
	}
	for _, line := range []string{"msg=ready pods=0 eligible=0", `msg="no pod is eligible for eviction; pressure can't be relieved" pods=0`} {
		if got := strings.Count(lines.String(), line); got != 1 {
			t.Errorf("%d lines with %s; want 1:\n%s", got, line, lines.String())
		}
	}
}
