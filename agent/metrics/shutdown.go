package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evictd/evictd/agent/shutdown"
)

// nodeShutdown are the metrics of graceful node shutdowns.
type nodeShutdown struct {
	began, over prometheus.Gauge
	condition   prometheus.Gauge
	inhibited   prometheus.Gauge
	last        *prometheus.GaugeVec
}

func newNodeShutdown(r prometheus.Registerer) *nodeShutdown {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
		r.MustRegister(g)
		return g
	}
	n := &nodeShutdown{
		began:     gauge("graceful_shutdown_start_time_seconds", "Start time of the last graceful node shutdown in seconds since the epoch; 0 if there was none in this boot."),
		over:      gauge("graceful_shutdown_end_time_seconds", "End or cancel time of the last graceful node shutdown in seconds since the epoch; 0 while it is in progress."),
		inhibited: gauge("shutdown_held_up", "Whether evictd has an inhibitor lock, so that a node shutdown waits for the pods (1) or not (0)."),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "last_shutdown_clean",
			Help: "Whether the node's last shutdown was clean (1) or not (0), by reason; absent if unknown.",
		}, []string{"reason"}),
	}
	r.MustRegister(n.last)
	return n
}

// Shutdown sets the progress of a node shutdown, and whether evictd has an
// inhibitor lock.
func (m *Metrics) Shutdown(s *shutdown.State, inhibited bool) {
	m.shutdown.began.Set(timestamp(s.Began))
	m.shutdown.over.Set(timestamp(s.Ended))
	m.shutdown.condition.Set(boolValue(s.Active()))
	m.shutdown.inhibited.Set(boolValue(inhibited))
}

// LastShutdown sets how the previous boot ended. It has no series if that is
// unknown.
func (m *Metrics) LastShutdown(l shutdown.LastBoot) {
	m.shutdown.last.Reset()
	if l.Clean != nil {
		m.shutdown.last.WithLabelValues(string(l.Reason)).Set(boolValue(*l.Clean))
	}
}

// timestamp returns t in seconds since the epoch, and 0 for the zero time.
func timestamp(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
