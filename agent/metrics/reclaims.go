package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/evictd/evictd/agent/evict"
)

// reclaims are the metrics of node-level reclaim.
type reclaims struct {
	removed, freed, seconds *prometheus.CounterVec
}

// newReclaims registers the metrics with all their series.
func newReclaims(r *prometheus.Registry) *reclaims {
	v := &reclaims{
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "node_reclaim_removed_total",
			Help: "Number of dead containers and images removed from the node, and of pods whose memory was proactively reclaimed, by kind and mode.",
		}, []string{"kind", "mode"}),
		freed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "node_reclaim_freed_bytes_total",
			Help: "Bytes freed by node-level reclaim, by kind.",
		}, []string{"kind"}),
		seconds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "node_reclaim_seconds_total",
			Help: "Time that node-level reclaims took, in seconds; for disks until the filesystem's available space had settled.",
		}, []string{"kind"}),
	}
	for _, kind := range []string{"containers", "images", "memory"} {
		v.seconds.WithLabelValues(kind)
		v.freed.WithLabelValues(kind)
		for _, mode := range []string{"enforce", "dry-run"} {
			v.removed.WithLabelValues(kind, mode)
		}
	}
	r.MustRegister(v.removed, v.freed, v.seconds)
	return v
}

// Reclaimed counts a node-level reclaim.
func (m *Metrics) Reclaimed(r *evict.ReclaimReport) {
	mode := "enforce"
	if r.DryRun {
		mode = "dry-run"
	}
	kind := string(r.Kind)
	m.reclaimed.removed.WithLabelValues(kind, mode).Add(float64(len(r.Removed)))
	if !r.Signal.IsInodes() {
		m.reclaimed.freed.WithLabelValues(kind).Add(float64(r.Freed))
	}
	m.reclaimed.seconds.WithLabelValues(kind).Add(r.Duration.Seconds())
}
