package lanes

import (
	"errors"
	"time"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/kernel"
)

// State and Status are shared with metrics and the control socket.
type (
	State  = signal.LaneState
	Status = signal.LaneStatus
)

// The states of a lane.
const (
	Off         = signal.LaneOff
	Starting    = signal.LaneStarting
	Up          = signal.LaneUp
	Degraded    = signal.LaneDegraded
	Unavailable = signal.LaneUnavailable
)

// Mode is the configured use of a lane.
type Mode string

// The modes.
const (
	Auto     Mode = "auto"
	Disabled Mode = "off"
	Required Mode = "require"
)

// lane detects pressure in one way. One goroutine calls its methods; the waiting thread
// uses only its sources. Interfaces that not every lane implements are coverer,
// selfChecker, periodic and partialFailer.
type lane interface {
	// open opens and arms the lane. After an error, close releases what open has opened.
	open(now time.Time, in *laneInput) error
	// reconcile updates what is armed. After an error the Set closes the lane and opens it
	// again.
	reconcile(now time.Time, in *laneInput) error
	close() error
}

// coverer is a lane that raises an alarm when a threshold is crossed.
type coverer interface {
	// covers reports whether the lane watches the threshold, and by how many bytes it may be
	// wrong about its position.
	covers(id signal.ThresholdID) (tolerance int64, ok bool)
}

// periodic is a lane that samples periodically. The other lanes are silent until the
// kernel notifies them.
type periodic interface {
	// heartbeat returns a number that grows with each sample.
	heartbeat() uint64
	// period returns the current sampling interval.
	period() time.Duration
}

// partialFailer is a lane that can be up while a part of it has failed.
type partialFailer interface {
	// partialFailure describes the failed part; empty if there is none.
	partialFailure() string
}

// selfChecker is a lane whose own samples show when it must raise an alarm.
type selfChecker interface {
	// lastSample returns how much of a threshold's signal was available at the last sample,
	// in bytes. The lane must raise an alarm when that falls from above or more to less than
	// below. ok is false if the lane does not cover the threshold.
	lastSample(id signal.ThresholdID) (available, below, above int64, ok bool)
}

// The optional interfaces of each lane. Without these assertions a method with a changed
// signature would be ignored silently.
var (
	_ = []coverer{(*samplerLane)(nil), (*memcgLane)(nil)}
	_ = []selfChecker{(*samplerLane)(nil)}
	_ = []periodic{(*samplerLane)(nil)}
	_ = []partialFailer{(*samplerLane)(nil), (*memcgLane)(nil), (*eventsLane)(nil), (*psiLane)(nil), (*reclaimLane)(nil)}
)

// laneInput is what lanes are reconciled with: the thresholds in force, and the last
// reading, which gives their values in bytes.
type laneInput struct {
	thresholds []signal.Threshold
	observed   signal.Observations
	// idle reports that no signal is near a threshold, no lane raised an alarm recently, and
	// slow changes were looked for recently. It is false when a lane is opened.
	idle bool
}

// memoryThreshold is a threshold on a memory signal, in bytes.
type memoryThreshold struct {
	id                  signal.ThresholdID
	capacity, available int64
}

// memoryThresholds returns the thresholds of the memory signals that are observed.
func (in *laneInput) memoryThresholds() []memoryThreshold {
	var list []memoryThreshold
	for i := range in.thresholds {
		t := &in.thresholds[i]
		o := &in.observed[t.Signal]
		if !t.Signal.IsMemory() || o.Status != signal.Observed {
			continue
		}
		list = append(list, memoryThreshold{signal.IDOf(t), o.Capacity, t.Value.Amount(o.Capacity)})
	}
	return list
}

// permanent reports whether an error means that the operation can't succeed on this host.
func permanent(err error) bool {
	return errors.Is(err, kernel.ErrUnavailable) || errors.Is(err, bpf.ErrUnavailable)
}

// Fault makes a lane fail, for tests. Each function may be nil, and may be called from any
// goroutine.
type Fault struct {
	Open        func() error // an error prevents opening
	HideSamples func() bool  // true hides new samples
	DropAlarms  func() bool  // true discards alarms
}

func (f *Fault) open() error {
	if f == nil || f.Open == nil {
		return nil
	}
	return f.Open()
}

func (f *Fault) hideSamples() bool { return f != nil && f.HideSamples != nil && f.HideSamples() }
func (f *Fault) dropAlarms() bool  { return f != nil && f.DropAlarms != nil && f.DropAlarms() }
