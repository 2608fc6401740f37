package affinity

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evictd/evictd/agent/affinity"
)

// samples returns the values of all metrics by name and label.
func samples(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			out[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetHistogram().GetSampleSum()
		}
	}
	return out
}

func TestMetrics(t *testing.T) {
	m := newMetrics()
	for _, hold := range affinity.Holds() {
		if !slices.Contains(allHolds, hold) {
			t.Errorf("hold %s has no metric", hold)
		}
	}
	if len(allHolds) != len(affinity.Holds()) {
		t.Errorf("%d holds have metrics; want %d", len(allHolds), len(affinity.Holds()))
	}
	before := samples(t, m)
	if want := len(allHolds) + len(allStates) + len(allOutcomes) + 3; len(before) != want {
		t.Errorf("%d series at the start; want %d", len(before), want)
	}
	m.set(&affinity.State{Violations: map[types.UID]affinity.Violation{
		"1": {Held: affinity.HoldDebounce}, "2": {Held: affinity.HoldRate}, "3": {Held: affinity.HoldRate}, "4": {InFlight: "x"}, "5": {},
	}})
	begin := time.Now()
	m.ended(&affinity.Outcome{Kind: affinity.Accepted, At: begin.Add(31 * time.Second)}, begin)
	m.ended(&affinity.Outcome{Kind: affinity.Accepted, At: begin}, time.Time{}) // of a violation that is forgotten
	m.ended(&affinity.Outcome{Kind: affinity.Budgeted, At: begin.Add(time.Hour)}, begin)
	got := samples(t, m)
	for name, want := range map[string]float64{
		"evictd_affinity_violations waiting": 1, "evictd_affinity_violations held": 2, "evictd_affinity_violations in_flight": 1,
		"evictd_affinity_violations due": 1, "evictd_affinity_held Rate": 2, "evictd_affinity_held Debounce": 1, "evictd_affinity_held Storm": 0,
		"evictd_affinity_evictions_total accepted": 2, "evictd_affinity_evictions_total budget": 1,
		"evictd_affinity_eviction_delay_seconds": 31,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s = %v, %t; want %v", name, v, ok, want)
		}
	}
	m.set(&affinity.State{})
	if v := samples(t, m)["evictd_affinity_held Rate"]; v != 0 {
		t.Errorf("evictd_affinity_held{Rate} = %v after the violations ended; want 0", v)
	}
}
