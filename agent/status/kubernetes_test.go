package status

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/metrics"
	"github.com/evictd/evictd/agent/signal"
)

func TestKubernetesStatus(t *testing.T) {
	facts, saved := kube.NewFacts(), `{"format":1,"asOf":"2026-11-22T20:00:00Z","pods":[
		{"uid":"u1","namespace":"default","name":"web","priority":1,"owner":{"kind":"Job","name":"j"},"containers":[{"name":"c"}]},
		{"uid":"u2","namespace":"default","name":"bad","priority":1,"containers":[]}]}`
	now := time.Date(2026, 11, 22, 20, 1, 0, 0, time.UTC)
	if err := facts.Restore([]byte(saved), now); err != nil {
		t.Fatal(err)
	}
	want := &control.Kubernetes{
		AgeSeconds: new(60.0), Pods: 1, Refusals: 1, Refused: control.List[control.Refusal]{{Pod: "default/bad", UID: "u2", Why: "no containers"}},
		CannotReport: facts.CannotReport(),
	}
	b := &Backend{o: Options{Facts: facts}}
	if diff := cmp.Diff(want, b.kubernetesStatus(now)); diff != "" {
		t.Errorf("kubernetesStatus() (-want +got):\n%s", diff)
	}
	b.o.Orders = func() kube.OrdersStatus { return kube.OrdersStatus{} }
	if want.Orders = (&control.Orders{}); !cmp.Equal(want, b.kubernetesStatus(now)) {
		t.Errorf("kubernetesStatus() without orders (-want +got):\n%s", cmp.Diff(want, b.kubernetesStatus(now)))
	}
	for uid, want := range map[string]*control.Facts{
		"u1": {Owner: "Job/j", AgeSeconds: new(60.0)}, "u2": {Refused: "no containers"}, "u3": nil,
	} {
		if diff := cmp.Diff(want, factsOf(facts, uid, now)); diff != "" {
			t.Errorf("factsOf(%s) (-want +got):\n%s", uid, diff)
		}
	}
	if got := factsOf(nil, "u1", now); got != nil {
		t.Errorf("factsOf() without evictd-kube = %+v; want none", got)
	}
}

// The explanation says why a pod without facts that are used is exempt.
func TestExplainFactsOfExemptPods(t *testing.T) {
	facts := kube.NewFacts()
	if err := facts.Restore([]byte(`{"format":1,"pods":[
		{"uid":"used","namespace":"default","name":"used","priority":2000000000,"containers":[{"name":"c"}]},
		{"uid":"refused","namespace":"default","name":"refused","priority":1,"containers":[]}]}`), time.Now()); err != nil {
		t.Fatal(err)
	}
	var v loop.View
	var exempt []evict.Exempt
	for _, name := range []string{"used", "refused", "none", "static", "native"} {
		v.Snapshot.Pods = append(v.Snapshot.Pods, evict.Pod{UID: name, Kubelet: name != "native", Static: name == "static"})
		exempt = append(exempt, evict.Exempt{UID: name, Detail: "a reason"})
	}
	exempt = append(exempt, evict.Exempt{UID: "none"})
	b := Backend{o: Options{Facts: facts}}
	var got []string
	for _, x := range b.explainFacts(&v, exempt) {
		got = append(got, x.UID+": "+x.Detail)
	}
	want := []string{
		"used: a reason", "refused: a reason; facts of the API server are refused: no containers", "none: a reason; no facts of the API server",
		"static: a reason", "native: a reason", "none: no facts of the API server",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("details (-want +got):\n%s", diff)
	}
}

// pendingOrders returns a status with two answered orders and two others, and its time.
func pendingOrders() (kube.OrdersStatus, time.Time) {
	now := time.Date(2026, 11, 22, 20, 1, 0, 0, time.UTC)
	order := func(name string, stage kube.Stage, age time.Duration, answer kube.Answer, final bool, why string) kube.PendingOrder {
		return kube.PendingOrder{
			Order: kube.Order{UID: "u-" + name, Namespace: "default", Name: name, Stage: stage}, Began: now.Add(-age), Answer: answer, Final: final, Why: why,
		}
	}
	return kube.OrdersStatus{
		Pending: []kube.PendingOrder{
			order("reported", kube.StageEnded, time.Hour, kube.AnswerReported, true, ""), order("gone", kube.StageEnded, time.Hour, kube.AnswerGone, true, ""),
			order("web", kube.StageEnded, 90*time.Second, kube.AnswerDelayed, false, "connection refused"), order("new", kube.StageKilled, time.Second, "", false, ""),
		},
		Unanswered: 2, Forbidden: 3, Begun: 4, Rejected: 6, TimedOut: 7, Answers: map[kube.Answer]uint64{kube.AnswerAsserted: 9},
	}, now
}

func TestOrdersStatus(t *testing.T) {
	s, now := pendingOrders()
	got := ordersStatus(s, FenceStatus{Set: 10, Unlifted: 12, Failed: 13, Lifted: 8, Changed: 11, Revived: 5}, now)
	web := control.Order{
		Pod: "default/web", UID: "u-web", Stage: "ended", Since: now.Add(-90 * time.Second), Answer: "delayed", Why: "connection refused",
	}
	if len(got.Oldest) != 4 || !cmp.Equal(got.Oldest[0], web) {
		t.Errorf("oldest orders = %+v; want 4, the first %+v", got.Oldest, web)
	}
	got.Oldest = nil
	want := &control.Orders{
		Pending: 4, Unanswered: 2, UnansweredSeconds: new(90.0), Forbidden: 3, Begun: 4, Revived: 5, Rejected: 6, TimedOut: 7,
		Answers: map[string]uint64{"asserted": 9}, Undone: 9, Fences: 10, FencesUnlifted: 12, FencesFailed: 13, FencesChanged: 11, FencesLifted: 8,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ordersStatus() (-want +got):\n%s", diff)
	}
	for range maxOrders {
		s.Pending = append(s.Pending, s.Pending[3])
	}
	if got := ordersStatus(s, FenceStatus{}, now); got.Pending != 24 || len(got.Oldest) != maxOrders {
		t.Errorf("%d pending orders, %d shown; want 24, %d", got.Pending, len(got.Oldest), maxOrders)
	}
}

// An eviction that is not in the API server after a minute is a warning, whatever was answered.
func TestOrdersWarning(t *testing.T) {
	s, now := pendingOrders()
	for _, tt := range []struct {
		after  time.Duration
		answer kube.Answer
		why    string
		want   string
	}{
		{-31 * time.Second, kube.AnswerDelayed, "", ""},
		{0, kube.AnswerDelayed, "connection refused", "eviction of default/web has not been reported to the API server for 1m30s, and 1 more (stage ended; last answer delayed: connection refused)"},
		{0, kube.AnswerMarked, "", "last answer marked"},
		{0, kube.AnswerAsserted, "", "last answer asserted"},
		{0, "", "", "no answer of evictd-kube"},
		{0, kube.AnswerForbidden, "", ""}, // of web: the other is new
	} {
		s.Pending[2].Answer, s.Pending[2].Final, s.Pending[2].Why = tt.answer, tt.answer == kube.AnswerForbidden, tt.why
		got := ordersWarning(&s, now.Add(tt.after))
		if !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("ordersWarning(%v later, answer %q) = %q; want %q", tt.after, tt.answer, got, tt.want)
		}
	}
}

// Processes that do not end are no fault of evictd-kube.
func TestProcessesWarning(t *testing.T) {
	s, now := pendingOrders()
	for i := range s.Pending {
		if p := &s.Pending[i]; !p.Final {
			p.AwaitsProcesses, p.Order.Exclusive = true, "StatefulSet"
			p.Killed, p.Began = p.Began, p.Began.Add(-10*time.Minute) // after its grace period
		}
	}
	if got := ordersWarning(&s, now); got != "" {
		t.Errorf("ordersWarning() = %q; want none", got)
	}
	want := "processes of default/web have not ended for 1m30s, and 1 more; its eviction is reported after that, because it must not run twice (StatefulSet)"
	if got := processesWarning(&s, now); got != want {
		t.Errorf("processesWarning() = %q; want %q", got, want)
	}
	if got := processesWarning(&s, now.Add(-31*time.Second)); got != "" {
		t.Errorf("processesWarning() within a minute = %q; want none", got)
	}
	b := &Backend{o: Options{Orders: func() kube.OrdersStatus { return s }}}
	if got := b.kubernetesWarnings(now); len(got) != 1 || got[0] != want {
		t.Errorf("kubernetesWarnings() = %q; want %q", got, want)
	}
	got := b.reportNotes(&loop.View{}, now)
	if len(got) != 2 || got[0] != "default/web: the end of its processes is waited for, because it must not run twice, for 1m30s (stage ended, last answer delayed: connection refused)" {
		t.Errorf("reportNotes() = %q; want one for each order without a final answer", got)
	}
	if o := ordersStatus(s, FenceStatus{}, now).Oldest; o[0].Final || !o[0].AwaitsProcesses || !o[2].Final || o[2].AwaitsProcesses {
		t.Errorf("orders = %+v; want the first waiting, and the third final", o)
	}
}

// Late reports and fences that can't be lifted are in the status, in /readyz and in the metrics.
//
// Complexity: checks all that shows one state.
//
//gocyclo:ignore
func TestReports(t *testing.T) {
	s, now := pendingOrders()
	for i := range s.Pending {
		s.Pending[i].Began = s.Pending[i].Began.Add(time.Since(now))
	}
	n := newNode(t, func(o *Options) {
		o.Facts = kube.NewFacts()
		o.Orders, o.Fences = func() kube.OrdersStatus { return s }, func() FenceStatus {
			return FenceStatus{Set: 2, Unlifted: 1, Failed: 4, Lifted: 8, Changed: 3, Revived: 5}
		}
	})
	n.step(t, "evictionHard: {memory.available: 1Gi}\n")
	n.view.Mode = loop.Mode{Reporting: true}
	status := n.Status()
	if warnings := strings.Join(status.Warnings, "\n"); !strings.Contains(warnings, "eviction of default/web") || !strings.Contains(warnings, "could not be lifted: 1;") {
		t.Errorf("warnings = %q; want the late report and the fences", warnings)
	}
	if !status.Mode.Reporting || status.Kubernetes.Orders.Fences != 2 {
		t.Errorf("status = %+v, %+v; want reporting and 2 fences", status.Mode, status.Kubernetes.Orders)
	}
	if result, detail := n.check(t, "reports"); result != metrics.Warn || !strings.Contains(detail, "default/web") {
		t.Errorf("check = %v, %q; want a warning", result, detail)
	}
	e, err := n.Explain(signal.MemoryAvailable)
	if notes := strings.Join(e.Notes, "\n"); err != nil || !strings.Contains(notes, "are reported to the API server") || !strings.Contains(notes, "default/new: its eviction has not been reported to the API server for 1") {
		t.Errorf("notes = %q, %v; want the mode and the pending orders", notes, err)
	}
	m := n.KubernetesMetrics()
	if m.Answered != 2 || m.Unanswered != 2 || m.OldestUnanswered < time.Minute || m.FencesSet != 2 || m.FencesChanged != 3 || m.FencesLifted != 8 || m.FencesUnlifted != 1 || m.FencesFailed != 4 ||
		m.Forbidden != 3 || m.Orders != 4 || m.Revived != 5 || m.Rejected != 6 || m.TimedOut != 7 || m.Undone != 9 || m.Answers["asserted"] != 9 || len(m.Answers) != len(answers) {
		t.Errorf("KubernetesMetrics() = %+v", m)
	}
}
