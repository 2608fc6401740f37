package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evictd/evictd/agent/signal"
)

// Notification is how evictd learns of pressure, as of a scrape. What is not
// known is nil, and has no series.
type Notification struct {
	Lanes   []signal.LaneStatus
	Sampler *Sampler
	Reclaim *Reclaim
	Limits  *Limits
	Stalls  []Stall
	// Alarms counts how the hot path has dealt with alarms, by result, and
	// Readings what the readings were taken from that confirmed them, by source.
	Alarms, Readings map[string]uint64
}

// Sampler is the sampler in the kernel, with its counts since it was opened.
type Sampler struct {
	Ticks, Lost     uint64
	Period, RunTime time.Duration
}

// Reclaim is the kernel's reclaim, with its counts since they were begun.
type Reclaim struct {
	KswapdWakes, Direct      uint64
	DirectTime, ThrottleTime time.Duration
}

// Limits counts what the kernel did for the memory limits of containers.
type Limits struct{ Max, OOM, OOMKills uint64 }

// Stall is for how long tasks have waited for a resource since the node was
// booted: some of them, or all at once (kind full).
type Stall struct {
	Resource, Kind string
	Total          time.Duration
}

// notification is a collector of what its source tells.
type notification struct {
	source atomic.Pointer[func() Notification]
}

var (
	laneUp       = describe("lane_up", "Whether a way of learning of pressure works: 1 where it does.", "lane")
	laneDegraded = describe("lane_degraded", "Whether a lane that could be had has failed, and is tried again: 1 where it has.", "lane")
	laneRaised   = describe("lane_raised_total", "Alarms that a lane has raised.", "lane")
	laneMissed   = describe("lane_missed_total", "Alarms that polling was the only one to raise although this lane should have.", "lane")
	laneReopened = describe("lane_reopened_total", "Times that a lane was opened again after a fault.", "lane")

	hotAlarms   = describe("hot_alarms_total", "Alarms that the hot path has dealt with, by what came of them.", "result")
	hotReadings = describe("hot_readings_total", "Readings that the hot path took to confirm an alarm, by what it read.", "source")

	samplerTicks  = describe("sampler_ticks_total", "Samples that were taken in the kernel.")
	samplerLost   = describe("sampler_lost_total", "Crossings that found no room on their way from the kernel at first.")
	samplerPeriod = describe("sampler_period_seconds", "Time until the kernel takes the next sample.")
	samplerRun    = describe("sampler_run_seconds_total", "Time that the kernel has spent on samples.")

	kswapdWakes    = describe("reclaim_kswapd_wakes_total", "Times that the kernel's background reclaim began.")
	directReclaims = describe("reclaim_direct_total", "Times that a task had to reclaim memory itself.")
	directTime     = describe("reclaim_direct_seconds_total", "Time that tasks have stalled in reclaim of their own.")
	throttleTime   = describe("reclaim_throttled_seconds_total", "Time that reclaim had to wait.")

	limitEvents = describe("container_memory_events_total", "What the kernel did for the memory limits of containers, while they were followed.", "event")
	stallTime   = describe("pressure_seconds_total", "Time that some tasks, or all at once (full), have waited for a resource since the node was booted.", "resource", "kind")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_"+name, help, labels, nil)
}

// Describe sends the descriptions of what Collect may send.
func (n *notification) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		laneUp, laneDegraded, laneRaised, laneMissed, laneReopened, samplerTicks, samplerLost, samplerPeriod, samplerRun,
		kswapdWakes, directReclaims, directTime, throttleTime, limitEvents, stallTime, hotAlarms, hotReadings,
	} {
		ch <- d
	}
}

// Collect asks the source and sends what it tells.
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
		gauge(laneUp, truth(l.State == signal.LaneUp), l.Name)
		gauge(laneDegraded, truth(l.State == signal.LaneDegraded), l.Name)
		counter(laneRaised, float64(l.Raised), l.Name)
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

// Notification has each scrape ask how evictd learns of pressure. The source may
// be called at any time, and must not wait.
func (m *Metrics) Notification(source func() Notification) { m.notification.source.Store(&source) }

// KernelKilled counts a process that the kernel's OOM killer took, by whether it
// was a pod's.
func (m *Metrics) KernelKilled(ofPod bool) {
	if ofPod {
		m.kernelKills[0].Inc()
		return
	}
	m.kernelKills[1].Inc()
}

// ScoresCorrected counts processes that were given the oom_score_adj that they
// should have.
func (m *Metrics) ScoresCorrected(processes int) { m.scores.Add(float64(processes)) }
