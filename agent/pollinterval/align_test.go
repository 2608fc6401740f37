package pollinterval

import (
	"testing"
	"time"
)

func TestAlignedWait(t *testing.T) {
	const period = time.Second
	for _, after := range []time.Duration{-7*period - 1, -period, 0, 1, 300 * time.Millisecond, 999 * time.Millisecond, period, 7*period + 1} {
		now := epoch.Add(after)
		wait := AlignedWait(now, period)
		if wait <= 0 || wait > period {
			t.Errorf("AlignedWait() %v after the epoch = %v; want above 0 and at most %v", after, wait, period)
		}
		if wakes := after + wait; wakes%period != 0 {
			t.Errorf("AlignedWait() %v after the epoch ends at %v; want a multiple of %v", after, wakes, period)
		}
	}
}
