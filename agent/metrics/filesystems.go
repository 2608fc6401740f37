package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evictd/evictd/agent/evict"
)

// filesystems collects how the filesystems fare when it is scraped.
type filesystems struct {
	list atomic.Pointer[func() []evict.FilesystemStatus]
}

var (
	readableDesc = prometheus.NewDesc(namespace+"_filesystem_readable",
		"Whether a filesystem answers in time: 1 where it does.", []string{"filesystem"}, nil)
	readOnlyDesc = prometheus.NewDesc(namespace+"_filesystem_read_only",
		"Whether a filesystem can't be written to: 1 where it can't; absent where it was never read.", []string{"filesystem"}, nil)
	readDesc = prometheus.NewDesc(namespace+"_filesystem_read_timestamp_seconds",
		"When a filesystem was last read, in seconds since the epoch; absent where it never was.", []string{"filesystem"}, nil)
)

// Describe sends the descriptions of what Collect may send.
func (f *filesystems) Describe(ch chan<- *prometheus.Desc) {
	ch <- readableDesc
	ch <- readOnlyDesc
	ch <- readDesc
}

// Collect sends what is known.
func (f *filesystems) Collect(ch chan<- prometheus.Metric) {
	list := f.list.Load()
	if list == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, s := range (*list)() {
		gauge(readableDesc, truth(s.Readable), s.Name)
		if !s.At.IsZero() {
			gauge(readOnlyDesc, truth(s.ReadOnly), s.Name)
			gauge(readDesc, float64(s.At.UnixMilli())/1000, s.Name)
		}
	}
}

// Filesystems tells where to ask for the filesystems. The function may be called
// at any time.
func (m *Metrics) Filesystems(list func() []evict.FilesystemStatus) { m.filesystems.list.Store(&list) }
