package extender

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// result is how a request ended: a value of the label of the requests.
type result string

const (
	resultUnrestricted result = "unrestricted" // no annotation, or a DaemonSet's
	resultMatched      result = "matched"      // at least one node
	resultNone         result = "no-node"
	resultInvalid      result = "invalid-annotation"
	resultRefused      result = "bad-request"
	resultTooLarge     result = "too-large"
	resultBusy         result = "busy"
	resultNotReady     result = "not-ready"
	resultAborted      result = "aborted" // the peer went away, or was too slow
	resultPanic        result = "panic"
)

var allResults = []result{
	resultUnrestricted, resultMatched, resultNone, resultInvalid, resultRefused, resultTooLarge, resultBusy, resultNotReady,
	resultAborted, resultPanic,
}

type metrics struct {
	requests *prometheus.CounterVec
	duration prometheus.Histogram
	unknown  prometheus.Counter
	whole    prometheus.Counter
}

func newMetrics() *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "evictd_affinity_extender_requests_total", Help: "Requests of schedulers to the extender.",
		}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "evictd_affinity_extender_duration_seconds",
			Help:    "Time from the headers of a scheduler's request to its answer.",
			Buckets: []float64{.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .5, 5},
		}),
		unknown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "evictd_affinity_extender_unknown_nodes_total", Help: "Nodes that a scheduler asked about and that the cache did not have.",
		}),
		whole: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "evictd_affinity_extender_whole_nodes_total", Help: "Requests with whole Nodes in place of names.",
		}),
	}
	for _, r := range allResults {
		m.requests.WithLabelValues(string(r))
	}
	return m
}

// Collectors returns the metrics.
func (h *Handler) Collectors() []prometheus.Collector {
	return []prometheus.Collector{h.metrics.requests, h.metrics.duration, h.metrics.unknown, h.metrics.whole}
}

func (m *metrics) ended(r result, took time.Duration) {
	m.requests.WithLabelValues(string(r)).Inc()
	m.duration.Observe(took.Seconds())
}
