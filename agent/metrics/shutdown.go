package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evictd/evictd/agent/shutdown"
)

// going is what is told of shutdowns of the node.
type going struct {
	began, over prometheus.Gauge
	condition   prometheus.Gauge
	held        prometheus.Gauge
	last        *prometheus.GaugeVec
}

func newGoing(r prometheus.Registerer) *going {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
		r.MustRegister(g)
		return g
	}
	g := &going{
		began: gauge("graceful_shutdown_start_time_seconds", "When the last graceful shutdown of the node began, in seconds since the epoch; 0 where there was none in this boot."),
		over:  gauge("graceful_shutdown_end_time_seconds", "When it ended or was called off, in seconds since the epoch; 0 while it goes on."),
		held:  gauge("shutdown_held_up", "Whether a shutdown of the node would wait for the pods: 1 where evictd holds an inhibitor lock."),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "last_shutdown_clean",
			Help: "Whether the node's last shutdown was clean: 1 where it was, 0 where not, by what is known of it; absent where that can't be told.",
		}, []string{"reason"}),
	}
	r.MustRegister(g.last)
	return g
}

// Shutdown tells how far a shutdown of the node has come, and whether one would
// be held up.
func (m *Metrics) Shutdown(s *shutdown.State, held bool) {
	m.going.began.Set(seconds(s.Began))
	m.going.over.Set(seconds(s.Over))
	m.going.condition.Set(truth(s.Active()))
	m.going.held.Set(truth(held))
}

// LastShutdown tells what became of the boot before this one. What can't be
// told has no series.
func (m *Metrics) LastShutdown(l shutdown.Last) {
	m.going.last.Reset()
	if l.Clean != nil {
		m.going.last.WithLabelValues(string(l.Reason)).Set(truth(*l.Clean))
	}
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
