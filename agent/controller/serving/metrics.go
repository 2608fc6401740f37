package serving

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
)

// Why something of a client was refused: values of a label.
const (
	refusedConnections = "connections" // a connection, since there were too many
	refusedMethod      = "method"
	refusedLength      = "length"     // the header does not say how long the body is
	refusedLarge       = "too_large"  // the body
	refusedBodies      = "overloaded" // too many large bodies are being handled
	refusedClient      = "unauthenticated"
)

var allRefused = []string{refusedConnections, refusedMethod, refusedLength, refusedLarge, refusedBodies, refusedClient}

// Metrics are those of the server. All values of labels are there from the start.
type Metrics struct {
	refusals      *prometheus.CounterVec
	expiry        prometheus.GaugeFunc
	problem       prometheus.Gauge
	clientProblem prometheus.Gauge
}

// NewMetrics returns the metrics of a server with a certificate.
func NewMetrics(c *Certificate) *Metrics {
	m := &Metrics{
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "evictd_webhook_refused_total", Help: "Connections and requests that the webhook server refused.",
		}, []string{"reason"}),
		expiry: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "evictd_webhook_certificate_expiry_timestamp_seconds", Help: "Unix time when the serving certificate expires, 0 without one.",
		}, func() float64 {
			if expiry := c.Expiry(); !expiry.IsZero() {
				return float64(expiry.Unix())
			}
			return 0
		}),
		problem: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "evictd_webhook_certificate_problem", Help: "1 if the serving certificate could not be read or renewed, else 0.",
		}),
		clientProblem: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "evictd_webhook_client_ca_problem", Help: "1 if the authorities of clients could not be read, else 0.",
		}),
	}
	for _, reason := range allRefused {
		m.refusals.WithLabelValues(reason)
	}
	return m
}

func (m *Metrics) refused(reason string) { m.refusals.WithLabelValues(reason).Inc() }

// refuse answers without reading the body, and ends the connection.
func (m *Metrics) refuse(w http.ResponseWriter, reason string, status int) {
	m.refused(reason)
	w.Header().Set("Connection", "close")
	http.Error(w, http.StatusText(status), status)
}

func (m *Metrics) setProblem(problem bool) { setBool(m.problem, problem) }

func (m *Metrics) setClientProblem(problem bool) { setBool(m.clientProblem, problem) }

func setBool(gauge prometheus.Gauge, value bool) {
	if value {
		gauge.Set(1)
	} else {
		gauge.Set(0)
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.refusals.Describe(ch)
	m.expiry.Describe(ch)
	m.problem.Describe(ch)
	m.clientProblem.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.refusals.Collect(ch)
	m.expiry.Collect(ch)
	m.problem.Collect(ch)
	m.clientProblem.Collect(ch)
}
