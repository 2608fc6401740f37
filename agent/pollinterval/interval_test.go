package pollinterval

import (
	"testing"
	"time"
)

const (
	gibibyte    = 1 << 30
	minInterval = 50 * time.Millisecond
	maxInterval = 10 * time.Second
	belowAll    = 250 * time.Millisecond
)

// diskInterval returns the Interval of a filesystem's bytes.
func diskInterval() Interval {
	return Interval{MinRate: gibibyte, Min: minInterval, Max: maxInterval, BelowAll: belowAll}
}

func TestInterval(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	type reading struct {
		ms        int
		available int64
	}
	for _, tt := range []struct {
		name       string
		readings   []reading
		thresholds []int64
		want       time.Duration
	}{
		{"no threshold", []reading{{0, gibibyte}}, nil, maxInterval},
		{"far above", []reading{{0, 100 * gibibyte}}, []int64{gibibyte}, maxInterval},
		{"4 GiB above, at 1 GiB/s", []reading{{0, 5 * gibibyte}}, []int64{gibibyte}, 2 * time.Second},
		{"the next threshold counts", []reading{{0, 5 * gibibyte}}, []int64{gibibyte, 4 * gibibyte, 6 * gibibyte}, 500 * time.Millisecond},
		{"just above", []reading{{0, gibibyte + 1}}, []int64{gibibyte}, minInterval},
		{"at the threshold", []reading{{0, gibibyte}}, []int64{gibibyte}, minInterval},
		{"below all thresholds", []reading{{0, gibibyte - 1}}, []int64{gibibyte}, belowAll},
		{"threshold 0", []reading{{0, 0}}, []int64{0}, minInterval},
		{"4 GiB/s seen", []reading{{0, 13 * gibibyte}, {1000, 9 * gibibyte}}, []int64{gibibyte}, time.Second},
		{"slower than the minimum rate", []reading{{0, 5*gibibyte + 1}, {1000, 5 * gibibyte}}, []int64{gibibyte}, 2 * time.Second},
		{"4 GiB/s, two minutes ago", []reading{{0, 13 * gibibyte}, {1000, 9 * gibibyte}, {121_000, 9 * gibibyte}}, []int64{gibibyte}, 4 * time.Second},
		{"the quantity grows", []reading{{0, gibibyte}, {1000, 5 * gibibyte}}, []int64{gibibyte}, 2 * time.Second},
		{"two readings at the same time", []reading{{0, 9 * gibibyte}, {0, 5 * gibibyte}}, []int64{gibibyte}, 2 * time.Second},
	} {
		i := diskInterval()
		for _, r := range tt.readings {
			i.Observe(at(r.ms), r.available)
		}
		if got := i.Next(tt.thresholds).Round(time.Millisecond); got != tt.want {
			t.Errorf("%s: Next = %v; want %v", tt.name, got, tt.want)
		}
	}
}

// A filesystem that fills at 1 GiB/s is read again before it is more than a tenth of a
// GiB below the threshold.
func TestIntervalNoticesCrossing(t *testing.T) {
	const rate, threshold = float64(gibibyte), 10 * gibibyte
	i := diskInterval()
	now, available := time.Unix(0, 0), float64(60*gibibyte)
	for readings := 0; ; readings++ {
		i.Observe(now, int64(available))
		if available < threshold {
			if over := threshold - available; over > gibibyte/10 {
				t.Errorf("seen %.0f MiB below the threshold; want at most 102", over/(1<<20))
			}
			if readings > 40 {
				t.Errorf("%d readings in 50 s; want at most 40", readings)
			}
			return
		}
		wait := i.Next([]int64{threshold})
		now, available = now.Add(wait), available-rate*wait.Seconds()
	}
}
