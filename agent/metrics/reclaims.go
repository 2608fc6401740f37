package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/evictd/evictd/agent/evict"
)

// reclaims counts what was removed from the node before a pod had to go.
type reclaims struct {
	removed, freed, seconds *prometheus.CounterVec
}

// newReclaims registers the metrics, with every series that can be.
func newReclaims(r *prometheus.Registry) *reclaims {
	v := &reclaims{
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "node_reclaim_removed_total",
			Help: "Dead containers with their sandboxes, and images, that were removed from the node, and pods whose cold memory was reclaimed, or would have been in a dry run.",
		}, []string{"kind", "mode"}),
		freed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "node_reclaim_freed_bytes_total",
			Help: "Bytes that a filesystem had left more after a node-level reclaim for its space than before, and by how much less memory pods used.",
		}, []string{"kind"}),
		seconds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "node_reclaim_seconds_total",
			Help: "Time that node-level reclaims took, for disks until the filesystem's numbers had settled.",
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

// Reclaimed counts what a node-level reclaim did.
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
	m.reclaimed.seconds.WithLabelValues(kind).Add(r.Took.Seconds())
}
