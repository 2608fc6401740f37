//go:build !race

package lanes

import (
	"testing"
	"time"

	"github.com/evictd/evictd/bpf"
)

// Under the race detector buffers that the kernel fills escape to the heap.

// A record of the kernel becomes an alarm without an allocation.
func TestAlarmDoesNotAllocate(t *testing.T) {
	s, th, _ := openLane(t, BPF, nil)
	waitCovered(t, s)
	th.mu.Lock() // the waiting thread must not read the record
	defer th.mu.Unlock()
	source := recordedSource{s.ring, s}
	clock, ok := bpf.MonotonicTime()
	if !ok {
		t.Fatal("MonotonicTime() = false; want true")
	}
	sent := bpf.Crossing{Key: uint64(pods), Source: bpf.SourcePods, LastAbove: clock - 2*time.Millisecond, Seen: clock - time.Millisecond, Sent: clock}
	now := time.Now()
	if err := s.sampler.sampler.Inject(sent); err != nil {
		t.Fatal(err)
	}
	r, raised := source.Ready(now)
	if ago := now.Sub(r.Seen); !raised || r.Lane != BPF || r.Threshold != pods || ago < time.Millisecond-100*time.Microsecond || ago > 20*time.Millisecond ||
		r.Seen.Sub(r.LastAbove) != time.Millisecond {
		t.Fatalf("Ready() = %+v, %t; want the crossing 1 ms ago", r, raised)
	}
	const runs = 50
	for range runs + 1 {
		if err := s.sampler.sampler.Inject(sent); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(runs, func() {
		if _, raised := source.Ready(time.Now()); !raised {
			t.Error("Ready() raised nothing")
		}
	}); n != 0 {
		t.Errorf("Ready() allocates %v times; want 0", n)
	}
}
