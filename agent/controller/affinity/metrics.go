package affinity

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evictd/evictd/agent/affinity"
)

// The states of violations, values of a label.
const (
	stateWaiting  = "waiting"   // for the debounce
	stateHeld     = "held"      // by a reason of evictd_affinity_held
	stateInFlight = "in_flight" // the eviction was sent
	stateDue      = "due"       // nothing holds it back
)

var (
	allStates   = []string{stateWaiting, stateHeld, stateInFlight, stateDue}
	allOutcomes = []affinity.OutcomeKind{
		affinity.Accepted, affinity.Gone, affinity.Changed, affinity.NotRenewed, affinity.Budgeted, affinity.Throttled, affinity.ManyBudgets,
		affinity.Forbidden, affinity.RequestError,
	}
	allHolds = []affinity.Hold{
		affinity.HoldStatic, affinity.HoldDaemonSet, affinity.HoldCompleted, affinity.HoldTerminating,
		affinity.HoldBare, affinity.HoldNodeNotReady, affinity.HoldNodeStale, affinity.HoldNodeFenced, affinity.HoldNodeGone,
		affinity.HoldNodeDrained, affinity.HoldDebounce, affinity.HoldStorm, affinity.HoldNotCompared, affinity.HoldNoNodeFits, affinity.HoldWorkloadInFlight,
		affinity.HoldWorkloadNotReady, affinity.HoldWorkloadUnknown, affinity.HoldNodeInFlight, affinity.HoldRate, affinity.HoldLoop,
		affinity.HoldRefused, affinity.HoldDryRun,
	}
)

// metrics are those of the execution half. All values of labels are there from the start.
type metrics struct {
	violations, held *prometheus.GaugeVec
	evictions        *prometheus.CounterVec
	invalid          prometheus.Gauge
	problems         prometheus.Gauge
	delay            prometheus.Histogram
}

func newMetrics() *metrics {
	m := &metrics{
		violations: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "evictd_affinity_violations", Help: "Pods that violate the affinity that is enforced during execution.",
		}, []string{"state"}),
		held: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "evictd_affinity_held", Help: "Pods that violate their affinity and are not evicted now.",
		}, []string{"reason"}),
		evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "evictd_affinity_evictions_total", Help: "Ended evictions of pods that violate their affinity.",
		}, []string{"result"}),
		invalid: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "evictd_affinity_invalid_annotations", Help: "Pods with an annotation that does not parse.",
		}),
		problems: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "evictd_affinity_config_problems", Help: "Mistakes in the configuration of affinity.",
		}),
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "evictd_affinity_eviction_delay_seconds", Help: "Time from the first observation of a violation to the accepted eviction.",
			Buckets: []float64{1, 5, 15, 30, 31, 35, 60, 120, 300, 900, 3600},
		}),
	}
	for _, state := range allStates {
		m.violations.WithLabelValues(state)
	}
	for _, hold := range allHolds {
		m.held.WithLabelValues(string(hold))
	}
	for _, kind := range allOutcomes {
		m.evictions.WithLabelValues(string(kind))
	}
	return m
}

func (m *metrics) parts() []prometheus.Collector {
	return []prometheus.Collector{m.violations, m.held, m.evictions, m.invalid, m.problems, m.delay}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.parts() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.parts() {
		c.Collect(ch)
	}
}

// set sets the gauges of violations.
func (m *metrics) set(s *affinity.State) {
	states, held := make(map[string]int), make(map[affinity.Hold]int)
	for _, v := range s.Violations {
		states[stateOf(&v)]++
		if v.Held != "" {
			held[v.Held]++
		}
	}
	for _, state := range allStates {
		m.violations.WithLabelValues(state).Set(float64(states[state]))
	}
	for _, hold := range allHolds {
		m.held.WithLabelValues(string(hold)).Set(float64(held[hold]))
	}
}

func stateOf(v *affinity.Violation) string {
	switch {
	case v.InFlight != "":
		return stateInFlight
	case v.Held == affinity.HoldDebounce:
		return stateWaiting
	case v.Held != "":
		return stateHeld
	}
	return stateDue
}

// ended counts an eviction of a pod that was observed to violate since a time.
func (m *metrics) ended(o *affinity.Outcome, since time.Time) {
	m.evictions.WithLabelValues(string(o.Kind)).Inc()
	if o.Kind == affinity.Accepted && !since.IsZero() {
		m.delay.Observe(o.At.Sub(since).Seconds())
	}
}
