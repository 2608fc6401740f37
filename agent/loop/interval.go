package loop

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/lanes"
)

// The interval between iterations besides alarms, by pressure level.
const (
	// idleInterval applies while no threshold is met: the ranking and the conditions
	// are a second old at most. A longer one saves no CPU time: without the walk of each
	// iteration the inventory would list the pods three to ten times as often. Work that
	// no threshold waits for is done no more often: copying the disk usage, and choosing
	// the processes of which a kill handle has pidfds.
	idleInterval = time.Second
	// nearInterval applies when a threshold is near and BPF walks make an iteration
	// cheap.
	nearInterval = 50 * time.Millisecond
	// lowInterval applies while a threshold is met and no victim is in flight: the end
	// of a grace period or a back-off is noticed within 250 ms.
	lowInterval = 250 * time.Millisecond
	// settlingInterval applies while the memory of a victim comes back, which takes tens
	// of milliseconds, and while pods that end without evictd may hold back a hard threshold.
	settlingInterval = 10 * time.Millisecond

	// restFactor bounds the CPU time of the loop: the next iteration waits at least four
	// times as long as the last one took, idleRestFactor when a threshold is only near.
	restFactor     = 4
	idleRestFactor = 10
)

// nextInterval returns the time until the next iteration: that of the pressure level,
// longer after a slow iteration, but lowInterval at most while a threshold is met. For a
// second after an alarm that the reading did not confirm it is settlingInterval: memory
// that swings about a threshold falls below it again before a lane raises another alarm.
func nextInterval(v *View, last lanes.Alarm) time.Duration {
	wait, rest := levelInterval(v), restFactor*v.Took
	switch {
	case wait == idleInterval && v.Time.Sub(last.Seen) < idleInterval:
		wait = settlingInterval
	case wait == idleInterval && v.Snapshot.Walked && v.NearThreshold():
		return max(nearInterval, min(idleRestFactor*v.Took, idleInterval))
	}
	if wait < idleInterval {
		rest = min(rest, lowInterval)
	}
	return max(wait, rest)
}

// levelInterval returns the interval of the view's pressure level, without regard to near
// thresholds.
func levelInterval(v *View) time.Duration {
	if slices.ContainsFunc(v.State.Victims, inFlight) || v.Policy.AwaitsEnding(&v.State, v.Time) {
		return settlingInterval
	}
	if len(v.Orders.Met) > 0 {
		return lowInterval
	}
	return idleInterval
}
