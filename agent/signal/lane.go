package signal

import "time"

// LaneState is the state of a lane.
type LaneState string

// The states of a lane.
const (
	LaneOff         LaneState = "off"         // switched off by the configuration
	LaneStarting    LaneState = "starting"    // not opened yet
	LaneUp          LaneState = "up"          // raises an alarm at each crossing
	LaneDegraded    LaneState = "degraded"    // raises no alarms; it is being reopened
	LaneUnavailable LaneState = "unavailable" // the kernel or the host lacks what it needs
)

// LaneStatus is the state of a lane. A lane is one source of alarms about crossed
// thresholds.
type LaneStatus struct {
	Name  string // one of a few constants
	State LaneState
	// Reason says what is missing if the lane is not up, or gives a note if it is. Since
	// is when the lane entered its state.
	Reason string
	Since  time.Time
	// Alarms counts the lane's alarms, Missed the crossings for which it raised none
	// although it should have, and Reopened how often it was reopened.
	Alarms, Missed, Reopened uint64
	// Interval is the sampling interval; 0 if the kernel notifies the lane.
	Interval time.Duration
}
