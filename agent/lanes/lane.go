package lanes

import (
	"errors"
	"time"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/kernel"
)

// State and Status are the nouns that metrics and the control socket share.
type (
	State  = signal.LaneState
	Status = signal.LaneStatus
)

// The states.
const (
	Off         = signal.LaneOff
	Starting    = signal.LaneStarting
	Up          = signal.LaneUp
	Degraded    = signal.LaneDegraded
	Unavailable = signal.LaneUnavailable
)

// Mode tells whether a lane is wanted.
type Mode string

// The modes.
const (
	Auto     Mode = "auto"
	Disabled Mode = "off"
	Required Mode = "require"
)

// lane is a way to learn of pressure besides polling. All its methods are called
// by one goroutine; only its sources are touched by the thread that waits. What not
// every lane has is in interfaces of its own: coverer, witness, periodic, noter.
type lane interface {
	// open gets it going, down to the sources. What it leaves behind on an error
	// is close's to tidy up.
	open(now time.Time, w *watched) error
	// tend brings it up to date. An error is what is wrong with it: it is then
	// closed and opened anew.
	tend(now time.Time, w *watched) error
	close() error
}

// coverer is a lane that raises when a threshold is crossed.
type coverer interface {
	// covers returns by how many bytes the lane may be wrong about where the threshold
	// is. ok is false while the lane does not cover it.
	covers(m signal.Mark) (slack int64, ok bool)
}

// periodic is a lane that samples by itself. The others are silent until the kernel
// notifies them.
type periodic interface {
	// beat is a number that grows as long as the lane samples.
	beat() uint64
	// period is how long it waits between two samples.
	period() time.Duration
}

// noter is a lane that may be up and yet have something wrong with a part of it.
type noter interface {
	// note says what is wrong; normally it is empty.
	note() string
}

// witness is a lane that knows by figures of its own when it has to raise.
type witness interface {
	// figure returns how much of a mark's signal was available when the lane last
	// looked, in bytes: it raises when that falls from above or more to less than
	// below. ok is false where it does not cover the mark.
	figure(m signal.Mark) (available, below, above int64, ok bool)
}

// What each lane has: a method that no longer fits its interface would otherwise be
// missing without an error.
var (
	_ = []coverer{(*sampler)(nil), (*usage)(nil)}
	_ = []witness{(*sampler)(nil)}
	_ = []periodic{(*sampler)(nil)}
	_ = []noter{(*sampler)(nil), (*usage)(nil), (*events)(nil), (*stalls)(nil), (*reclaim)(nil)}
)

// watched is what lanes watch: the thresholds in force and the last reading,
// which tells what they mean in bytes.
type watched struct {
	thresholds []signal.Threshold
	observed   signal.Observations
	// calm says that no signal is near a mark, no lane has told of anything of late,
	// and what moves slowly was looked at not long ago. It is false where a lane is
	// opened.
	calm bool
}

// level is a threshold on memory, in bytes.
type level struct {
	mark                signal.Mark
	capacity, available int64
}

// levels returns the thresholds of the two memory signals, as far as they are
// observed.
func (w *watched) levels() []level {
	var list []level
	for i := range w.thresholds {
		t := &w.thresholds[i]
		o := &w.observed[t.Signal]
		if !t.Signal.IsMemory() || o.Status != signal.Observed {
			continue
		}
		list = append(list, level{signal.MarkOf(t), o.Capacity, t.Value.Amount(o.Capacity)})
	}
	return list
}

// never reports whether an error says that asking again does not help.
func never(err error) bool {
	return errors.Is(err, kernel.ErrUnavailable) || errors.Is(err, bpf.ErrUnavailable)
}

// Fault makes a lane fail, so that what follows can be seen. Each of its
// functions may be nil, and is called from any goroutine.
type Fault struct {
	Open  func() error // an error keeps it from being opened
	Still func() bool  // true makes its heart stand still
	Deaf  func() bool  // true makes its alarms go unheard
}

func (f *Fault) open() error {
	if f == nil || f.Open == nil {
		return nil
	}
	return f.Open()
}

func (f *Fault) still() bool { return f != nil && f.Still != nil && f.Still() }
func (f *Fault) deaf() bool  { return f != nil && f.Deaf != nil && f.Deaf() }
