package lanes

import (
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// expectation is what polling or the lane's own samples show of a threshold that the lane
// covers.
type expectation struct {
	firstAbove, lastAbove time.Time // of the latest readings that were clearly above
	fell                  time.Time // the reading that fell clearly below; zero for none
}

// observe records a reading, and reports whether it makes an alarm due: the signal fell
// from above or more to less than below.
func (e *expectation) observe(now time.Time, o *signal.Observation, below, above int64) (expected bool) {
	switch {
	case o.Status != signal.Observed:
		*e = expectation{}
	case !e.fell.IsZero(): // an alarm is due already
	case o.Available >= above:
		if e.firstAbove.IsZero() {
			e.firstAbove = now
		}
		e.lastAbove = now
	case o.Available >= below: // within the tolerance
	case e.firstAbove.IsZero() || e.lastAbove.Sub(e.firstAbove) < minAbove:
		*e = expectation{}
	default:
		e.fell = now
		return true
	}
	return false
}

// missed reports whether an alarm that was due is missing, given the time of the lane's
// last alarm, zero for none. again is when to check again; zero if no alarm is due.
func (e *expectation) missed(now, alarm time.Time) (missed bool, again time.Time) {
	switch due := e.fell.Add(alarmDeadline); {
	case e.fell.IsZero():
		return false, time.Time{}
	case !alarm.IsZero() && alarm.After(e.lastAbove.Add(-alarmDeadline)):
	case now.Before(due):
		return false, due
	default:
		missed = true
	}
	*e = expectation{}
	return missed, time.Time{}
}
