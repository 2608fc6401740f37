package bpf

import (
	"time"

	"golang.org/x/sys/unix"
)

// Uptime reads CLOCK_MONOTONIC, which the programs take their times from. ok is false
// where it can't be read.
func Uptime() (now time.Duration, ok bool) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, false
	}
	return time.Duration(ts.Nano()), true
}
