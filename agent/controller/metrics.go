package controller

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/kdump"
	"github.com/evictd/evictd/agent/fence/nodefence"
)

// scrapeTimeout bounds reading the NodeFences from the cache for a scrape.
const scrapeTimeout = 5 * time.Second

var (
	allSteps      = []fence.StepName{fence.Isolation, fence.PowerManagement, fence.Recovery}
	allStatuses   = []fence.Status{fence.New, fence.Running, fence.Done, fence.Error}
	allActions    = []fence.Action{fence.Off, fence.On, fence.Cordon, fence.Uncordon, fence.CleanPods}
	allOutcomes   = []fence.OutcomeKind{fence.Succeeded, fence.Failed, fence.Unknown, fence.Refused}
	allConditions = []string{
		fence.ConditionStormHold, fence.ConditionWaiting, fence.ConditionIdentityMismatch, fence.ConditionProofLost,
		fence.ConditionVerificationFailed, fence.ConditionReleaseStuck, fence.ConditionNodeDidNotReturn, fence.ConditionGaveUp,
		fence.ConditionKdumpWait, fence.ConditionNotDrilled,
	}
	allPowers = []fence.Power{fence.PowerOn, fence.PowerOff, fence.PowerUnknown}
)

// metrics are those of the controller. All values of labels are there from the start.
type metrics struct {
	acts           *prometheus.CounterVec
	readings       *prometheus.CounterVec
	datagrams      *prometheus.CounterVec
	configProblems prometheus.Gauge
	fences         *prometheus.Desc
	conditions     *prometheus.Desc
	held           *prometheus.Desc

	cache client.Reader
}

func newMetrics(cache client.Reader) *metrics {
	m := &metrics{
		acts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "evictd_fence_acts_total", Help: "Ended acts on devices and objects.",
		}, []string{"action", "executor", "outcome"}),
		readings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "evictd_fence_readings_total", Help: "Readings of devices.",
		}, []string{"power"}),
		datagrams: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "evictd_fence_kdump_datagrams_total", Help: "Datagrams to the kdump listener.",
		}, []string{"result"}),
		configProblems: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "evictd_fence_config_problems", Help: "Mistakes in the configuration of fencing, without warnings.",
		}),
		fences: prometheus.NewDesc("evictd_fence_fences", "NodeFences that have not ended.", []string{"step", "status"}, nil),
		conditions: prometheus.NewDesc("evictd_fence_conditions", "NodeFences that have not ended, by true condition.",
			[]string{"condition"}, nil),
		held:  prometheus.NewDesc("evictd_fence_held", "NodeFences that may not act now.", []string{"reason"}, nil),
		cache: cache,
	}
	for _, action := range allActions {
		for _, outcome := range allOutcomes {
			m.act(action, "", outcome)
			if !action.OnObjects() {
				m.act(action, fence.InJob, outcome)
			}
		}
	}
	for _, power := range allPowers {
		m.readings.WithLabelValues(string(power))
	}
	for _, result := range kdump.Results() {
		m.datagrams.WithLabelValues(string(result))
	}
	return m
}

// act returns the counter of an act.
func (m *metrics) act(action fence.Action, executor fence.Executor, outcome fence.OutcomeKind) prometheus.Counter {
	where := "local"
	if executor == fence.InJob {
		where = "job"
	}
	return m.acts.WithLabelValues(string(action), where, string(outcome))
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	m.acts.Describe(ch)
	m.readings.Describe(ch)
	m.datagrams.Describe(ch)
	m.configProblems.Describe(ch)
	ch <- m.fences
	ch <- m.conditions
	ch <- m.held
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.acts.Collect(ch)
	m.readings.Collect(ch)
	m.datagrams.Collect(ch)
	m.configProblems.Collect(ch)
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	list := &nodefence.NodeFenceList{}
	if err := m.cache.List(ctx, list); err != nil {
		return // the cache has not started
	}
	type key struct {
		step   fence.StepName
		status fence.Status
	}
	count, held, conditions := make(map[key]int), make(map[string]int), make(map[string]int)
	for i := range list.Items {
		f := &list.Items[i]
		if finished(f) {
			continue
		}
		count[key{f.Step, f.Status}]++
		for _, c := range f.State.Conditions {
			if c.Status != metav1.ConditionTrue {
				continue
			}
			conditions[c.Type]++
			if c.Type == fence.ConditionStormHold {
				held[c.Reason]++
			}
		}
	}
	for _, reason := range gateReasons {
		ch <- prometheus.MustNewConstMetric(m.held, prometheus.GaugeValue, float64(held[reason]), reason)
	}
	for _, condition := range allConditions {
		n := float64(conditions[condition])
		ch <- prometheus.MustNewConstMetric(m.conditions, prometheus.GaugeValue, n, condition)
	}
	for _, step := range allSteps {
		for _, status := range allStatuses {
			n := float64(count[key{step, status}])
			ch <- prometheus.MustNewConstMetric(m.fences, prometheus.GaugeValue, n, string(step), string(status))
		}
	}
}
