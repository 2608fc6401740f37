package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/nodefence"
)

// eventLog keeps the events that a user sees.
type eventLog struct {
	mu     sync.Mutex
	events []string // type, kind of the object, reason and note
}

// Eventf implements events.EventRecorder.
func (l *eventLog) Eventf(about, _ runtime.Object, kind, reason, _, note string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	object := "Node"
	if _, ok := about.(*nodefence.NodeFence); ok {
		object = "NodeFence"
	}
	l.events = append(l.events, fmt.Sprintf("%s %s %s: %s", kind, object, reason, fmt.Sprintf(note, args...)))
}

// since returns the events from a number on.
func (l *eventLog) since(from int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events[from:])
}

// The writes of a fence after which others change something, one in each phase.
const (
	inActing    = "Power-Management/Running "
	inProving   = "Power-Management/Running Proving"
	inOffProven = "Power-Management/Running OffProven"
	inReleasing = "Power-Management/Running Releasing"
	inReleased  = "Power-Management/Running Released"
	inReturning = "Power-Management/Done Released"
)

var moments = []string{inActing, inProving, inOffProven, inReleasing, inReleased, inReturning}

// inMiddle is what happens when others change something in the middle of a fence.
type inMiddle struct {
	name    string
	do      func(context.Context, *world, *reconciler) error
	moments []string
	// events follow the change, in this order, next to others: beginnings with type, object and reason, and a part of
	// the note behind "...".
	events []string
	result fence.Result
	// more says that the fence may act after the change; offs is how often the machine goes off, -1 for any number.
	more bool
	offs int
}

// middleChange returns the change of a name.
func middleChange(name string) func(context.Context, *world, *reconciler) error {
	return changes[slices.IndexFunc(changes, func(c change) bool { return c.name == name })].do
}

// deleteNode deletes the Node for good.
func deleteNode(ctx context.Context, w *world, _ *reconciler) error {
	w.mu.Lock()
	w.removed = true
	w.mu.Unlock()
	return w.api.Delete(ctx, getNode(w.t, w.api))
}

// TestChangeInEachPhase: what follows, and which events a user sees, when others delete or change an object in the
// middle of a fence.
func TestChangeInEachPhase(t *testing.T) {
	returns := []string{"Normal Node Recovered"}
	again := []string{"Warning Node FenceOpened", "Normal Node Releasing", "Normal Node Recovered"}
	repeated := []string{"Normal Node AttemptStarted", "Normal Node OffProven", "Normal Node Recovered"}
	lost := append([]string{"Warning Node ProofLost"}, repeated...)
	tests := []inMiddle{
		{"Node: deleted", deleteNode, moments, []string{"Warning NodeFence NodeGone...the Node object is gone"}, fence.NodeGone, false, -1},
		{"Node: replaced", middleChange("Node: replaced"), moments[:1],
			[]string{"Warning Node NodeGone...was replaced: its UID is uid-of-the-next"}, fence.NodeGone, false, 0},
		{"configuration: deleted", middleChange("configuration: deleted"), moments, returns, fence.Recovered, true, 1},
		{"configuration: another device", middleChange("configuration: another device"), moments, returns, fence.Recovered, true, 1},
		{"Secret: deleted", middleChange("Secret: deleted for some minutes"), []string{inActing},
			append([]string{"Warning Node ActNotSent...not found"}, repeated...), fence.Recovered, true, 1},
		{"Secret: deleted", middleChange("Secret: deleted for some minutes"), []string{inProving},
			append([]string{"Warning Node NotProven...not found"}, repeated...), fence.Recovered, true, 1},
		{"Secret: deleted", middleChange("Secret: deleted for some minutes"), []string{inReleased},
			[]string{"Warning Node ActNotSent...not found", "Normal Node Recovered"}, fence.Recovered, true, 1},
		{"NodeFence: deleted", middleChange("NodeFence: deleted"), moments[:5], again, fence.Recovered, true, 1},
		{"NodeFence: without intent", middleChange("NodeFence: without intent"), moments[:5], returns, fence.Recovered, true, 1},
		{"NodeFence: without proof", middleChange("NodeFence: without proof"), []string{inReleasing}, lost, fence.Recovered, true, 1},
		{"NodeFence: forged proof", middleChange("NodeFence: OffProven with a forged proof"), []string{inActing}, lost, fence.Recovered, true, 1},
		{"NodeFence: Releasing without proof", middleChange("NodeFence: Releasing without proof"), moments[:4], lost, fence.Recovered, true, 1},
		{"NodeFence: New", middleChange("NodeFence: New"), []string{inProving, inReleasing}, repeated, fence.Recovered, true, 1},
	}
	points := flow(t, scenarios()[0], 0).points
	for _, tt := range tests {
		for i, moment := range tt.moments {
			if testing.Short() && i%3 > 0 {
				continue
			}
			at := slices.Index(points, "after save "+moment)
			if at < 0 {
				t.Fatalf("the fence has no write %q", moment)
			}
			t.Run(tt.name+" in "+moment, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { tt.run(t, at) }) })
		}
	}
}

// run runs a fence with the change at a point.
func (m *inMiddle) run(t *testing.T, at int) {
	ctx, end := context.WithCancel(t.Context())
	w, base := scenarios()[0].begin(t)
	go w.run(ctx)
	log := &eventLog{}
	base.recorder = recorder{log}
	l := &life{killAt: at, yields: true}
	from, acts := 0, 0
	l.then = func() {
		w.mu.Lock()
		w.moved, acts = true, len(w.intents)
		w.mu.Unlock()
		from = len(log.since(0))
		if err := m.do(ctx, w, base); err != nil {
			t.Errorf("change: %v", err)
		}
	}
	live(ctx, t, w, l, base, 0)
	events := log.since(from)
	rest := events
	for _, want := range m.events {
		beginning, note, _ := strings.Cut(want, "...")
		i := slices.IndexFunc(rest, func(e string) bool { return strings.HasPrefix(e, beginning) && strings.Contains(e, note) })
		if i < 0 {
			t.Errorf("no event %q, or only before the one that it follows:\n%s", want, strings.Join(events, "\n"))
			break
		}
		rest = rest[i+1:]
	}
	w.mu.Lock()
	if w.fence == nil || w.fence.State.Result != m.result {
		t.Errorf("fence = %+v; want %s", w.fence, m.result)
	}
	if m.offs >= 0 && w.offs != m.offs {
		t.Errorf("off %d times; want %d", w.offs, m.offs)
	}
	if len(w.intents) > acts && !m.more {
		t.Errorf("acts %v; want none after the change, of which there were %d", w.intents, acts)
	}
	w.mu.Unlock()
	end()
	synctest.Wait()
	time.Sleep(10 * time.Minute)
}
