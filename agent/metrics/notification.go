package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evictd/evictd/agent/signal"
)

// Notification is the state of the lanes and the hot path at a scrape. Unknown
// values are nil, and have no series.
type Notification struct {
	Lanes   []signal.LaneStatus
	Sampler *Sampler
	Reclaim *Reclaim
	Limits  *Limits
	Stalls  []Stall
	// Alarms counts the alarms that the hot path has handled, by result. Readings
	// counts its confirming readings, by source.
	Alarms, Readings map[string]uint64
}

// Sampler has the counts of the sampler in the kernel since it was opened.
type Sampler struct {
	Ticks, Lost     uint64
	Period, RunTime time.Duration
}

// Reclaim has the counts of the kernel's reclaim since tracing began.
type Reclaim struct {
	KswapdWakes, Direct      uint64
	DirectTime, ThrottleTime time.Duration
}

// Limits counts the memory.events of containers.
type Limits struct{ Max, OOM, OOMKills uint64 }

// Stall is the total time since boot in which some tasks, or all at once (kind
// full), have waited for a resource.
type Stall struct {
	Resource, Kind string
	Total          time.Duration
}

// notification collects the Notification that its source returns.
type notification struct {
	source atomic.Pointer[func() Notification]
}

var (
	laneUp       = describe("lane_up", "Whether a lane works (1) or not (0).", "lane")
	laneDegraded = describe("lane_degraded", "Whether a supported lane has failed and is being retried (1) or not (0).", "lane")
	laneRaised   = describe("lane_raised_total", "Number of alarms raised by a lane.", "lane")
	laneMissed   = describe("lane_missed_total", "Number of crossings that polling saw and this lane missed.", "lane")
	laneReopened = describe("lane_reopened_total", "Number of times that a lane was reopened after a fault.", "lane")

	hotAlarms   = describe("hot_alarms_total", "Number of alarms handled by the hot path, by result.", "result")
	hotReadings = describe("hot_readings_total", "Number of readings that the hot path took to confirm an alarm, by source.", "source")

	samplerTicks  = describe("sampler_ticks_total", "Number of samples taken by the sampler in the kernel.")
	samplerLost   = describe("sampler_lost_total", "Number of crossings that did not fit into the sampler's ring buffer at first.")
	samplerPeriod = describe("sampler_period_seconds", "Present period of the sampler in seconds.")
	samplerRun    = describe("sampler_run_seconds_total", "CPU time that the sampler has used in seconds.")

	kswapdWakes    = describe("reclaim_kswapd_wakes_total", "Number of times that kswapd began to reclaim.")
	directReclaims = describe("reclaim_direct_total", "Number of direct reclaims.")
	directTime     = describe("reclaim_direct_seconds_total", "Time that tasks have stalled in direct reclaim, in seconds.")
	throttleTime   = describe("reclaim_throttled_seconds_total", "Time that reclaim was throttled, in seconds.")

	limitEvents = describe("container_memory_events_total", "Number of memory.events of containers while evictd followed them, by event.", "event")
	stallTime   = describe("pressure_seconds_total", "Time since boot in which some tasks, or all at once (full), have waited for a resource, in seconds.", "resource", "kind")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (n *notification) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		laneUp, laneDegraded, laneRaised, laneMissed, laneReopened, samplerTicks, samplerLost, samplerPeriod, samplerRun,
		kswapdWakes, directReclaims, directTime, throttleTime, limitEvents, stallTime, hotAlarms, hotReadings,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (n *notification) Collect(ch chan<- prometheus.Metric) {
	source := n.source.Load()
	if source == nil {
		return
	}
	now := (*source)()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	for _, l := range now.Lanes {
		gauge(laneUp, boolValue(l.State == signal.LaneUp), l.Name)
		gauge(laneDegraded, boolValue(l.State == signal.LaneDegraded), l.Name)
		counter(laneRaised, float64(l.Alarms), l.Name)
		counter(laneMissed, float64(l.Missed), l.Name)
		counter(laneReopened, float64(l.Reopened), l.Name)
	}
	if s := now.Sampler; s != nil {
		counter(samplerTicks, float64(s.Ticks))
		counter(samplerLost, float64(s.Lost))
		gauge(samplerPeriod, s.Period.Seconds())
		counter(samplerRun, s.RunTime.Seconds())
	}
	if r := now.Reclaim; r != nil {
		counter(kswapdWakes, float64(r.KswapdWakes))
		counter(directReclaims, float64(r.Direct))
		counter(directTime, r.DirectTime.Seconds())
		counter(throttleTime, r.ThrottleTime.Seconds())
	}
	if l := now.Limits; l != nil {
		counter(limitEvents, float64(l.Max), "max")
		counter(limitEvents, float64(l.OOM), "oom")
		counter(limitEvents, float64(l.OOMKills), "oom_kill")
	}
	for result, n := range now.Alarms {
		counter(hotAlarms, float64(n), result)
	}
	for source, n := range now.Readings {
		counter(hotReadings, float64(n), source)
	}
	for _, s := range now.Stalls {
		counter(stallTime, s.Total.Seconds(), s.Resource, s.Kind)
	}
}

// Notification sets the source of the lanes' metrics. Each scrape calls it, at any
// time; it must not block.
func (m *Metrics) Notification(source func() Notification) { m.notification.source.Store(&source) }

// KernelOOMKilled counts a process killed by the kernel's OOM killer.
func (m *Metrics) KernelOOMKilled(ofPod bool) {
	if ofPod {
		m.kernelOOMKills[0].Inc()
		return
	}
	m.kernelOOMKills[1].Inc()
}

// OOMScoresCorrected counts processes whose oom_score_adj was corrected.
func (m *Metrics) OOMScoresCorrected(processes int) { m.scores.Add(float64(processes)) }
