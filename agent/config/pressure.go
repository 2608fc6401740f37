package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/config/strict"
)

// Pressure configures the response to stalls (PSI): tasks that wait for a
// resource. Signals of available memory don't show them.
type Pressure struct {
	Memory MemoryPressure `yaml:"memory"`
}

// MemoryPressure is a limit on memory stalls, and the action when it is exceeded.
type MemoryPressure struct {
	// Full is the limit on the time in which all tasks stall at once.
	Full StallRate `yaml:"full"`
	// Sustained is how long the limit must be exceeded without a break.
	Sustained time.Duration `yaml:"sustained"`
	// Action is taken each time the limit was exceeded for Sustained.
	Action PressureAction `yaml:"action"`
}

// PressureAction is the response to sustained pressure.
type PressureAction string

// The actions.
const (
	// PressureReport sets a node condition, and reports in the log and metrics.
	PressureReport PressureAction = "report"
	// PressureEvict also evicts one pod, ranked by memory.
	PressureEvict PressureAction = "evict"
)

// UnmarshalText accepts the actions by name.
func (a *PressureAction) UnmarshalText(text []byte) error {
	return choose(a, text, PressureReport, PressureEvict)
}

// StallRate is the stall time within a window of a PSI trigger
// (Documentation/accounting/psi.rst), written 150ms/1s.
type StallRate struct {
	Stall, Window time.Duration
}

// The bounds of the window of a PSI trigger (kernel/sched/psi.c: WINDOW_MIN_US,
// WINDOW_MAX_US).
const (
	minStallWindow = 500 * time.Millisecond
	maxStallWindow = 10 * time.Second
)

// String is the inverse of UnmarshalText.
func (r StallRate) String() string { return r.Stall.String() + "/" + r.Window.String() }

// MarshalText returns the rate in the form of String.
func (r StallRate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads a stall and its window.
func (r *StallRate) UnmarshalText(text []byte) error {
	const want = "want a stall within a window such as 150ms/1s"
	stallText, windowText, ok := strings.Cut(string(text), "/")
	if !ok {
		return fmt.Errorf("is %s; %s", strict.Quote(string(text)), want)
	}
	stall, err1 := time.ParseDuration(stallText)
	window, err2 := time.ParseDuration(windowText)
	switch {
	case err1 != nil || err2 != nil:
		return fmt.Errorf("is %s; %s", strict.Quote(string(text)), want)
	case window < minStallWindow || window > maxStallWindow:
		return fmt.Errorf("has a window of %v; want one from %v to %v", window, minStallWindow, maxStallWindow)
	case stall < time.Microsecond || stall > window:
		return fmt.Errorf("has a stall of %v in a window of %v; want one from 1µs to the whole window", stall, window)
	}
	*r = StallRate{stall, window}
	return nil
}

func defaultPressure() Pressure {
	return Pressure{Memory: MemoryPressure{
		Full:      StallRate{150 * time.Millisecond, time.Second},
		Sustained: 5 * time.Second,
		Action:    PressureReport,
	}}
}

func (c *Config) checkPressure() {
	const (
		full      = "pressure.memory.full"
		sustained = "pressure.memory.sustained"
		action    = "pressure.memory.action"
	)
	m := &c.Pressure.Memory
	if !c.failed(sustained) && !c.failed(full) && m.Sustained < m.Full.Window {
		c.errorf(sustained, "is %v; want at least the window of %s, which is %v", m.Sustained, full, m.Full.Window)
	}
	if m.Action == PressureEvict && c.Notification.PSI == LaneOff {
		c.errorf(action, "is %s, but notification.psi is %s, so that evictd would not be notified of pressure", PressureEvict, LaneOff)
	}
}
