package signal

import (
	"testing"
	"time"
)

func TestThresholdID(t *testing.T) {
	seen := map[ThresholdID]bool{}
	for _, s := range All() {
		for _, grace := range []time.Duration{0, time.Minute} {
			id := IDOf(&Threshold{Signal: s, Grace: grace})
			if id == 0 || int(id) >= ThresholdIDCount || seen[id] || id.Signal() != s || id.Hard() != (grace == 0) {
				t.Errorf("identity of (%v, grace %v) = %d: signal %v, hard %t, seen before %t", s, grace, id, id.Signal(), id.Hard(), seen[id])
			}
			seen[id] = true
		}
	}
	for id, want := range map[ThresholdID]string{
		0: "no threshold", 1: "hard threshold on memory.available", 4: "soft threshold on allocatableMemory.available", ThresholdID(ThresholdIDCount): "no threshold",
	} {
		if got := id.String(); got != want {
			t.Errorf("String() of %d = %q; want %q", id, got, want)
		}
	}
}
