package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// The values of the label mode.
const (
	enforce = "enforce"
	dryRun  = "dry-run"
)

// evictions counts evictions from their records.
type evictions struct {
	total     *prometheus.CounterVec
	failed    prometheus.Counter
	age       *prometheus.HistogramVec
	latency   prometheus.Histogram
	release   prometheus.Histogram
	freed     prometheus.Histogram
	overshoot prometheus.Histogram
}

func newEvictions(r prometheus.Registerer) *evictions {
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets})
		r.MustRegister(h)
		return h
	}
	sizes := prometheus.ExponentialBuckets(1<<20, 4, 10) // 1 MiB to 256 GiB
	e := &evictions{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "evictions_total",
			Help: "Number of completed evictions, by cause (a signal, the pod's local storage limit, a pressure condition, a node shutdown, or its arrival under memory pressure), mode and result.",
		}, []string{"signal", "mode", "result"}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "failed_kills_total",
			Help: "Number of evictions that failed or left processes running.",
		}),
		age: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "eviction_stats_age_seconds",
			Help:    "Age of the usage by which a victim was chosen, in seconds.",
			Buckets: prometheus.ExponentialBuckets(1e-3, 4, 8), // 1 ms to 16 s
		}, []string{"signal"}),
		latency: histogram("kill_latency_seconds", "Time from the first reading below a hard threshold to the first SIGKILL, in seconds.",
			[]float64{100e-6, 250e-6, 500e-6, 1e-3, 1.5e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 1, 10}),
		release: histogram("kill_release_seconds", "Time from a victim's first SIGKILL to the end of its last process, in seconds.",
			prometheus.ExponentialBuckets(1e-3, 2.5, 12)), // 1 ms to 24 s
		freed:     histogram("eviction_freed_bytes", "Memory that a victim freed, in bytes.", sizes),
		overshoot: histogram("eviction_overshoot_bytes", "Largest distance of available memory below its threshold in an episode, in bytes.", sizes),
	}
	r.MustRegister(e.total, e.failed, e.age)
	causes := []string{
		evict.CauseEmptyDirLimit, evict.CausePodLimit, evict.CauseContainerLimit, evict.CauseShutdown, evict.CauseAdmission,
		string(signal.SystemMemoryContentionPressure), string(signal.KubepodsMemoryContentionPressure),
	}
	for _, s := range signal.All() {
		causes = append(causes, s.String())
		e.age.WithLabelValues(s.String())
	}
	for _, cause := range causes {
		for _, result := range []string{evict.ResultKilled, evict.ResultStopped, evict.ResultStuck, evict.ResultFailed, evict.ResultEnded} {
			e.total.WithLabelValues(cause, enforce, result)
		}
		e.total.WithLabelValues(cause, dryRun, evict.ResultDryRun)
	}
	e.total.WithLabelValues(evict.CauseAdmission, enforce, evict.ResultRefused)
	return e
}

// count counts a complete record. A duration with an unknown end is not observed.
func (e *evictions) count(r *evict.Record) {
	if r.Result == evict.ResultPending {
		return
	}
	mode := enforce
	if r.DryRun {
		mode = dryRun
	}
	e.total.WithLabelValues(r.Cause, mode, r.Result).Inc()
	s, isSignal := signal.Parse(r.Cause)
	if isSignal {
		e.age.WithLabelValues(r.Cause).Observe(r.RankingAge.Seconds())
	}
	if r.DryRun {
		return
	}
	if r.Result == evict.ResultStuck || r.Result == evict.ResultFailed {
		e.failed.Inc()
	}
	if r.Hard {
		observeBetween(e.latency, r.CrossingSeen, r.SignalSent)
		observeBetween(e.release, r.SignalSent, r.LastGone)
	}
	if isSignal && s.IsMemory() && r.Result != evict.ResultFailed && r.Result != evict.ResultEnded {
		e.freed.Observe(float64(r.Freed))
		e.overshoot.Observe(float64(r.Overshoot))
	}
}

func observeBetween(h prometheus.Histogram, from, to time.Time) {
	if !from.IsZero() && !to.IsZero() {
		h.Observe(max(0, to.Sub(from).Seconds()))
	}
}
