package signal

import (
	"testing"
	"time"
)

func TestThresholdID(t *testing.T) {
	seen := map[ThresholdID]bool{}
	for _, s := range All() {
		for _, grace := range []time.Duration{0, time.Minute} {
			m := IDOf(&Threshold{Signal: s, Grace: grace})
			if m == 0 || int(m) >= ThresholdIDCount || seen[m] || m.Signal() != s || m.Hard() != (grace == 0) {
				t.Errorf("identity of (%v, grace %v) = %d: signal %v, hard %t, seen before %t", s, grace, m, m.Signal(), m.Hard(), seen[m])
			}
			seen[m] = true
		}
	}
	for m, want := range map[ThresholdID]string{
		0: "no threshold", 1: "hard threshold on memory.available", 4: "soft threshold on allocatableMemory.available", ThresholdID(ThresholdIDCount): "no threshold",
	} {
		if got := m.String(); got != want {
			t.Errorf("String() of %d = %q; want %q", m, got, want)
		}
	}
}
