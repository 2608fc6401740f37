package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// SelfFencing is the state of the watchdog of a node that fences itself.
type SelfFencing struct {
	// Configured is set if a device is to be armed; without it there are no series.
	Configured, Armed bool
	Timeout           time.Duration
	// SinceFed and SinceAccepted are negative if there was none.
	SinceFed, SinceAccepted time.Duration
	// FedBecause says of each reason whether it is the present one; has all reasons.
	FedBecause map[string]bool
	// Peers is set if the other nodes are asked, and PeersListAge the age of their list; negative if there is none.
	Peers        bool
	PeersListAge time.Duration
}

// selfFencing collects the state of self-fencing.
type selfFencing struct {
	state atomic.Pointer[func() SelfFencing]
}

func selfFencingDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_selffence_"+name, help, labels, nil)
}

var (
	armedDesc    = selfFencingDesc("armed", "Whether the watchdog of a node that fences itself is armed (1) or not (0).")
	timeoutDesc  = selfFencingDesc("timeout_seconds", "Timeout of the armed watchdog, in seconds.")
	fedDesc      = selfFencingDesc("fed_age_seconds", "Time since the armed watchdog was fed, in seconds.")
	acceptedDesc = selfFencingDesc("advert_age_seconds", "Time since the last accepted advert of the watchdog was made, in seconds; absent if there was none.")
	becauseDesc  = selfFencingDesc("fed_because", "Whether this is why the armed watchdog is fed (1) or not (0).", "reason")
	peersDesc    = selfFencingDesc("peers", "Whether the watchdog is also fed because of a majority of nodes (1) or not (0).")
	listAgeDesc  = selfFencingDesc("peers_list_age_seconds", "Age of the list of all nodes, in seconds; absent if there is none.")
)

// Describe implements prometheus.Collector.
func (*selfFencing) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{armedDesc, timeoutDesc, fedDesc, acceptedDesc, becauseDesc, peersDesc, listAgeDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (f *selfFencing) Collect(ch chan<- prometheus.Metric) {
	state := f.state.Load()
	if state == nil {
		return
	}
	s := (*state)()
	if !s.Configured {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(armedDesc, boolValue(s.Armed))
	if s.Armed {
		gauge(timeoutDesc, s.Timeout.Seconds())
		gauge(fedDesc, s.SinceFed.Seconds())
	}
	if s.SinceAccepted >= 0 {
		gauge(acceptedDesc, s.SinceAccepted.Seconds())
	}
	for reason, is := range s.FedBecause {
		gauge(becauseDesc, boolValue(is), reason)
	}
	gauge(peersDesc, boolValue(s.Peers))
	if s.Peers && s.PeersListAge >= 0 {
		gauge(listAgeDesc, s.PeersListAge.Seconds())
	}
}

// SelfFencing sets the source of the metrics about self-fencing. Each scrape calls it, at any time.
func (m *Metrics) SelfFencing(state func() SelfFencing) { m.selfFencing.state.Store(&state) }
