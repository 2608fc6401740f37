package pollinterval

import (
	"testing"
	"time"
)

const (
	gibibyte = 1 << 30
	fastest  = 50 * time.Millisecond
	slowest  = 10 * time.Second
	low      = 250 * time.Millisecond
)

// diskPace returns the Pace of a filesystem's bytes.
func diskPace() Interval {
	return Interval{MinRate: gibibyte, Min: fastest, Max: slowest, BelowAll: low}
}

func TestPace(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	type reading struct {
		ms   int
		left int64
	}
	for _, tt := range []struct {
		name       string
		readings   []reading
		thresholds []int64
		want       time.Duration
	}{
		{"no threshold", []reading{{0, gibibyte}}, nil, slowest},
		{"far above", []reading{{0, 100 * gibibyte}}, []int64{gibibyte}, slowest},
		{"4 GiB above, at 1 GiB/s", []reading{{0, 5 * gibibyte}}, []int64{gibibyte}, 2 * time.Second},
		{"the next threshold counts", []reading{{0, 5 * gibibyte}}, []int64{gibibyte, 4 * gibibyte, 6 * gibibyte}, 500 * time.Millisecond},
		{"just above", []reading{{0, gibibyte + 1}}, []int64{gibibyte}, fastest},
		{"at the threshold", []reading{{0, gibibyte}}, []int64{gibibyte}, fastest},
		{"below all thresholds", []reading{{0, gibibyte - 1}}, []int64{gibibyte}, low},
		{"threshold 0", []reading{{0, 0}}, []int64{0}, fastest},
		{"4 GiB/s seen", []reading{{0, 13 * gibibyte}, {1000, 9 * gibibyte}}, []int64{gibibyte}, time.Second},
		{"slower than the minimum rate", []reading{{0, 5*gibibyte + 1}, {1000, 5 * gibibyte}}, []int64{gibibyte}, 2 * time.Second},
		{"4 GiB/s, two minutes ago", []reading{{0, 13 * gibibyte}, {1000, 9 * gibibyte}, {121_000, 9 * gibibyte}}, []int64{gibibyte}, 4 * time.Second},
		{"the quantity grows", []reading{{0, gibibyte}, {1000, 5 * gibibyte}}, []int64{gibibyte}, 2 * time.Second},
		{"two readings at the same time", []reading{{0, 9 * gibibyte}, {0, 5 * gibibyte}}, []int64{gibibyte}, 2 * time.Second},
	} {
		p := diskPace()
		for _, r := range tt.readings {
			p.Observe(at(r.ms), r.left)
		}
		if got := p.Next(tt.thresholds).Round(time.Millisecond); got != tt.want {
			t.Errorf("%s: Next = %v; want %v", tt.name, got, tt.want)
		}
	}
}

// A filesystem that fills at 1 GiB/s is read again before it is more than a tenth of a
// GiB below the threshold.
func TestPaceNoticesCrossing(t *testing.T) {
	const rate, threshold = float64(gibibyte), 10 * gibibyte
	p := diskPace()
	now, left := time.Unix(0, 0), float64(60*gibibyte)
	for readings := 0; ; readings++ {
		p.Observe(now, int64(left))
		if left < threshold {
			if over := threshold - left; over > gibibyte/10 {
				t.Errorf("seen %.0f MiB below the threshold; want at most 102", over/(1<<20))
			}
			if readings > 40 {
				t.Errorf("%d readings in 50 s; want at most 40", readings)
			}
			return
		}
		wait := p.Next([]int64{threshold})
		now, left = now.Add(wait), left-rate*wait.Seconds()
	}
}
