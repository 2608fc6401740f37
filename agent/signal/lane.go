package signal

import "time"

// LaneState says whether a lane works.
type LaneState string

// The states.
const (
	LaneOff         LaneState = "off"         // by the configuration
	LaneStarting    LaneState = "starting"    // it has not been opened yet
	LaneUp          LaneState = "up"          // it raises an alarm at each crossing
	LaneDegraded    LaneState = "degraded"    // it does not, and is opened again
	LaneUnavailable LaneState = "unavailable" // the kernel or the host lacks what it needs
)

// LaneStatus is the state of a lane, which is one way to learn of a crossing.
type LaneStatus struct {
	Name  string // one of few constants
	State LaneState
	// Why says what is missing where the lane is not up, or worth knowing where it is;
	// Since is when it came into its state.
	Why   string
	Since time.Time
	// Raised counts its alarms, Missed the crossings for which it should have raised
	// one and did not, and Reopened how often it was opened again.
	Raised, Missed, Reopened uint64
	// Period is how often it samples; 0 where it is notified.
	Period time.Duration
}
