package lanes

import (
	"testing"
	"time"

	"github.com/evictd/evictd/kernel/psi"
)

func TestSustainedStalls(t *testing.T) {
	const ms = time.Millisecond
	type reading struct{ at, total, since time.Duration } // since -1: not sustained
	for _, tc := range []struct {
		name     string
		readings []reading
	}{
		{"too little", []reading{{0, 5 * ms, -1}, {1000 * ms, 5 * ms, -1}, {2000 * ms, 100 * ms, -1}}},
		{"enough in each window", []reading{{0, 0, -1}, {1000 * ms, 150 * ms, 0}, {2000 * ms, 300 * ms, 0}, {3000 * ms, 900 * ms, 0}}},
		{"ends in a window without enough", []reading{{0, 0, -1}, {1000 * ms, 500 * ms, 0}, {2000 * ms, 600 * ms, -1}, {3000 * ms, 750 * ms, 2000 * ms}}},
		{"not before the end of the window", []reading{{0, 0, -1}, {100 * ms, 100 * ms, -1}, {999 * ms, 900 * ms, -1}, {1000 * ms, 900 * ms, 0}}},
		{"late reading, rate over the time passed", []reading{{0, 0, -1}, {3000 * ms, 449 * ms, -1}, {6000 * ms, 899 * ms, 3000 * ms}}},
		{"decreasing total", []reading{{0, 500 * ms, -1}, {1000 * ms, 400 * ms, -1}}},
	} {
		start := time.Unix(1000, 0)
		s := sustained{rate: psi.Condition{Kind: psi.Full, Stall: 150 * ms, Window: time.Second}}
		for _, in := range tc.readings {
			s.update(in.total, start.Add(in.at))
			got := time.Duration(-1)
			if !s.since.IsZero() {
				got = s.since.Sub(start)
			}
			if got != in.since {
				t.Errorf("%s: a total of %v after %v: since %v; want %v", tc.name, in.total, in.at, got, in.since)
			}
		}
	}
}
