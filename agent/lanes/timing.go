package lanes

import "time"

// How often a Set reconciles its lanes.
const (
	// idleInterval is the interval while no signal is near a threshold. It delays by one
	// interval, after heartbeatTimeout, that a stopped sampler is degraded.
	idleInterval = time.Second
	// activeInterval is the interval while a signal is near a threshold, and for
	// activeAfterAlarm after an alarm: what is armed then follows the file cache closely.
	activeInterval   = 100 * time.Millisecond
	activeAfterAlarm = 5 * time.Second
	// minInterval is the minimum, whatever wakes the Set up. It bounds how often thresholds
	// on growth follow a crossing that waits.
	minInterval = 10 * time.Millisecond
	// fullCheckInterval is how often, while idle, slow changes are looked for too: file
	// cache, another kubepods cgroup, removed cgroups, new CPUs or NUMA nodes.
	fullCheckInterval = 10 * time.Second
	// reportInterval is how often a changed partial failure of a lane is reported at
	// most, so that one that comes and goes does not fill the log.
	reportInterval = time.Minute
)

// When a lane is degraded, and when it is opened again.
const (
	// heartbeatTimeout is how long a lane that samples may be without a new sample, and
	// polling without a reading beyond its interval. It is many times the longest interval
	// of the sampler.
	heartbeatTimeout = 2 * time.Second
	// alarmDeadline is how long after a crossing was seen a lane may raise its alarm,
	// and by how much its alarm may precede the last reading above the threshold: the
	// longest polling interval.
	alarmDeadline = maxPollInterval
	// minAbove is how long a signal must have been clearly above a threshold before a
	// fall below it is a crossing that a lane must not miss. After a dip the lanes wait
	// for a margin.
	minAbove = 100 * time.Millisecond
	// minBackoff and maxBackoff bound how long a failed lane stays closed. The back-off
	// starts again at minBackoff for a lane that was up for maxBackoff.
	minBackoff, maxBackoff = time.Second, time.Minute
	// partialRetryInterval is how long a failed part of a lane is left alone.
	partialRetryInterval = 5 * time.Second
)

// cgroupAlarmInterval is the least time between two alarms for one cgroup's event counts
// or critical reclaim, which the kernel reports every 512 pages (mm/vmpressure.c).
const cgroupAlarmInterval = 100 * time.Millisecond
