package lanes

import (
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// The names of the lanes in records, metrics and the configuration.
const (
	BPF     = "bpf"     // BPF timer
	Memcg   = "memcg"   // cgroup v1 notifications
	Events  = "events"  // cgroup v2 event counters
	PSI     = "psi"     // PSI triggers
	Reclaim = "reclaim" // tracepoints of reclaim and of the OOM killer
	Forks   = "forks"   // the kernel's count of tasks, for pid.available only
	Polling = "poll"    // periodic reading
)

// Names returns the names of the lanes, the fastest first.
func Names() []string { return []string{BPF, Memcg, Events, PSI, Reclaim, Forks, Polling} }

// Alarm reports that a signal fell below a threshold, or may have.
type Alarm struct {
	Lane string
	// Threshold is the threshold that was crossed; zero if the lane does not know.
	Threshold signal.ThresholdID
	// LastAbove is when the lane last saw no threshold crossed; zero if not known. Seen is when
	// it saw the crossing.
	LastAbove, Seen time.Time
	// ActNow reports that the lane's own readings show that the crossing of a hard memory
	// threshold must be acted on now ([signal.Crossing.ActNow]), even if file cache caused it.
	// It is false if the lane does not know.
	ActNow bool
}

// Source is a descriptor through which a lane raises alarms. The waiting thread calls its
// methods, which neither allocate nor block.
type Source interface {
	// FD is polled for Events, as in epoll(7).
	FD() int
	Events() uint32
	// Ready handles an event, and reports whether it is an alarm. The descriptor stays ready
	// while it has more events.
	Ready(now time.Time) (a Alarm, raised bool)
}

// Waiter is the thread that polls the sources. Its methods may be called at any time.
type Waiter interface {
	Add(Source) error
	// Remove stops polling a source. No method of the source is called after it has
	// returned.
	Remove(Source) error
	// Raise passes on an alarm that no source has raised.
	Raise(Alarm) error
}
