package loop

import (
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/disks"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/signal"
)

// View is what the loop knew and decided last. It is not changed any more.
type View struct {
	Time         time.Time
	Took         time.Duration
	Config       *config.Config
	Policy       *evict.Policy
	Mode         Mode
	Observations signal.Observations
	Node         memory.Node
	Snapshot     pods.Snapshot
	State        evict.State
	Orders       evict.Orders
	// Holdings are what is known of the pods' disk usage, by UID.
	Holdings map[string]disks.Holding
	// Futile lists the signals that evicting does not help, also while a
	// back-off runs.
	Futile []evict.Futility
}

// Eligible counts the pods that memory pressure could evict.
func (v *View) Eligible() int {
	ranked, _ := v.Policy.Rank(v.Snapshot.Pods, signal.MemoryAvailable, &v.State, v.Time)
	return len(ranked)
}

// Busy reports whether a signal is low or a victim has not ended yet.
func (v *View) Busy() bool { return tempo(v) != calm }

// Liveness is what the watchdog knows of the loop. It is safe for concurrent use.
type Liveness struct {
	last          atomic.Pointer[time.Time]
	settleTimeout atomic.Int64
}

func (l *Liveness) note(now time.Time, settle time.Duration) {
	l.settleTimeout.Store(int64(settle))
	l.last.Store(&now)
}

// Last returns when the loop's last iteration ended; zero before the first.
func (l *Liveness) Last() time.Time {
	if at := l.last.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// SettleTimeout returns how long a victim's memory is waited for.
func (l *Liveness) SettleTimeout() time.Duration { return time.Duration(l.settleTimeout.Load()) }
