package agent

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/signal"
)

func TestCollectorTurn(t *testing.T) {
	const mi = 1 << 20
	for _, tt := range []struct {
		name          string
		objects, live uint64
		mood          mood
		want          int
	}{
		{"little garbage", 9 * mi, 8 * mi, atEase, 0},
		{"half as much as lives", 12 * mi, 8 * mi, atEase, 1},
		{"half as much as lives, near a threshold", 12 * mi, 8 * mi, near, 0},
		{"a lot, near a threshold", 16 * mi, 8 * mi, near, 1},
		{"half as much as lives of a lot, near a threshold", 29 * mi, 20 * mi, near, 0},
		{"a lot, and something is low", 40 * mi, 8 * mi, busy, 0},
		{"a small heap", mi + mi/2, mi / 2, atEase, 1},
		{"a small heap with too little", mi, mi / 2, atEase, 0},
		{"never collected", 2 * mi, 0, atEase, 1},
	} {
		collected := 0
		c := collector{
			sizes: func() (uint64, uint64) { return tt.objects, tt.live }, mood: func() mood { return tt.mood },
			collect: func() { collected++ },
		}
		if c.turn(); collected != tt.want {
			t.Errorf("%s: turn() with %d of %d bytes alive collected %d times; want %d", tt.name, tt.live, tt.objects, collected, tt.want)
		}
	}
}

var kept []byte

// The figures are the runtime's own: after garbage there is something to collect, and then there is not.
func TestCollectorHere(t *testing.T) {
	collected := 0
	c := collector{sizes: heapSizes(), mood: func() mood { return atEase }, collect: func() { collected++; runtime.GC() }}
	percent := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	runtime.GC()
	if c.turn(); collected != 0 {
		t.Errorf("collected %d times right after a collection; want 0", collected)
	}
	_, live := c.sizes()
	for range 4 {
		kept = make([]byte, max(live, 1<<20)) // each but the last is garbage
	}
	kept = nil
	if c.turn(); collected != 1 {
		t.Errorf("collected %d times with garbage; want once", collected)
	}
	if c.turn(); collected != 1 {
		t.Errorf("collected %d times after that; want no more", collected)
	}
}

func TestMood(t *testing.T) {
	const gi = 1 << 30
	hard := signal.Threshold{Signal: signal.MemoryAvailable, Value: signal.Value{}}
	view := func(available int64, victims ...evict.Victim) *loop.View {
		v := &loop.View{Time: time.Now(), Policy: &evict.Policy{Thresholds: []evict.Threshold{{Threshold: hard}}}}
		v.Observations[signal.MemoryAvailable] = signal.Observation{Status: signal.Observed, Capacity: 16 * gi, Available: available}
		v.State.Victims = victims
		return v
	}
	low := view(8 * gi)
	low.Orders.Met = []signal.Signal{signal.MemoryAvailable}
	for _, tt := range []struct {
		name string
		view *loop.View
		want mood
	}{
		{"before the first turn", nil, busy},
		{"plenty", view(8 * gi), atEase},
		{"near the threshold", view(gi / 2), near},
		{"low", low, busy},
		{"a victim on its way", view(8*gi, evict.Victim{Status: evict.Unsettled}), busy},
	} {
		d := &daemon{board: &board{}}
		if tt.view != nil {
			d.board.view.Store(tt.view)
		}
		if got := d.mood(); got != tt.want {
			t.Errorf("%s: mood() = %d; want %d", tt.name, got, tt.want)
		}
	}
}
