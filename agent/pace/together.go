package pace

import "time"

// began is what Together counts from.
var began = time.Now()

// Together returns how long to rest, for a period or less, so that all who rest
// for as long wake up at one time: whoever wakes up a process that sleeps pays for
// more than its own work.
func Together(now time.Time, period time.Duration) time.Duration {
	since := now.Sub(began) % period
	if since < 0 { // a clock that was set back, or a test's own
		since += period
	}
	return period - since
}
