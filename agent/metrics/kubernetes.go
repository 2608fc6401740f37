package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Kubernetes is the state of evictd-kube, of the reports of evictions and of the fences of
// evicted pods. Numbers without another remark count since the start.
type Kubernetes struct {
	Connected    bool
	FactsAsOf    time.Time // when the API server last confirmed the facts; zero if unknown
	FactsRefused uint64

	// Answered and Unanswered are the pending orders with and without a final answer, and
	// OldestUnanswered is the age of the oldest without; 0 if there is none.
	Answered, Unanswered int
	OldestUnanswered     time.Duration
	// Forbidden is the number of pods that are exempt because their report was refused.
	Forbidden                           int
	Orders, Revived, Rejected, TimedOut uint64
	Answers                             map[string]uint64 // by answer; has all answers
	Undone                              uint64
	// AffinityAdmission has the pods that evictd-kube has compared with the node, since its start, by result; has all
	// results.
	AffinityAdmission map[string]uint64

	FencesSet, FencesUnlifted                 int // now
	FencesFailed, FencesChanged, FencesLifted uint64

	// ConditionsReported says of each condition whether the Node object has it as true, and
	// ConditionsUnwritten for how long the Node lacks what evictd wants; 0 if it does not.
	ConditionsReported  map[string]bool
	ConditionsUnwritten time.Duration
}

// kubernetes collects the state of evictd-kube. It has no series if none is configured.
type kubernetes struct {
	state atomic.Pointer[func() Kubernetes]
}

func kubernetesDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_"+name, help, labels, nil)
}

var (
	kubeConnectedDesc = kubernetesDesc("kube_connected", "Whether evictd-kube is connected (1) or not (0).")
	factsAgeDesc      = kubernetesDesc("kube_facts_age_seconds", "Time since the API server last confirmed the facts about pods, in seconds; absent if unknown.")
	factsRefusedDesc  = kubernetesDesc("kube_facts_refused_total", "Number of facts about pods that were refused.")
	pendingDesc       = kubernetesDesc("kube_orders_pending", "Number of evictions that evictd-kube has to report or whose pod is not gone yet, by whether it has given its final answer.", "answered")
	oldestDesc        = kubernetesDesc("kube_unanswered_order_age_seconds", "Age of the oldest eviction that evictd-kube has not reported or whose processes have not ended, in seconds; 0 if there is none.")
	forbiddenDesc     = kubernetesDesc("kube_forbidden_pods", "Number of pods that are exempt because the API server refused the report of an eviction, also of those that are gone; at most 1,000.")
	ordersDesc        = kubernetesDesc("kube_orders_total", "Number of evictions that evictd-kube was ordered to report.")
	rejectedDesc      = kubernetesDesc("kube_orders_rejected_total", "Number of evictions that were not ordered to be reported because too many were pending.")
	timedOutDesc      = kubernetesDesc("kube_orders_timed_out_total", "Number of evictions given up after kube.fenceTimeout.")
	revivedDesc       = kubernetesDesc("kube_revived_pods_total", "Number of evicted pods of which the kubelet started a container again.")
	answersDesc       = kubernetesDesc("kube_answers_total", "Number of answers of evictd-kube, by answer.", "answer")
	undoneDesc        = kubernetesDesc("kube_undone_reports_total", "Number of reports that the kubelet had undone and evictd-kube wrote again.")
	affinityDesc      = kubernetesDesc("kube_affinity_admission_total", "Number of pods with a node affinity during execution that came to the node, by what has become of them.", "result")
	fencesDesc        = kubernetesDesc("fences_set", "Number of evicted pods that are kept from running again.")
	fencesChangedDesc = kubernetesDesc("fences_changed_total", "Number of times another program changed the limits that keep an evicted pod from running again.")
	fencesLiftedDesc  = kubernetesDesc("fences_lifted_total", "Number of times evictd allowed an evicted pod to run again.")
	unliftedDesc      = kubernetesDesc("fences_unlifted", "Number of pods that are kept from running because their fence could not be lifted.")
	fencesFailedDesc  = kubernetesDesc("fences_failed_total", "Number of evicted pods that could not be kept from running again.")
	conditionDesc     = kubernetesDesc("node_condition_reported", "Whether evictd-kube has last written the condition to the Node object as true (1) or not (0).", "condition")
	unwrittenDesc     = kubernetesDesc("kube_node_unwritten_seconds", "Time for which the Node object has lacked conditions, taints or heartbeats that evictd wants, or had ones that it does not, in seconds; 0 if neither.")
)

// Describe implements prometheus.Collector.
func (*kubernetes) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		kubeConnectedDesc, factsAgeDesc, factsRefusedDesc, pendingDesc, oldestDesc, forbiddenDesc, ordersDesc, rejectedDesc, timedOutDesc,
		revivedDesc, answersDesc, undoneDesc, affinityDesc, fencesDesc, fencesChangedDesc, fencesLiftedDesc,
		unliftedDesc, fencesFailedDesc, conditionDesc, unwrittenDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (k *kubernetes) Collect(ch chan<- prometheus.Metric) {
	state := k.state.Load()
	if state == nil {
		return
	}
	s := (*state)()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge(kubeConnectedDesc, boolValue(s.Connected))
	if !s.FactsAsOf.IsZero() {
		gauge(factsAgeDesc, max(0, time.Since(s.FactsAsOf).Seconds()))
	}
	counter(factsRefusedDesc, s.FactsRefused)
	gauge(pendingDesc, float64(s.Answered), "true")
	gauge(pendingDesc, float64(s.Unanswered), "false")
	gauge(oldestDesc, s.OldestUnanswered.Seconds())
	gauge(forbiddenDesc, float64(s.Forbidden))
	counter(ordersDesc, s.Orders)
	counter(rejectedDesc, s.Rejected)
	counter(timedOutDesc, s.TimedOut)
	counter(revivedDesc, s.Revived)
	for answer, n := range s.Answers {
		counter(answersDesc, n, answer)
	}
	counter(undoneDesc, s.Undone)
	for result, n := range s.AffinityAdmission {
		counter(affinityDesc, n, result)
	}
	gauge(fencesDesc, float64(s.FencesSet))
	counter(fencesChangedDesc, s.FencesChanged)
	counter(fencesLiftedDesc, s.FencesLifted)
	gauge(unliftedDesc, float64(s.FencesUnlifted))
	counter(fencesFailedDesc, s.FencesFailed)
	for condition, reported := range s.ConditionsReported {
		gauge(conditionDesc, boolValue(reported), condition)
	}
	gauge(unwrittenDesc, s.ConditionsUnwritten.Seconds())
}

// Kubernetes sets the source of the metrics about evictd-kube. Each scrape calls it, at any
// time.
func (m *Metrics) Kubernetes(state func() Kubernetes) { m.kubernetes.state.Store(&state) }
