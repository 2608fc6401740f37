package lanes

import (
	"time"

	"github.com/evictd/evictd/agent/signal"
)

const (
	// longAbove is how long a signal must have been seen clearly above a mark
	// before its fall below is a crossing that no lane may miss: for what dips and
	// is back, they wait for a margin.
	longAbove = 100 * time.Millisecond
	// patience is how long after polling saw the crossing a lane may raise, and by
	// how much it may have been ahead of the last reading that was above.
	patience = time.Second
)

// expectation is what was seen of a mark that a lane covers, by polling or by the
// lane itself.
type expectation struct {
	aboveFrom, above time.Time // of the last run of readings that were clearly above
	below            time.Time // the reading that fell clearly below; zero for none
}

// see takes a reading in, and reports whether the lane has to raise now: when it
// is less than below, and was above or more before.
func (e *expectation) see(now time.Time, o *signal.Observation, below, above int64) (expected bool) {
	switch {
	case o.Status != signal.Observed:
		*e = expectation{}
	case !e.below.IsZero(): // until it is judged
	case o.Available >= above:
		if e.aboveFrom.IsZero() {
			e.aboveFrom = now
		}
		e.above = now
	case o.Available >= below: // who can say
	case e.aboveFrom.IsZero() || e.above.Sub(e.aboveFrom) < longAbove:
		*e = expectation{}
	default:
		e.below = now
		return true
	}
	return false
}

// judge reports whether an alarm has been missed, when the last was heard at a
// time that may be zero; and when to ask again, zero for when something was
// expected anew.
func (e *expectation) judge(now, heard time.Time) (missed bool, again time.Time) {
	switch due := e.below.Add(patience); {
	case e.below.IsZero():
		return false, time.Time{}
	case !heard.IsZero() && heard.After(e.above.Add(-patience)):
	case now.Before(due):
		return false, due
	default:
		missed = true
	}
	*e = expectation{}
	return missed, time.Time{}
}
