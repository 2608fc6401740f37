package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evictd/evictd/agent/evict"
)

// filesystems collects the status of the filesystems.
type filesystems struct {
	list atomic.Pointer[func() []evict.FilesystemStatus]
}

var (
	readableDesc = prometheus.NewDesc(namespace+"_filesystem_readable",
		"Whether a filesystem responds in time (1) or not (0).", []string{"filesystem"}, nil)
	readOnlyDesc = prometheus.NewDesc(namespace+"_filesystem_read_only",
		"Whether a filesystem is read-only (1) or not (0); absent if it was never read.", []string{"filesystem"}, nil)
	readDesc = prometheus.NewDesc(namespace+"_filesystem_read_timestamp_seconds",
		"Time of the last reading of a filesystem, in seconds since the epoch; absent if there was none.", []string{"filesystem"}, nil)
)

// Describe implements prometheus.Collector.
func (f *filesystems) Describe(ch chan<- *prometheus.Desc) {
	ch <- readableDesc
	ch <- readOnlyDesc
	ch <- readDesc
}

// Collect implements prometheus.Collector.
func (f *filesystems) Collect(ch chan<- prometheus.Metric) {
	list := f.list.Load()
	if list == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, s := range (*list)() {
		gauge(readableDesc, boolValue(s.Readable), s.Name)
		if !s.At.IsZero() {
			gauge(readOnlyDesc, boolValue(s.ReadOnly), s.Name)
			gauge(readDesc, float64(s.At.UnixMilli())/1000, s.Name)
		}
	}
}

// Filesystems sets the source of the filesystems' metrics. Each scrape calls it, at
// any time.
func (m *Metrics) Filesystems(list func() []evict.FilesystemStatus) { m.filesystems.list.Store(&list) }
