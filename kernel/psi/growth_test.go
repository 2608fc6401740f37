package psi

import (
	"testing"
	"time"
)

func TestGrowth(t *testing.T) {
	const ms = time.Millisecond
	type reading struct {
		at, total time.Duration
		want      bool
	}
	for _, tc := range []struct {
		name     string
		readings []reading
	}{
		{"no stall", []reading{{500 * ms, 0, false}, {1000 * ms, 0, false}, {9000 * ms, 0, false}}},
		{"below the stall", []reading{{100 * ms, 99 * ms, false}}},
		{"equal to the stall", []reading{{100 * ms, 100 * ms, true}}},
		// The kernel's second event includes a share of the first window, so its growth
		// must still count.
		{"two events in a row", []reading{{100 * ms, 100 * ms, true}, {600 * ms, 150 * ms, true}}},
		{"less than the stall in each of many windows", []reading{{500 * ms, 40 * ms, false}, {1000 * ms, 80 * ms, false}, {1500 * ms, 99 * ms, false}, {2000 * ms, 139 * ms, false}, {2500 * ms, 170 * ms, false}, {3000 * ms, 179 * ms, false}}},
		{"ended more than two windows ago", []reading{{100 * ms, 100 * ms, true}, {1000 * ms, 100 * ms, true}, {2000 * ms, 100 * ms, false}, {2100 * ms, 100 * ms, false}}},
		{"a total that decreases", []reading{{100 * ms, -5 * ms, false}}},
	} {
		start := time.Unix(1000, 0)
		const base = time.Hour
		g := NewGrowth(Condition{Some, 100 * ms, 500 * ms}, base, start)
		for i, r := range tc.readings {
			if got := g.Update(base+r.total, start.Add(r.at)); got != r.want {
				t.Errorf("%s: reading %d, Update(+%v) after %v = %v; want %v", tc.name, i, r.total, r.at, got, r.want)
			}
		}
	}
}
