package status

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/metrics"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/agent/systemd"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// TestStepped checks that each iteration of the loop is published, that changes are
// logged once, and that the state is saved when a restart needs it.
func TestStepped(t *testing.T) {
	notifier, err := systemd.NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	inventory := pods.New(pods.Options{Hierarchy: &cgroup.Hierarchy{Memory: kernel.FS(t.TempDir())}, Procfs: "/proc"})
	t.Cleanup(func() { inventory.Close() })
	var lines bytes.Buffer
	var view atomic.Pointer[loop.View]
	changed, listed, waiting, saves := 0, 0, 0, 0
	o := NewObserver(ObserverOptions{
		Log: slog.New(slog.NewTextHandler(&lines, nil)), Metrics: metrics.New(metrics.Build{}, func() uint64 { return 0 }), Notifier: notifier,
		Beat: &metrics.Heartbeat{}, View: &view, Backend: New(Options{Inventory: inventory, Records: &execute.Records{}, View: view.Load}),
		Changed: func() { changed++ }, Listed: func(*pods.Snapshot) { listed++ }, Waiting: func() { waiting++ }, RequestSave: func() { saves++ },
	})
	o.ready = true
	start := time.Unix(1000, 0)
	step := func(after time.Duration, change func(*loop.View)) {
		v := &loop.View{Time: start.Add(after), Policy: &evict.Policy{}}
		v.Snapshot.Listed = start
		if change != nil {
			change(v)
		}
		o.Stepped(v)
		if view.Load() != v {
			t.Errorf("the view after %v is not published", after)
		}
	}
	step(0, nil)
	step(time.Second, nil)
	if changed != 2 || listed != 1 || waiting != 0 || saves != 0 {
		t.Errorf("without pressure: %d views, %d lists, %d waiting, %d saves; want 2, 1, 0, 0", changed, listed, waiting, saves)
	}
	low := func(v *loop.View) {
		v.State.Timers = make([]evict.Timer, 1)
		v.Orders.Met = []signal.Signal{signal.MemoryAvailable}
		v.Orders.Conditions = []signal.Condition{signal.MemoryPressure}
		v.Orders.Futile = []evict.Futility{{Signal: signal.PIDAvailable}}
		v.Orders.Waiting = make([]evict.ThresholdKey, 1)
	}
	step(2*time.Second, low)
	step(3*time.Second, low)
	step(2*time.Second+saveInterval, low)
	if waiting != 3 || saves != 2 {
		t.Errorf("while a grace period runs: %d waiting, %d saves; want 3, and one save every %v", waiting, saves, saveInterval)
	}
	step(10*time.Second, func(v *loop.View) {
		v.Orders.Evict, v.State.Victims = make([]evict.Order, 1), make([]evict.Victim, 1)
		v.Orders.Revived, v.Orders.Stuck = []string{"u"}, []string{"w"}
	})
	if saves != 3 {
		t.Errorf("%d saves after an order; want one more", saves)
	}
	for _, line := range []string{
		`msg="node conditions changed" conditions=[MemoryPressure]`, `msg="no pod is eligible for eviction; the signal can't be relieved" signal=pid.available`,
		`msg="file cache caused the crossing of a memory threshold; no pod is evicted yet"`, `msg="evicted pod is running again" uid=u`,
		`msg="victim is stuck; its processes have not exited" uid=w`,
	} {
		if n := strings.Count(lines.String(), line); n != 1 {
			t.Errorf("%d lines with %s; want 1:\n%s", n, line, lines.String())
		}
	}
	v := &loop.View{}
	if o.Unchanged(v); view.Load() != v || changed != 6 {
		t.Errorf("an iteration without a step: published %t, ViewChanged called %d times; want true, 6", view.Load() == v, changed)
	}
}
