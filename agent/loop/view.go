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

// View is what the loop observed and decided in one iteration. It is immutable.
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
	// KubeletHard are the kubelet's hard thresholds, by which disk and PID signals are left to
	// it; nil if there are none or they are not known.
	KubeletHard []evict.Threshold
	// DiskUsage is the measured disk usage of the pods, by UID.
	DiskUsage map[string]disks.PodUsage
	// Futile has the signals that evicting pods can't relieve, also during a back-off.
	Futile []evict.Futility
	// Resuming is set while victims of an earlier run wait for facts, without which they are not killed.
	Resuming bool
}

// Eligible returns how many pods memory pressure could evict.
func (v *View) Eligible() int {
	ranked, _ := v.Policy.Rank(v.Snapshot.Pods, signal.MemoryAvailable, &v.State, v.Time)
	return len(ranked)
}

// Busy reports whether a threshold is met or a victim is in flight.
func (v *View) Busy() bool { return levelInterval(v) != idleInterval }

// Liveness shows the watchdog when the loop last iterated. It is safe for concurrent use.
type Liveness struct {
	last          atomic.Pointer[time.Time]
	settleTimeout atomic.Int64
}

// note records the end of an iteration, and the settle timeout in force.
func (l *Liveness) note(now time.Time, settle time.Duration) {
	l.settleTimeout.Store(int64(settle))
	l.last.Store(&now)
}

// Last returns when the loop's last iteration ended; zero before the first one.
func (l *Liveness) Last() time.Time {
	if at := l.last.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// SettleTimeout returns the settle timeout in force: how long a victim may make no progress.
func (l *Liveness) SettleTimeout() time.Duration { return time.Duration(l.settleTimeout.Load()) }
