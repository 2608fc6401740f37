package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

const namespace = "evictd"

// Build is what evictd_build_info tells.
type Build struct {
	Version, Revision, GoVersion string
}

// Metrics is evictd's registry and what writes to it.
type Metrics struct {
	registry     *prometheus.Registry
	readings     *readings
	evicted      *evictions
	notification *notification
	going        *going
	filesystems  *filesystems
	reclaimed    *reclaims

	loop        prometheus.Histogram
	unreadable  [signal.Count]prometheus.Counter
	futile      [signal.Count]prometheus.Gauge
	condition   map[signal.Condition]prometheus.Gauge
	dryRun      prometheus.Gauge
	eligible    prometheus.Gauge
	exempt      prometheus.Gauge
	records     prometheus.Gauge
	stateKept   prometheus.Gauge
	connected   prometheus.Gauge
	callsFailed prometheus.Counter
	scores      prometheus.Counter // processes whose oom_score_adj was corrected
	configOK    prometheus.Gauge
	configTime  prometheus.Gauge
	kernelKills [2]prometheus.Counter // of a pod, and of none
	probes      *prometheus.GaugeVec
}

// New returns the metrics of one agent, in a registry of their own.
// LogDropped returns how many log lines were dropped so far.
func New(build Build, logDropped func() uint64) *Metrics {
	r := prometheus.NewRegistry()
	m := &Metrics{registry: r, readings: &readings{}, evicted: newEvictions(r), notification: &notification{}, going: newGoing(r), filesystems: &filesystems{}, reclaimed: newReclaims(r)}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
		r.MustRegister(g)
		return g
	}
	gauges := func(name, help string, label string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, []string{label})
		r.MustRegister(g)
		return g
	}

	m.loop = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace, Name: "loop_duration_seconds",
		Help:    "Time that one turn of the decision loop took, from reading to orders.",
		Buckets: prometheus.ExponentialBuckets(50e-6, 4, 9), // 50 µs to 3.3 s
	})
	m.callsFailed = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace, Name: "runtime_calls_failed_total",
		Help: "Calls to the container runtime that failed or timed out.",
	})
	unreadable := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Name: "signal_unreadable_total",
		Help: "Times that a signal should have been read and could not be.",
	}, []string{"signal"})
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info",
		Help: "Always 1; its labels tell which evictd this is.",
	}, []string{"version", "revision", "goversion"})
	info.WithLabelValues(build.Version, build.Revision, build.GoVersion).Set(1)
	kernelKills := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Name: "kernel_oom_kills_total",
		Help: "Processes that the kernel's OOM killer took, by whether they were a pod's, while its tracepoint was followed.",
	}, []string{"pod"})
	m.kernelKills = [2]prometheus.Counter{kernelKills.WithLabelValues("true"), kernelKills.WithLabelValues("false")}
	m.scores = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace, Name: "oom_score_adj_corrected_total",
		Help: "Processes of containers that were given the oom_score_adj that they should have (oomScoreAdj: enforce).",
	})
	r.MustRegister(m.scores, m.loop, m.callsFailed, unreadable, info, kernelKills, m.readings, m.notification, m.filesystems,
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: namespace, Name: "log_dropped_total",
			Help: "Log lines dropped because they could not be written, or not fast enough.",
		}, func() float64 { return float64(logDropped()) }),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)

	m.dryRun = gauge("dry_run", "Whether evictions are only told and not carried out: 1 for a dry run.")
	m.dryRun.Set(1) // until the mode is known nothing is evicted
	m.records = gauge("records", "Records of evictions that are kept for evictctl.")
	m.stateKept = gauge("state_kept", "Whether the last attempt to write the state that survives a restart succeeded: 1 where it did.")
	m.connected = gauge("runtime_connected", "Whether the container runtime answers: 1 where it does.")
	m.configOK = gauge("config_last_reload_successful", "Whether the last attempt to load the configuration succeeded: 1 where it did.")
	m.configTime = gauge("config_last_reload_success_timestamp_seconds", "When the configuration was last loaded, in seconds since the epoch.")
	m.probes = gauges("probe_supported", "Whether the kernel and evictd's privileges allow a feature: 1 where they do; absent where that could not be told.", "feature")
	pods := gauges("pods", "Pods on the node, by whether they may be evicted.", "eligible")
	m.eligible, m.exempt = pods.WithLabelValues("true"), pods.WithLabelValues("false")

	futile := gauges("futile", "Whether a signal stays low whatever is evicted: 1 where it does.", "signal")
	conditions := gauges("node_condition", "Whether the node is in a condition: 1 where it is.", "condition")
	m.condition = map[signal.Condition]prometheus.Gauge{}
	for _, s := range signal.All() {
		m.unreadable[s] = unreadable.WithLabelValues(s.String())
		m.futile[s] = futile.WithLabelValues(s.String())
		m.condition[s.Condition()] = conditions.WithLabelValues(string(s.Condition()))
	}
	for _, c := range []signal.Condition{signal.SystemMemoryContentionPressure, signal.KubepodsMemoryContentionPressure} {
		m.condition[c] = conditions.WithLabelValues(string(c))
	}
	m.going.condition = conditions.WithLabelValues(string(signal.NodeShutdown))
	return m
}

// Policy tells which thresholds are in force. The policy must not change
// afterwards.
func (m *Metrics) Policy(p *evict.Policy) { m.readings.policy.Store(p) }

// Observed takes a reading of all signals.
func (m *Metrics) Observed(o signal.Observations) {
	m.readings.observed.Store(&o)
	for s := range o {
		if o[s].Status == signal.Unreadable {
			m.unreadable[s].Inc()
		}
	}
}

// Unaccounted takes how much memory is neither free, anonymous, file cache nor
// hugetlb, in bytes.
func (m *Metrics) Unaccounted(bytes int64) { m.readings.unaccounted.Store(&bytes) }

// Stepped takes what a step of the decision returned, and how long the turn of
// the loop around it took.
func (m *Metrics) Stepped(state *evict.State, orders *evict.Orders, took time.Duration) {
	m.loop.Observe(took.Seconds())
	for name, gauge := range m.condition {
		gauge.Set(0)
		for _, c := range orders.Conditions {
			if c == name {
				gauge.Set(1)
			}
		}
	}
	for s := range m.futile {
		m.futile[s].Set(0)
	}
	for _, b := range state.Futile {
		if b.Delay == 0 && !b.None { // so far only disappointing
			continue
		}
		m.futile[b.Signal].Set(1)
		if b.Signal == signal.MemoryAvailable { // which stands for both
			m.futile[signal.AllocatableMemoryAvailable].Set(1)
		}
	}
}

// Evicted takes a record that is complete, once. One that is still pending is
// not counted.
func (m *Metrics) Evicted(r *evict.Record) { m.evicted.count(r) }

// Records tells how many records are kept.
func (m *Metrics) Records(n int) { m.records.Set(float64(n)) }

// StateKept takes whether the state could be written that survives a restart.
func (m *Metrics) StateKept(yes bool) { m.stateKept.Set(truth(yes)) }

// Pods tells how many pods there are, and how many of them may be evicted.
func (m *Metrics) Pods(count, eligible int) {
	m.eligible.Set(float64(eligible))
	m.exempt.Set(float64(count - eligible))
}

// DryRun tells whether evictions are carried out.
func (m *Metrics) DryRun(on bool) { m.dryRun.Set(truth(on)) }

// RuntimeConnected tells whether the container runtime answers.
func (m *Metrics) RuntimeConnected(yes bool) { m.connected.Set(truth(yes)) }

// RuntimeCallFailed counts a call to the runtime that failed or timed out.
func (m *Metrics) RuntimeCallFailed() { m.callsFailed.Inc() }

// ConfigLoaded tells that a configuration came into force.
func (m *Metrics) ConfigLoaded(at time.Time) {
	m.configOK.Set(1)
	m.configTime.Set(float64(at.UnixMilli()) / 1000)
}

// ConfigRejected tells that a configuration was not taken and the old one stays
// in force.
func (m *Metrics) ConfigRejected() { m.configOK.Set(0) }

// Probed tells whether a feature is there. One for which that could not be told
// is not passed here. Its name is one of few constants.
func (m *Metrics) Probed(feature string, supported bool) {
	m.probes.WithLabelValues(feature).Set(truth(supported))
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
