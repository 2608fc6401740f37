package metrics

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(10, 3)
		for i, step := range []struct {
			idle   time.Duration
			amount float64
			wait   time.Duration
		}{
			{0, 3, 0},
			{0, 1, 100 * time.Millisecond},
			{0, 2, 300 * time.Millisecond}, // after the previous caller
			{300 * time.Millisecond, 0, 0},
			{time.Hour, 3, 0}, // fills up to the burst only
			{0, 0.5, 50 * time.Millisecond},
		} {
			time.Sleep(step.idle)
			if got := b.take(step.amount).Round(time.Microsecond); got != step.wait {
				t.Errorf("step %d: take(%v) = %v; want %v", i, step.amount, got, step.wait)
			}
		}
	})
}
