package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// readings collects the last observations and the thresholds in force. A signal
// that is not observed has no series. Writers only swap pointers.
type readings struct {
	observed    atomic.Pointer[signal.Observations]
	policy      atomic.Pointer[evict.Policy]
	unaccounted atomic.Pointer[int64]
}

// unitDescs are the descriptions of one unit's metrics.
type unitDescs struct{ available, capacity, threshold *prometheus.Desc }

var (
	inBytes = describeUnit("bytes")
	units   = map[signal.Resource]unitDescs{
		signal.Memory:           inBytes,
		signal.EphemeralStorage: inBytes,
		signal.Inodes:           describeUnit("inodes"),
		signal.PIDs:             describeUnit("pids"),
	}
	ratioDesc = prometheus.NewDesc(namespace+"_signal_available_ratio",
		"Available share of a signal's capacity, 0 to 1; negative if more is used.", []string{"signal"}, nil)
	timeDesc = prometheus.NewDesc(namespace+"_signal_observed_timestamp_seconds",
		"Time of the last reading of a signal, in seconds since the epoch.", []string{"signal"}, nil)
	unaccountedDesc = prometheus.NewDesc(namespace+"_memory_unaccounted_bytes",
		"Memory of the kernel itself in bytes: neither free, anonymous, file cache nor hugetlb.", nil, nil)
)

func describeUnit(unit string) unitDescs {
	return unitDescs{
		available: prometheus.NewDesc(namespace+"_signal_available_"+unit,
			"Available amount of a signal in "+unit+".", []string{"signal"}, nil),
		capacity: prometheus.NewDesc(namespace+"_signal_capacity_"+unit,
			"Capacity of a signal in "+unit+", to which percentages refer.", []string{"signal"}, nil),
		threshold: prometheus.NewDesc(namespace+"_signal_threshold_"+unit,
			"Threshold of a signal in "+unit+"; the highest if it has several of a kind.", []string{"signal", "kind"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (r *readings) Describe(ch chan<- *prometheus.Desc) {
	for _, resource := range []signal.Resource{signal.Memory, signal.Inodes, signal.PIDs} {
		d := units[resource]
		ch <- d.available
		ch <- d.capacity
		ch <- d.threshold
	}
	ch <- ratioDesc
	ch <- timeDesc
	ch <- unaccountedDesc
}

// Collect implements prometheus.Collector.
func (r *readings) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if bytes := r.unaccounted.Load(); bytes != nil {
		gauge(unaccountedDesc, float64(*bytes))
	}
	var observed signal.Observations
	if o := r.observed.Load(); o != nil {
		observed = *o
	}
	for _, s := range signal.All() {
		o, unit, name := observed[s], units[s.Resource()], s.String()
		if o.Status != signal.Observed {
			continue
		}
		gauge(unit.available, float64(o.Available), name)
		gauge(unit.capacity, float64(o.Capacity), name)
		if o.Capacity > 0 {
			gauge(ratioDesc, float64(o.Available)/float64(o.Capacity), name)
		}
		if !o.Time.IsZero() {
			gauge(timeDesc, float64(o.Time.UnixMilli())/1000, name)
		}
	}
	p := r.policy.Load()
	if p == nil {
		return
	}
	for _, s := range signal.All() {
		for _, soft := range []bool{false, true} {
			if n, ok := highest(p, s, soft, observed[s]); ok {
				kind := "hard"
				if soft {
					kind = "soft"
				}
				gauge(units[s.Resource()].threshold, float64(n), s.String(), kind)
			}
		}
	}
}

// highest returns the threshold of a kind that a falling signal meets first. A
// signal may have two of a kind, its own and one derived from another signal's.
func highest(p *evict.Policy, s signal.Signal, soft bool, o signal.Observation) (n int64, ok bool) {
	for _, t := range p.Thresholds {
		if t.Signal != s || t.Hard() == soft {
			continue
		}
		if t.Value.IsPercentage() && o.Status != signal.Observed {
			continue // a percentage of an unknown capacity
		}
		n, ok = max(n, t.Value.Amount(o.Capacity)), true
	}
	return n, ok
}
