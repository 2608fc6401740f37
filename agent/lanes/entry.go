package lanes

import (
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// entry is a lane of a Set with its state.
type entry struct {
	lane
	name  string
	mode  Mode
	fault *Fault

	// Written by the waiting thread. Times are in nanoseconds since the Set's start.
	alarms      atomic.Uint64
	alarmAt     [signal.ThresholdIDCount]atomic.Int64
	lastAlarmAt atomic.Int64

	state         State
	reason        string
	since         time.Time
	backoff       time.Duration // of the next back-off
	retryAt       time.Time     // while degraded
	missed        uint64
	reopened      uint64
	heartbeatSeen uint64
	heartbeatAt   time.Time
	reported      string // last reported partial failure, and when
	reportedAt    time.Time

	// Guarded by the Set's mutex.
	covered   [signal.ThresholdIDCount]bool
	tolerance [signal.ThresholdIDCount]int64
	byPoll    [signal.ThresholdIDCount]expectation // crossings seen by polling
	bySample  [signal.ThresholdIDCount]expectation // crossings in the lane's own samples
	low       [signal.ThresholdIDCount]bool        // polling saw it crossed, by any amount
}

// resetExpectations forgets what the lane covers and which alarms are expected of it. The
// Set's mutex must be locked.
func (e *entry) resetExpectations() {
	e.covered, e.low = [signal.ThresholdIDCount]bool{}, [signal.ThresholdIDCount]bool{}
	e.byPoll, e.bySample = [signal.ThresholdIDCount]expectation{}, [signal.ThresholdIDCount]expectation{}
}

func (e *entry) status() Status {
	st := Status{
		Name: e.name, State: e.state, Reason: e.reason, Since: e.since,
		Alarms: e.alarms.Load(), Missed: e.missed, Reopened: e.reopened,
	}
	if e.state == Up {
		st.Interval, st.Reason = e.period(), e.partialFailure()
	}
	return st
}

// covers calls the lane's covers; ok is false for a lane that is no coverer.
func (e *entry) covers(id signal.ThresholdID) (tolerance int64, ok bool) {
	if l, is := e.lane.(coverer); is {
		return l.covers(id)
	}
	return 0, false
}

// period returns the lane's sampling interval; 0 for a lane that is not periodic.
func (e *entry) period() time.Duration {
	if l, ok := e.lane.(periodic); ok {
		return l.period()
	}
	return 0
}

// partialFailure calls the lane's partialFailure; empty for a lane that is no
// partialFailer.
func (e *entry) partialFailure() string {
	if l, ok := e.lane.(partialFailer); ok {
		return l.partialFailure()
	}
	return ""
}
