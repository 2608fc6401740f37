package selffence

import (
	"testing"
	"time"
)

func TestFormatPlannedShutdown(t *testing.T) {
	at := time.Date(2026, 3, 1, 10, 0, 0, 0, time.FixedZone("", 3600))
	for until, want := range map[time.Time]string{at: "2026-03-01T09:00:00Z", at.Add(time.Millisecond): "2026-03-01T09:00:01Z"} {
		if got := FormatPlannedShutdown(until); got != want {
			t.Errorf("FormatPlannedShutdown(%s) = %q; want %q", until, got, want)
		}
	}
}
