package self

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestCollectorCheck(t *testing.T) {
	const mi = 1 << 20
	for _, tt := range []struct {
		name          string
		objects, live uint64
		urgency       Urgency
		want          int
	}{
		{"little garbage", 9 * mi, 8 * mi, Idle, 0},
		{"half of the live heap", 12 * mi, 8 * mi, Idle, 1},
		{"half of the live heap, near a threshold", 12 * mi, 8 * mi, Near, 0},
		{"the size of the live heap, near a threshold", 16 * mi, 8 * mi, Near, 1},
		{"less than half of a large live heap, near a threshold", 29 * mi, 20 * mi, Near, 0},
		{"much garbage, and a threshold is met", 40 * mi, 8 * mi, Busy, 0},
		{"a small heap", mi + mi/2, mi / 2, Idle, 1},
		{"a small heap with too little", mi, mi / 2, Idle, 0},
		{"never collected", 2 * mi, 0, Idle, 1},
	} {
		collected := 0
		c := collector{
			sizes: func() (uint64, uint64) { return tt.objects, tt.live }, urgency: func() Urgency { return tt.urgency },
			collect: func() { collected++ },
		}
		if c.check(); collected != tt.want {
			t.Errorf("%s: check() with %d of %d bytes live collected %d times; want %d", tt.name, tt.live, tt.objects, collected, tt.want)
		}
	}
}

var kept []byte

// With the runtime's own sizes: check collects garbage once.
func TestCollectorWithTheRuntime(t *testing.T) {
	collected := 0
	c := collector{sizes: heapSizes(), urgency: func() Urgency { return Idle }, collect: func() { collected++; runtime.GC() }}
	percent := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	runtime.GC()
	if c.check(); collected != 0 {
		t.Errorf("collected %d times right after a collection; want 0", collected)
	}
	_, live := c.sizes()
	for range 4 {
		kept = make([]byte, max(live, 1<<20)) // each but the last is garbage
	}
	kept = nil
	if c.check(); collected != 1 {
		t.Errorf("collected %d times with garbage; want once", collected)
	}
	if c.check(); collected != 1 {
		t.Errorf("collected %d times after that; want no more", collected)
	}
}
