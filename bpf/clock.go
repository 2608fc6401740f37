package bpf

import (
	"time"

	"golang.org/x/sys/unix"
)

// MonotonicTime returns CLOCK_MONOTONIC, the clock of all times in this package. ok is
// false if it can't be read.
func MonotonicTime() (now time.Duration, ok bool) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, false
	}
	return time.Duration(ts.Nano()), true
}
