package status

import (
	"fmt"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/metrics"
)

// FenceStatus describes the fences of evicted pods.
type FenceStatus struct {
	// Set is how many are set now, without Unlifted: those that could not be lifted.
	Set, Unlifted int
	// These count since the start: evictions without a fence because it could not be set, fences
	// that were lifted, limits of fences that another program wrote, and evicted pods of which
	// the kubelet started a container again.
	Failed, Lifted, Changed, Revived uint64
}

// kubernetesStatus returns the status of evictd-kube, its facts and the evictions that it
// reports.
func (b *Backend) kubernetesStatus(now time.Time) *control.Kubernetes {
	s := b.o.Facts.Status(now)
	k := &control.Kubernetes{
		Connected: s.Connected, Software: s.Software, Node: s.Node, Watching: s.Watching, Error: s.Error,
		AgeSeconds: control.Age(s.AsOf, now), Pods: s.Pods, Used: s.Used, Refusals: s.Refusals, CannotReport: s.CannotReport,
		AffinityAdmission: s.AffinityAdmission,
	}
	for _, r := range s.Refused {
		k.Refused = append(k.Refused, control.Refusal(r))
	}
	if b.o.Orders != nil {
		k.Orders = ordersStatus(b.o.Orders(), b.fences(), now)
	}
	if b.o.NodeObject != nil {
		k.NodeObject = nodeObjectStatus(b.o.NodeObject(), now)
	}
	k.Kubelet = b.kubeletStatus(now)
	return k
}

func (b *Backend) fences() FenceStatus {
	if b.o.Fences == nil {
		return FenceStatus{}
	}
	return b.o.Fences()
}

// maxOrders is how many of the pending orders are shown. There can be kube.MaxOrders.
const maxOrders = 20

func ordersStatus(s kube.OrdersStatus, f FenceStatus, now time.Time) *control.Orders {
	o := &control.Orders{
		Pending: len(s.Pending), Unanswered: s.Unanswered, Forbidden: s.Forbidden,
		Begun: s.Begun, Revived: f.Revived, Rejected: s.Rejected, TimedOut: s.TimedOut, Undone: s.Answers[kube.AnswerAsserted],
		Fences: f.Set, FencesUnlifted: f.Unlifted, FencesFailed: f.Failed, FencesChanged: f.Changed, FencesLifted: f.Lifted,
	}
	if oldest := oldestUnanswered(&s); oldest != nil {
		o.UnansweredSeconds = control.Age(oldest.Began, now)
	}
	for _, final := range []bool{false, true} {
		for i := range s.Pending {
			if p := &s.Pending[i]; p.Final == final && len(o.Oldest) < maxOrders {
				o.Oldest = append(o.Oldest, shownOrder(p))
			}
		}
	}
	if len(s.Answers) > 0 {
		o.Answers = map[string]uint64{}
	}
	for answer, n := range s.Answers {
		o.Answers[string(answer)] = n
	}
	return o
}

func shownOrder(p *kube.PendingOrder) control.Order {
	return control.Order{
		Pod: p.Order.Namespace + "/" + p.Order.Name, UID: p.Order.UID, Stage: string(p.Order.Stage), Since: p.WaitsSince(),
		Answer: string(p.Answer), Why: p.Why, Exclusive: p.Order.Exclusive, CgroupGone: p.CgroupGone, Final: p.Final,
		AwaitsProcesses: p.AwaitsProcesses,
	}
}

// oldestUnanswered returns the oldest order without a final answer; nil if there is none.
func oldestUnanswered(s *kube.OrdersStatus) *kube.PendingOrder {
	for i := range s.Pending {
		if !s.Pending[i].Final {
			return &s.Pending[i]
		}
	}
	return nil
}

// unansweredLimit is the age of an order without a final answer from which it is reported.
const unansweredLimit = time.Minute

// ordersWarning returns a warning if an eviction has not been reported to the API server for
// unansweredLimit; "" otherwise.
func ordersWarning(s *kube.OrdersStatus, now time.Time) string {
	oldest, others := late(s, false, now)
	if oldest == nil {
		return ""
	}
	answer := "no answer of evictd-kube"
	if oldest.Answer != "" {
		answer = "last answer " + string(oldest.Answer)
	}
	if oldest.Why != "" {
		answer += ": " + oldest.Why
	}
	return fmt.Sprintf("eviction of %s/%s has not been reported to the API server for %v%s (stage %s; %s)",
		oldest.Order.Namespace, oldest.Order.Name, now.Sub(oldest.Began).Round(time.Second), others, oldest.Order.Stage, answer)
}

// processesWarning returns a warning if evictd-kube does not report an eviction for
// unansweredLimit because killed processes have not ended; "" otherwise.
func processesWarning(s *kube.OrdersStatus, now time.Time) string {
	oldest, others := late(s, true, now)
	if oldest == nil {
		return ""
	}
	return fmt.Sprintf("processes of %s/%s have not ended for %v%s; its eviction is reported after that, because it must not run twice (%s)",
		oldest.Order.Namespace, oldest.Order.Name, now.Sub(oldest.WaitsSince()).Round(time.Second), others, oldest.Order.Exclusive)
}

// late returns the oldest order without a final answer, of those that wait for the end of
// processes or the others, and how many more there are as text. It returns nil if none is as old
// as unansweredLimit.
func late(s *kube.OrdersStatus, awaitsProcesses bool, now time.Time) (oldest *kube.PendingOrder, others string) {
	n := 0
	for i := range s.Pending {
		if p := &s.Pending[i]; !p.Final && p.AwaitsProcesses == awaitsProcesses {
			if n++; n == 1 {
				oldest = p
			}
		}
	}
	if oldest == nil || now.Sub(oldest.WaitsSince()) < unansweredLimit {
		return nil, ""
	}
	if n > 1 {
		others = fmt.Sprintf(", and %d more", n-1)
	}
	return oldest, others
}

// kubernetesWarnings returns warnings about the reports of evictions.
func (b *Backend) kubernetesWarnings(now time.Time) (list []string) {
	add := func(warning string) {
		if warning != "" {
			list = append(list, warning)
		}
	}
	if b.o.NodeObject != nil {
		add(nodeObjectWarning(b.o.NodeObject(), now))
	}
	if b.o.Orders == nil {
		return list
	}
	s := b.o.Orders()
	add(ordersWarning(&s, now))
	add(processesWarning(&s, now))
	if n := b.fences().Unlifted; n > 0 {
		list = append(list, fmt.Sprintf("fences that could not be lifted: %d; no container of these pods can start", n))
	}
	return list
}

// reportNotes explains which evictions are reported to the API server.
func (b *Backend) reportNotes(v *loop.View, now time.Time) (notes []string) {
	if v.Mode.Reporting {
		notes = append(notes, "evictions of the kubelet's pods are reported to the API server")
	}
	if b.o.Orders == nil {
		return notes
	}
	for _, o := range ordersStatus(b.o.Orders(), FenceStatus{}, now).Oldest {
		if o.Final {
			continue
		}
		what := "its eviction has not been reported to the API server"
		if o.AwaitsProcesses {
			what = "the end of its processes is waited for, because it must not run twice,"
		}
		text := fmt.Sprintf("%s: %s for %v (stage %s", o.Pod, what, now.Sub(o.Since).Round(time.Millisecond), o.Stage)
		if o.Answer != "" {
			text += ", last answer " + o.Answer
		}
		if o.Why != "" {
			text += ": " + o.Why
		}
		notes = append(notes, text+")")
	}
	return notes
}

// answers are all answers of evictd-kube, so that each has a series from the start.
var answers = []kube.Answer{
	kube.AnswerMarked, kube.AnswerReported, kube.AnswerAsserted, kube.AnswerDeleted, kube.AnswerGone, kube.AnswerTerminating,
	kube.AnswerForbidden, kube.AnswerDelayed,
}

// KubernetesMetrics returns the state of evictd-kube for a scrape of the metrics.
func (b *Backend) KubernetesMetrics() metrics.Kubernetes {
	now := time.Now()
	facts, fences := b.o.Facts.Status(now), b.fences()
	m := metrics.Kubernetes{
		Connected: facts.Connected, FactsAsOf: facts.AsOf, FactsRefused: facts.Refusals,
		FencesSet: fences.Set, FencesUnlifted: fences.Unlifted, FencesFailed: fences.Failed, FencesChanged: fences.Changed,
		FencesLifted: fences.Lifted, Revived: fences.Revived, Answers: map[string]uint64{},
		AffinityAdmission: map[string]uint64{},
	}
	for _, result := range kube.AffinityResults {
		m.AffinityAdmission[result] = facts.AffinityAdmission[result]
	}
	if b.o.NodeObject != nil {
		nodeObjectMetrics(&m, b.o.NodeObject(), now)
	}
	if b.o.Orders == nil {
		return m
	}
	s := b.o.Orders()
	m.Answered, m.Unanswered = len(s.Pending)-s.Unanswered, s.Unanswered
	m.Orders, m.Rejected, m.TimedOut = s.Begun, s.Rejected, s.TimedOut
	m.Forbidden, m.Undone = s.Forbidden, s.Answers[kube.AnswerAsserted]
	if oldest := oldestUnanswered(&s); oldest != nil {
		m.OldestUnanswered = now.Sub(oldest.Began)
	}
	for _, answer := range answers {
		m.Answers[string(answer)] = s.Answers[answer]
	}
	return m
}

// factsOf describes the facts about a pod; nil if there are none.
func factsOf(facts *kube.Facts, uid string, now time.Time) *control.Facts {
	if facts == nil {
		return nil
	}
	about, ok := facts.Describe(uid)
	if !ok {
		return nil
	}
	f := &control.Facts{Owner: about.Owner, AgeSeconds: control.Age(about.AsOf, now), Refused: about.Refused}
	switch {
	case about.Gone:
		f.Note = "the pod is no longer in the API"
	case about.Reduced:
		f.Note = "labels, tolerations, volumes or single containers are left out: they are not valid, or there is no room for them"
	}
	return f
}

// explainFacts adds to the details of exempt pods why their facts are not used: a pod without
// facts has an unknown priority, which may be why it is exempt.
func (b *Backend) explainFacts(v *loop.View, exempt []evict.Exempt) []evict.Exempt {
	if b.o.Facts == nil {
		return exempt
	}
	pods := make(map[string]*evict.Pod, len(v.Snapshot.Pods))
	for i := range v.Snapshot.Pods {
		pods[v.Snapshot.Pods[i].UID] = &v.Snapshot.Pods[i]
	}
	for i := range exempt {
		x := &exempt[i]
		if pod := pods[x.UID]; pod == nil || !pod.Kubelet || pod.Static {
			continue
		}
		if why := unusedFacts(b.o.Facts, x.UID); why != "" {
			x.Detail = strings.TrimPrefix(x.Detail+"; "+why, "; ")
		}
	}
	return exempt
}

// unusedFacts returns why a pod has no facts that evictd uses; "" if it has.
func unusedFacts(facts *kube.Facts, uid string) string {
	switch about, ok := facts.Describe(uid); {
	case !ok:
		return "no facts of the API server"
	case about.Refused != "":
		return "facts of the API server are refused: " + about.Refused
	}
	return ""
}
