package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

const namespace = "evictd"

// Build are the labels of evictd_build_info.
type Build struct {
	Version, Revision, GoVersion string
}

// Metrics is evictd's registry. Its methods update the metrics.
type Metrics struct {
	registry     *prometheus.Registry
	readings     *readings
	evicted      *evictions
	notification *notification
	shutdown     *nodeShutdown
	filesystems  *filesystems
	reclaimed    *reclaims
	kubernetes   *kubernetes
	selfFencing  *selfFencing

	loop           prometheus.Histogram
	unreadable     [signal.Count]prometheus.Counter
	futile         [signal.Count]prometheus.Gauge
	conditions     map[signal.Condition]prometheus.Gauge
	dryRun         prometheus.Gauge
	eligible       prometheus.Gauge
	exempt         prometheus.Gauge
	records        prometheus.Gauge
	stateSaved     prometheus.Gauge
	connected      prometheus.Gauge
	callsFailed    prometheus.Counter
	scores         prometheus.Counter // processes whose oom_score_adj was corrected
	configOK       prometheus.Gauge
	configTime     prometheus.Gauge
	kernelOOMKills [2]prometheus.Counter // of pods, of other processes
	probes         *prometheus.GaugeVec
}

// New returns the metrics of one agent in a new registry. LogDropped returns the
// number of log lines dropped so far.
func New(build Build, logDropped func() uint64) *Metrics {
	r := prometheus.NewRegistry()
	m := &Metrics{
		registry: r, readings: &readings{}, evicted: newEvictions(r), notification: &notification{}, shutdown: newNodeShutdown(r),
		filesystems: &filesystems{}, reclaimed: newReclaims(r), kubernetes: &kubernetes{}, selfFencing: &selfFencing{},
	}
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
		Help:    "Duration of one iteration of the decision loop in seconds, from reading to orders.",
		Buckets: prometheus.ExponentialBuckets(50e-6, 4, 9), // 50 µs to 3.3 s
	})
	m.callsFailed = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace, Name: "runtime_calls_failed_total",
		Help: "Number of calls to the container runtime that failed or timed out.",
	})
	unreadable := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Name: "signal_unreadable_total",
		Help: "Number of failed readings of a signal.",
	}, []string{"signal"})
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info",
		Help: "A constant 1, labeled by evictd's version, revision and Go version.",
	}, []string{"version", "revision", "goversion"})
	info.WithLabelValues(build.Version, build.Revision, build.GoVersion).Set(1)
	kernelOOMKills := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Name: "kernel_oom_kills_total",
		Help: "Number of processes killed by the kernel's OOM killer while evictd traced it, by whether they belonged to a pod.",
	}, []string{"pod"})
	m.kernelOOMKills = [2]prometheus.Counter{kernelOOMKills.WithLabelValues("true"), kernelOOMKills.WithLabelValues("false")}
	m.scores = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace, Name: "oom_score_adj_corrected_total",
		Help: "Number of container processes whose oom_score_adj was corrected (oomScoreAdj: enforce).",
	})
	r.MustRegister(m.scores, m.loop, m.callsFailed, unreadable, info, kernelOOMKills, m.readings, m.notification, m.filesystems, m.kubernetes, m.selfFencing,
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: namespace, Name: "log_dropped_total",
			Help: "Number of log lines dropped because they could not be written, or not fast enough.",
		}, func() float64 { return float64(logDropped()) }),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)

	m.dryRun = gauge("dry_run", "Whether evictd is in dry run: 1 if evictions are only reported, 0 if they are enforced.")
	m.dryRun.Set(1) // nothing is evicted before the mode is known
	m.records = gauge("records", "Number of eviction records kept for evictctl.")
	m.stateSaved = gauge("state_kept", "Whether the last write of the state that survives a restart succeeded (1) or not (0).")
	m.connected = gauge("runtime_connected", "Whether the container runtime responds (1) or not (0).")
	m.configOK = gauge("config_last_reload_successful", "Whether the last load of the configuration succeeded (1) or not (0).")
	m.configTime = gauge("config_last_reload_success_timestamp_seconds", "Time of the last successful load of the configuration, in seconds since the epoch.")
	m.probes = gauges("probe_supported", "Whether the kernel and evictd's privileges allow a feature (1) or not (0); absent if unknown.", "feature")
	pods := gauges("pods", "Number of pods on the node, by whether they may be evicted.", "eligible")
	m.eligible, m.exempt = pods.WithLabelValues("true"), pods.WithLabelValues("false")

	futile := gauges("futile", "Whether evictions can't bring a signal above its threshold (1) or can (0).", "signal")
	conditions := gauges("node_condition", "Whether the node is in a condition (1) or not (0).", "condition")
	m.conditions = map[signal.Condition]prometheus.Gauge{}
	for _, s := range signal.All() {
		m.unreadable[s] = unreadable.WithLabelValues(s.String())
		m.futile[s] = futile.WithLabelValues(s.String())
		m.conditions[s.Condition()] = conditions.WithLabelValues(string(s.Condition()))
	}
	for _, c := range []signal.Condition{signal.SystemMemoryContentionPressure, signal.KubepodsMemoryContentionPressure} {
		m.conditions[c] = conditions.WithLabelValues(string(c))
	}
	m.shutdown.condition = conditions.WithLabelValues(string(signal.NodeShutdown))
	return m
}

// Policy sets the policy whose thresholds are shown. It must not change afterwards.
func (m *Metrics) Policy(p *evict.Policy) { m.readings.policy.Store(p) }

// Observed sets the readings of all signals, and counts those that failed.
func (m *Metrics) Observed(o signal.Observations) {
	m.readings.observed.Store(&o)
	for s := range o {
		if o[s].Status == signal.Unreadable {
			m.unreadable[s].Inc()
		}
	}
}

// Unaccounted sets the memory that is neither free, anonymous, file cache nor
// hugetlb.
func (m *Metrics) Unaccounted(bytes int64) { m.readings.unaccounted.Store(&bytes) }

// Stepped sets conditions and futility from the result of a step of the decision,
// and observes the duration of the loop's iteration.
func (m *Metrics) Stepped(state *evict.State, orders *evict.Orders, took time.Duration) {
	m.loop.Observe(took.Seconds())
	for name, gauge := range m.conditions {
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
	for _, b := range state.Backoffs {
		if b.Delay == 0 && !b.NoVictim { // victims freed too little, but the signal is not futile yet
			continue
		}
		m.futile[b.Signal].Set(1)
		if b.Signal == signal.MemoryAvailable { // the two memory signals share one back-off
			m.futile[signal.AllocatableMemoryAvailable].Set(1)
		}
	}
}

// Evicted counts an eviction. The caller passes each complete record once; pending
// records are not counted.
func (m *Metrics) Evicted(r *evict.Record) { m.evicted.count(r) }

// Records sets the number of records kept.
func (m *Metrics) Records(n int) { m.records.Set(float64(n)) }

// StateSaved sets whether the last write of the state succeeded.
func (m *Metrics) StateSaved(yes bool) { m.stateSaved.Set(boolValue(yes)) }

// Pods sets the number of pods, and of those that may be evicted.
func (m *Metrics) Pods(count, eligible int) {
	m.eligible.Set(float64(eligible))
	m.exempt.Set(float64(count - eligible))
}

// DryRun sets whether evictd is in dry run.
func (m *Metrics) DryRun(on bool) { m.dryRun.Set(boolValue(on)) }

// RuntimeConnected sets whether the container runtime responds.
func (m *Metrics) RuntimeConnected(yes bool) { m.connected.Set(boolValue(yes)) }

// RuntimeCallFailed counts a call to the runtime that failed or timed out.
func (m *Metrics) RuntimeCallFailed() { m.callsFailed.Inc() }

// ConfigLoaded records that a configuration came into force.
func (m *Metrics) ConfigLoaded(at time.Time) {
	m.configOK.Set(1)
	m.configTime.Set(float64(at.UnixMilli()) / 1000)
}

// ConfigRejected records that a configuration was rejected and the old one stays
// in force.
func (m *Metrics) ConfigRejected() { m.configOK.Set(0) }

// Probed sets whether a feature is supported. The caller skips features for which
// the probe has no result. Feature is one of few constants.
func (m *Metrics) Probed(feature string, supported bool) {
	m.probes.WithLabelValues(feature).Set(boolValue(supported))
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
