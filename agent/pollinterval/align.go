package pollinterval

import "time"

// epoch is the time at which all aligned periods start.
var epoch = time.Now()

// AlignedWait returns how long to wait, at most period, so that all callers with the same
// period wake up at the same time. Each wakeup of a sleeping process costs more than
// the caller's own work.
func AlignedWait(now time.Time, period time.Duration) time.Duration {
	since := now.Sub(epoch) % period
	if since < 0 { // now is before epoch: the clock was set back, or a test set it
		since += period
	}
	return period - since
}
