package kube

import "time"

// LogLimiter bounds the log lines about one kind of event to one each [logInterval]. The zero
// LogLimiter is ready.
type LogLimiter struct {
	logged  time.Time
	skipped int
}

// Allow reports whether an event is logged, and how many before it were not.
func (l *LogLimiter) Allow(now time.Time) (skipped int, ok bool) {
	if !l.logged.IsZero() && now.Sub(l.logged) < logInterval {
		l.skipped++
		return 0, false
	}
	skipped, l.logged, l.skipped = l.skipped, now, 0
	return skipped, true
}
