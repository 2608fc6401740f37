package lanes

import (
	"github.com/evictd/evictd/agent/signal"
	"sync/atomic"
	"time"
)

// entry is a lane in a Set.
type entry struct {
	lane
	name  string
	mode  Mode
	fault *Fault

	// Written by the thread that waits, in nanoseconds since the Set's start.
	raised  atomic.Uint64
	heard   [signal.Marks]atomic.Int64
	heardAt atomic.Int64

	state    State
	why      string
	since    time.Time
	delay    time.Duration // of the next back-off
	retry    time.Time
	missed   uint64
	reopened uint64
	beatNow  uint64
	beaten   time.Time
	noted    string // the note that was told last, and when
	notedAt  time.Time

	// Of the Set's mutex.
	covered  [signal.Marks]bool
	slack    [signal.Marks]int64
	expected [signal.Marks]expectation // by what polling saw
	own      [signal.Marks]expectation // by the lane's own figures
	low      [signal.Marks]bool        // polling saw it crossed, by however little
}

// forget forgets what was expected of a lane, under the Set's mutex.
func (e *entry) forget() {
	e.covered, e.low = [signal.Marks]bool{}, [signal.Marks]bool{}
	e.expected, e.own = [signal.Marks]expectation{}, [signal.Marks]expectation{}
}

func (e *entry) status() Status {
	st := Status{
		Name: e.name, State: e.state, Why: e.why, Since: e.since,
		Raised: e.raised.Load(), Missed: e.missed, Reopened: e.reopened,
	}
	if e.state == Up {
		st.Period, st.Why = e.period(), e.note()
	}
	return st
}

// covers is that of a coverer; ok is false for any other lane.
func (e *entry) covers(m signal.Mark) (slack int64, ok bool) {
	if l, is := e.lane.(coverer); is {
		return l.covers(m)
	}
	return 0, false
}

// period is that of a periodic lane; 0 for one that is notified.
func (e *entry) period() time.Duration {
	if l, ok := e.lane.(periodic); ok {
		return l.period()
	}
	return 0
}

// note is that of a noter; empty for any other lane.
func (e *entry) note() string {
	if l, ok := e.lane.(noter); ok {
		return l.note()
	}
	return ""
}
