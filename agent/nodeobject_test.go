package agent

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/shutdown/driver"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/agent/state"
)

// nodePeer is an evictd-kube that maintains the Node object.
type nodePeer struct {
	feed   *kube.Feed
	states chan *kube.NodeState
	marks  chan *kube.NodeMarks
}

func (p *nodePeer) SetMarks(m *kube.NodeMarks) {
	if m != nil {
		p.marks <- m
	}
}

func (p *nodePeer) SetNode(s *kube.NodeState) {
	p.feed.ReportNode(&kube.NodeReport{Number: s.Number})
	p.states <- s
}

// connectNode connects a nodePeer with a daemon.
func connectNode(t *testing.T, d *daemon) *nodePeer {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "kube.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &kube.Server{UID: os.Getuid(), Facts: d.facts, Orders: d.orders, Node: d.node, Marks: d.marks, Changed: func() {}, Log: d.log.Logger}
	p := &nodePeer{feed: kube.NewFeed("n1", "test", d.log.Logger), states: make(chan *kube.NodeState, 10), marks: make(chan *kube.NodeMarks, 10)}
	p.feed.Node, p.feed.Marks = p, p
	p.feed.CannotReport("")
	p.feed.Replace(nil)
	p.feed.Confirm(time.Now())
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { server.Serve(ctx, l) })
	running.Go(func() { p.feed.Run(ctx, socket) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return p
}

// next returns the types of the true conditions of the next state; "none" without conditions.
func (p *nodePeer) next(t *testing.T) string {
	t.Helper()
	select {
	case s := <-p.states:
		var list []string
		for _, c := range s.Conditions {
			if c.Status {
				list = append(list, c.Type)
			}
		}
		if len(s.Conditions) == 0 {
			return "none"
		}
		return strings.Join(list, " ")
	case <-time.After(20 * time.Second):
		t.Fatal("no state within 20 s")
		return ""
	}
}

func (p *nodePeer) quiet(t *testing.T, when string) {
	t.Helper()
	time.Sleep(50 * time.Millisecond)
	select {
	case s := <-p.states:
		t.Errorf("%s: state %+v; want none", when, s)
	default:
	}
}

// The condition of a kill by the hot path is sent in the iteration that notes the kill. The Node is
// left as it is until the mode is known. A clean stop removes all conditions but that of a node
// shutdown.
func TestNodeObject(t *testing.T) {
	d := buildHere(t)
	v := &loop.View{Time: time.Now(), Config: d.config, Policy: &evict.Policy{}}
	v.Snapshot.Listed = time.Now()
	step := func() { d.lastView.Store(v); d.viewChanged() }
	step()
	if d.node.Status().Decided {
		t.Error("evictd has decided before evictd-kube's rights are known")
	}
	p := connectNode(t, d)
	for deadline := time.Now().Add(20 * time.Second); !d.facts.CanReportKnown(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("evictd-kube's rights are not known after 20 s")
		}
	}
	step()
	if d.node.Status().Decided {
		t.Error("evictd has decided with a mode from before the rights were known")
	}
	v.Mode.RightsKnown = d.modeFacts(d.hierarchy)(d.config).RightsKnown
	v.Snapshot.Listed = time.Time{}
	step()
	p.quiet(t, "before the first list")
	v.Snapshot.Listed = time.Now()
	step()
	if got := p.next(t); got != "" {
		t.Errorf("first state: %q is true; want none", got)
	}

	threshold := evict.Threshold{Threshold: signal.Threshold{Signal: signal.MemoryAvailable}}
	pod := evict.Pod{UID: "u", Namespace: "default", Name: "p"}
	killed := time.Now()
	v.State, v.Orders = evict.Step(evict.State{}, evict.Inputs{
		Policy: &evict.Policy{Thresholds: []evict.Threshold{threshold}, TransitionPeriod: time.Minute}, Pods: []evict.Pod{pod},
		HotKills: []evict.HotKill{{Pod: &pod, Threshold: threshold, Time: killed}},
	}, killed)
	if !slices.Contains(v.Orders.Conditions, signal.MemoryPressure) {
		t.Fatalf("conditions %q of the step; want MemoryPressure", v.Orders.Conditions)
	}
	step()
	if got := p.next(t); got != "EvictdMemoryPressure" {
		t.Errorf("state after the kill: %q is true; want EvictdMemoryPressure", got)
	}
	t.Logf("%v from the kill to the state in evictd-kube", time.Since(killed))

	underWay := shutdown.State{Phase: shutdown.Stopping, Manual: true, Began: time.Now()}
	d.restore(&savedState{Saved: state.Saved{Shutdown: underWay}})
	if got := p.next(t); got != "EvictdMemoryPressure EvictdNodeShutdown" {
		t.Errorf("state in a shutdown of an earlier run: %q is true; want both", got)
	}
	ctx, stop := context.WithCancel(t.Context())
	go d.shutdown.Run(ctx)
	err := driver.ErrNotYet
	for deadline := time.Now().Add(20 * time.Second); errors.Is(err, driver.ErrNotYet) && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		// Run has not resumed the shutdown yet.
		err = d.statusBackend.CancelShutdown(t.Context())
	}
	if err != nil {
		t.Error(err)
	}
	if got := p.next(t); got != "EvictdMemoryPressure" {
		t.Errorf("state when the shutdown is canceled: %q is true; want EvictdMemoryPressure", got)
	}
	stop()
	<-d.shutdown.Done()
	d.shutdown.Restore(underWay)
	d.noteShutdown()
	if got := p.next(t); got != "EvictdMemoryPressure EvictdNodeShutdown" {
		t.Errorf("state in a shutdown: %q is true; want both", got)
	}
	began := time.Now()
	d.stopKube()
	if got := p.next(t); got != "EvictdNodeShutdown" {
		t.Errorf("state at the stop: %q is true; want the shutdown", got)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the stop took %v with an evictd-kube that answers", took)
	}
	d.shutdown.Restore(shutdown.State{})
	d.noteShutdown()
	if got := p.next(t); got != "none" {
		t.Errorf("state after the shutdown: %q is true; want no conditions", got)
	}
}
