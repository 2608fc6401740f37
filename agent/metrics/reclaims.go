package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
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

// Reclaimed takes what a node-level reclaim of a kind, containers, images or memory, did;
// freed is in bytes, 0 where it was for inodes.
func (m *Metrics) Reclaimed(kind string, removed int, freed int64, took time.Duration, dryRun bool) {
	mode := "enforce"
	if dryRun {
		mode = "dry-run"
	}
	m.reclaimed.removed.WithLabelValues(kind, mode).Add(float64(removed))
	m.reclaimed.freed.WithLabelValues(kind).Add(float64(freed))
	m.reclaimed.seconds.WithLabelValues(kind).Add(took.Seconds())
}
