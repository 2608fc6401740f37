package agent

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri"
)

// slowSource lists nobody, and not before it is told to.
type slowSource struct{ asked, answer chan struct{} }

func (slowSource) Name() string                        { return "slow" }
func (slowSource) Watch(context.Context, func()) error { return pods.ErrUnwatchable }
func (s slowSource) List(ctx context.Context) (pods.List, error) {
	for _, c := range []chan struct{}{s.asked, s.answer} {
		select {
		case <-ctx.Done():
		case c <- struct{}{}:
		}
	}
	return pods.List{}, ctx.Err()
}

// A list that was asked for before somebody was found to be missing may lack them: it
// is the next that is waited for.
func TestAwaitListIsAskedForSince(t *testing.T) {
	d := buildHere(t)
	l, source := d.loop, slowSource{make(chan struct{}), make(chan struct{})}
	l.inventory = pods.New(pods.Options{Hierarchy: d.board.hierarchy, Procfs: "/proc", Sources: []pods.Source{source}})
	t.Cleanup(func() { l.inventory.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	run := make(chan error, 1)
	go func() { run <- l.inventory.Run(ctx) }()
	defer func() {
		cancel()
		<-run
	}()
	<-source.asked
	came := make(chan bool, 1)
	go func() { came <- l.awaitList(ctx, []evict.Order{{Cause: signal.MemoryAvailable.String()}}) }()
	time.Sleep(10 * time.Millisecond) // until it waits; without that the test finds nothing
	<-source.answer
	<-source.asked
	select {
	case inTime := <-came:
		if inTime {
			t.Error("awaitList() took a list that was asked for before for one that tells")
		}
	case <-time.After(20 * time.Millisecond):
		<-source.answer
	}
}

// A kill waits for a list for 100 ms, and for a second while half of what the threshold
// keeps back is left; memory that falls fast is noticed before the rest of it is gone.
func TestListWait(t *testing.T) {
	const perSecond = 3 << 30
	for _, tc := range []struct {
		name                       string
		threshold, available, rate float64 // in bytes
		least, most                time.Duration
		share                      float64 // that is left in the end, at least
	}{
		{"a hog, the kubelet's threshold", 100 << 20, 95 << 20, perSecond, 10 * time.Millisecond, 20 * time.Millisecond, 0.4},
		{"a hog, a large threshold", 1 << 30, 1 << 30, perSecond, 100 * time.Millisecond, 200 * time.Millisecond, 0.45},
		{"a hog, seen late", 100 << 20, 45 << 20, perSecond, time.Millisecond, 5 * time.Millisecond, 0.3},
		{"less than half, and not less and less", 100 << 20, 45 << 20, 0, 100 * time.Millisecond, 120 * time.Millisecond, 0.45},
		{"a slow leak", 100 << 20, 95 << 20, 10 << 20, time.Second, 1020 * time.Millisecond, 0.8},
		{"nothing can be read", 100 << 20, 0, 0, 100 * time.Millisecond, 120 * time.Millisecond, 0},
	} {
		began := time.Now()
		w, now, looks := listWait{began: began}, began, 0
		left := func() float64 { return max(0, tc.available-tc.rate*now.Sub(began).Seconds()) / tc.threshold }
		for {
			wait, goOn := w.look(left(), tc.available > 0, now)
			if !goOn {
				break
			}
			if wait < leastLook || wait > settling {
				t.Fatalf("%s: look() = %v; want %v to %v", tc.name, wait, leastLook, settling)
			}
			looks++
			now = now.Add(wait)
		}
		if waited := now.Sub(began); waited < tc.least || waited > tc.most || left() < tc.share || looks > 150 {
			t.Errorf("%s: waited for %v with %d looks, a share of %.2f is left; want %v to %v, %.2f or more", tc.name, waited, looks, left(), tc.least, tc.most, tc.share)
		}
	}
}

// Nobody is chosen for a disk before a list was asked for since the disk was low.
func TestUnmeasuredWithoutAList(t *testing.T) {
	d := buildHere(t)
	since := time.Now()
	unmeasured := d.unmeasured()
	if got := unmeasured(since); got != "" {
		t.Errorf("without a runtime %q is missing; want nothing", got)
	}
	runtime, err := cri.Connect("unix://" + filepath.Join(t.TempDir(), "nobody.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { runtime.Close() })
	d.runtime = runtime
	if got := unmeasured(since); got != "a list of the pods" {
		t.Errorf("before any list %q is missing; want a list", got)
	}
	s := pods.Snapshot{Tried: since.Add(-1)}
	d.loop.usage.fill(&s, nil, since)
	if got := unmeasured(since); got != "a list of the pods" {
		t.Errorf("with an older list %q is missing; want a list", got)
	}
	s.Tried = since
	d.loop.usage.fill(&s, nil, since)
	if got := unmeasured(since); got != "" {
		t.Errorf("with a list asked for since %q is missing; want nothing", got)
	}
}
