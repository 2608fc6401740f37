package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/config/strict"
)

// Pressure tells what becomes of stalls: tasks that wait for a resource, which
// no signal of available memory shows.
type Pressure struct {
	Memory MemoryPressure `yaml:"memory"`
}

// MemoryPressure tells when the waiting for memory is too much, and what
// follows.
type MemoryPressure struct {
	// Full is the share of the time in which all tasks stalled at once.
	Full StallRate `yaml:"full"`
	// Sustained is for how long, without a break.
	Sustained time.Duration `yaml:"sustained"`
	// Action is what is done then, each time anew.
	Action PressureAction `yaml:"action"`
}

// PressureAction is what follows sustained pressure.
type PressureAction string

// The actions.
const (
	// PressureReport tells: by a condition, the log and the metrics.
	PressureReport PressureAction = "report"
	// PressureEvict also evicts one pod, in the order of memory.
	PressureEvict PressureAction = "evict"
)

// UnmarshalText accepts the actions by name.
func (a *PressureAction) UnmarshalText(text []byte) error {
	return choose(a, text, PressureReport, PressureEvict)
}

// StallRate is a stall within a window, as the kernel takes it for a trigger
// (Documentation/accounting/psi.rst). It is written 150ms/1s.
type StallRate struct {
	Stall, Window time.Duration
}

// The kernel takes windows of these lengths (kernel/sched/psi.c: WINDOW_MIN_US,
// WINDOW_MAX_US).
const (
	leastStallWindow = 500 * time.Millisecond
	mostStallWindow  = 10 * time.Second
)

// String is the inverse of UnmarshalText.
func (r StallRate) String() string { return r.Stall.String() + "/" + r.Window.String() }

// MarshalText is String.
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
	case window < leastStallWindow || window > mostStallWindow:
		return fmt.Errorf("has a window of %v; want one from %v to %v", window, leastStallWindow, mostStallWindow)
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
		c.errorf(action, "is %s, but notification.psi is %s, so that nothing would tell of pressure", PressureEvict, LaneOff)
	}
}
