package agent

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/self"
	"github.com/evictd/evictd/agent/signal"
)

// While a threshold is met, facts about pods are saved more rarely.
func TestFactsKnowTheUrgency(t *testing.T) {
	d := buildHere(t)
	if !d.facts.Busy() {
		t.Error("Busy() before the first iteration = false; want true")
	}
	d.lastView.Store(&loop.View{Time: time.Now(), Policy: &evict.Policy{}})
	if d.facts.Busy() {
		t.Error("Busy() without thresholds = true; want false")
	}
}

func TestUrgency(t *testing.T) {
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
		want self.Urgency
	}{
		{"before the first iteration", nil, self.Busy},
		{"plenty", view(8 * gi), self.Idle},
		{"near the threshold", view(gi / 2), self.Near},
		{"low", low, self.Busy},
		{"a victim in flight", view(8*gi, evict.Victim{Status: evict.Unsettled}), self.Busy},
	} {
		d := &daemon{lastView: &atomic.Pointer[loop.View]{}}
		if tt.view != nil {
			d.lastView.Store(tt.view)
		}
		if got := d.urgency(); got != tt.want {
			t.Errorf("%s: urgency() = %d; want %d", tt.name, got, tt.want)
		}
	}
}
