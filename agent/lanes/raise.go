package lanes

import (
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// The names of the lanes, as records, metrics and the configuration have them.
const (
	BPF     = "bpf"     // the sampler in the kernel
	Memcg   = "memcg"   // cgroup v1's notices
	Events  = "events"  // cgroup v2's counts
	PSI     = "psi"     // triggers on stalls
	Reclaim = "reclaim" // tracepoints of reclaim and of the OOM killer
	Forks   = "forks"   // the kernel's count of tasks, for pid.available alone
	Polling = "poll"    // reading again and again
)

// Names lists the lanes, the fastest first.
func Names() []string { return []string{BPF, Memcg, Events, PSI, Reclaim, Forks, Polling} }

// Raise is an alarm: a signal fell below a mark, or may have.
type Raise struct {
	Lane string
	// Mark is the mark that was crossed; zero where the lane can't tell.
	Mark signal.Mark
	// LastAbove and Seen are when no mark, and when a mark, was seen crossed. A
	// zero LastAbove is not known.
	LastAbove, Seen time.Time
	// Answered tells that the lane's own readings have answered the crossing of a
	// hard memory threshold (signal.Crossing.Answered), so that it does not wait
	// because file cache brought it. False where the lane can't tell.
	Answered bool
}

// Source is a descriptor through which a lane raises alarms. Its methods are
// called on the thread that waits for it, allocate nothing and wait for nobody.
type Source interface {
	// FD is what becomes ready, for Events of epoll(7).
	FD() int
	Events() uint32
	// Ready takes in what the descriptor has to tell, and reports whether that
	// is an alarm. Where there is more, the descriptor stays ready.
	Ready(now time.Time) (r Raise, raised bool)
}

// Waiter is the thread that waits for sources. Its methods may be called at any
// time.
type Waiter interface {
	Add(Source) error
	// Remove ends the wait: once it has returned, the source is not touched any
	// more.
	Remove(Source) error
	// Raise hands on an alarm that came without a source.
	Raise(Raise) error
}
