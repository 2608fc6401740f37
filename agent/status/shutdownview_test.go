package status

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/shutdown/driver"
	"github.com/evictd/evictd/agent/signal"
)

// fakeRuntime is a runtime without pods.
type fakeRuntime struct{ err error }

func (r *fakeRuntime) Name() string { return "fake" }

func (r *fakeRuntime) List(context.Context) (pods.List, error) {
	return pods.List{Software: "fake", Version: "1.2"}, r.err
}

func (r *fakeRuntime) Watch(context.Context, func()) error { return pods.ErrUnwatchable }

// run runs an Inventory of the runtime until a condition is met.
func (r *fakeRuntime) run(t *testing.T, i *pods.Inventory, until func() bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { i.Run(ctx) })
	defer running.Wait()
	defer cancel()
	for deadline := time.Now().Add(20 * time.Second); !until(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no change of the inventory in 20s: %+v", i.Status())
		}
	}
}

// TestShutdownView checks what operators see of a node shutdown: before the first
// iteration, as a plan, and while it is in progress.
//
// Complexity: one check for each group of fields.
//
//gocyclo:ignore
func TestShutdownView(t *testing.T) {
	const settings = "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n"
	n := newNode(t)
	if s := n.Shutdown(); s.Phase != phaseIdle || !s.DryRun || !contains(s.Why, driver.ErrNotYet.Error()) || len(s.Groups) != 0 {
		t.Errorf("before the first iteration: %+v; want no plan, and why", s)
	}
	v := n.step(t, settings, pod("web", gib))
	if s := n.Shutdown(); s.Phase != phaseIdle || s.DryRun || len(s.Why) != 0 || len(s.Groups) != 2 || len(s.Groups[0].Pods) != 1 || s.Groups[0].Pods[0].Status != "planned" {
		t.Errorf("plan: %+v; want two groups, the first with the pod", s)
	}
	n.o.Shutdown.Restore(shutdown.State{
		Phase: shutdown.Stopping, Began: time.Now(), Manual: true, Schedule: v.Config.ShutdownSchedule(), Current: 1,
		Pods: []shutdown.PodState{
			{UID: "d", Pod: "default/log", Wave: 1, Status: shutdown.Asked}, {UID: "w", Pod: "default/web", Status: shutdown.Gone},
		},
	})
	s := n.Shutdown()
	if s.Phase != string(shutdown.Stopping) || !s.Manual || s.Current == nil || *s.Current != 1 || s.Stopped != 1 || s.Running != 1 {
		t.Errorf("in progress: %+v; want the second group, one pod stopped and one running", s)
	}
	if p := s.Groups[0].Pods; len(p) != 2 || p[0].Pod != "default/web" || p[1].Pod != "default/log" || !p[1].Last {
		t.Errorf("pods of the first group: %+v; want the second wave last", p)
	}
	if c := n.Status().Conditions; len(c) != 1 || c[0] != signal.NodeShutdown {
		t.Errorf("conditions %v; want %v", c, signal.NodeShutdown)
	}
}

// TestShutdownCommands checks that commands get the answer of the Driver, also when it
// has ended.
func TestShutdownCommands(t *testing.T) {
	n := newNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	go n.o.Shutdown.Run(ctx)
	if err := n.BeginShutdown(t.Context()); !errors.Is(err, driver.ErrNotYet) {
		t.Errorf("BeginShutdown() before the first iteration = %v; want %v", err, driver.ErrNotYet)
	}
	cancel()
	<-n.o.Shutdown.Done()
	if err := n.CancelShutdown(t.Context()); err == nil {
		t.Error("CancelShutdown() after the end = nil; want an error")
	}
}
