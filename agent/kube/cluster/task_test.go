package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/evictd/evictd/agent/kube"
)

var decided = time.Date(2026, 11, 23, 0, 0, 0, 5e6, time.UTC)

func TestNext(t *testing.T) {
	mark := func(n string) string { return "2026-11-23T00:00:00.005Z/" + n }
	order := func(stage kube.Stage) kube.Order { return kube.Order{Stage: stage, Decided: decided} }
	exclusive := func(stage kube.Stage, grace int64) kube.Order {
		return kube.Order{Stage: stage, Decided: decided, Exclusive: kube.ExclusiveJob, GraceSeconds: grace}
	}
	unfenced := kube.Order{Stage: kube.StageEnded, Decided: decided, Exclusive: kube.ExclusiveStatefulSet}
	fenced := kube.Order{Stage: kube.StageEnded, Decided: decided, Exclusive: kube.ExclusiveJob, Fenced: true}
	replaced := podState{version: 7, phase: corev1.PodRunning, restarts: true, replaced: true}
	failed := podState{phase: corev1.PodFailed, reason: true, mark: mark("1"), disrupted: true}
	for _, tt := range []struct {
		name string
		task task
		pod  *podState
		want action
	}{
		{"unknown pod", task{order: order(kube.StageKilled)}, nil, action{kind: readPod}},
		{"after a conflict", task{order: order(kube.StageEnded), look: true}, &podState{}, action{kind: readPod}},
		{"ended", task{order: order(kube.StageEnded), ended: true}, nil, action{}},
		{"killed, restarts", task{order: order(kube.StageKilled)}, &podState{restarts: true}, action{}},
		{"killed", task{order: order(kube.StageKilled)}, &podState{}, action{kind: setCondition}},
		{"killed, marked", task{order: order(kube.StageKilled), disrupted: true}, &podState{}, action{answer: kube.AnswerMarked}},
		{"killed, marked before", task{order: order(kube.StageWaiting)}, &podState{disrupted: true}, action{answer: kube.AnswerMarked}},
		{"killed, set back", task{order: order(kube.StageWaiting), disrupted: true, marks: 29, markVersion: 7}, &podState{version: 8}, action{kind: setCondition}},
		{"killed, set back, marked again", task{order: order(kube.StageWaiting), disrupted: true, marks: 2, markVersion: 9}, &podState{version: 9, disrupted: true}, action{answer: kube.AnswerMarked}},
		{"killed, marked, older event", task{order: order(kube.StageKilled), disrupted: true, marks: 1, markVersion: 7}, &podState{version: 6}, action{answer: kube.AnswerMarked}},
		{"killed, set back for an hour", task{order: order(kube.StageWaiting), disrupted: true, marks: 30, markVersion: 7}, &podState{version: 8}, action{answer: kube.AnswerMarked}},
		{"killed, succeeded", task{order: order(kube.StageKilled)}, &podState{phase: corev1.PodSucceeded}, action{}},
		{"killed, deleted", task{order: order(kube.StageKilled)}, &podState{deleting: true}, action{answer: kube.AnswerTerminating, ended: true}},
		{"ended", task{order: order(kube.StageEnded)}, &podState{restarts: true}, action{kind: setPhase, write: 1}},
		{"ended, under another verdict", task{order: order(kube.StageEnded)}, &podState{phase: corev1.PodFailed, terminated: true}, action{kind: setPhase, write: 1}},
		{"ended, the kubelet's own victim", task{order: order(kube.StageEnded)}, &podState{phase: corev1.PodFailed, reason: true, terminated: true},
			action{answer: kube.AnswerTerminating, ended: true, why: "the pod had failed for a reason of its own before its eviction was reported"}},
		{"killed, the kubelet's own victim", task{order: exclusive(kube.StageKilled, 0)}, &podState{phase: corev1.PodFailed, reason: true, terminated: true},
			action{answer: kube.AnswerTerminating, ended: true, why: "the pod had failed for a reason of its own before its eviction was reported"}},
		{"ended, the kubelet's reason, marked before", task{order: order(kube.StageEnded)}, &podState{phase: corev1.PodFailed, reason: true, disrupted: true}, action{kind: setPhase, write: 1}},
		{"ended, succeeded", task{order: order(kube.StageEnded)}, &podState{phase: corev1.PodSucceeded}, action{answer: kube.AnswerTerminating, ended: true, why: "the pod had succeeded before its eviction was reported"}},
		{"ended, of another eviction", task{order: order(kube.StageEnded)}, &podState{mark: "2026-11-23T00:00:00.006Z/3"}, action{kind: setPhase, write: 1}},
		{"ended, tenant's number", task{order: order(kube.StageEnded)}, &podState{mark: mark("-1")}, action{kind: setPhase, write: 1}},
		{"reported before", task{order: order(kube.StageKilled)}, &failed, action{answer: kube.AnswerReported}},
		{"reported, older event", task{order: order(kube.StageEnded), written: 2}, &podState{phase: corev1.PodRunning, mark: mark("1")}, action{answer: kube.AnswerReported}},
		{"undone", task{order: order(kube.StageEnded), written: 1}, &podState{phase: corev1.PodRunning, reason: true, mark: mark("1")}, action{kind: setPhase, write: 2}},
		{"no reason", task{order: order(kube.StageEnded), written: 1}, &podState{phase: corev1.PodFailed, mark: mark("1")}, action{kind: setPhase, write: 2}},
		{"no reason, terminated", task{order: order(kube.StageEnded), written: 1}, &podState{phase: corev1.PodFailed, mark: mark("1"), terminated: true}, action{answer: kube.AnswerReported}},
		{"no reason, terminated, with a sandbox", task{order: order(kube.StageEnded), written: 1}, &podState{phase: corev1.PodFailed, mark: mark("1"), terminated: true, sandbox: true}, action{kind: setPhase, write: 2}},
		{"Running, terminated, with a sandbox", task{order: order(kube.StageEnded), written: 1}, &podState{phase: corev1.PodRunning, mark: mark("1"), terminated: true, sandbox: true}, action{kind: setPhase, write: 2}},
		{"undone the sixth time", task{order: order(kube.StageEnded)}, &podState{phase: corev1.PodRunning, mark: mark("6"), disrupted: true}, action{answer: kube.AnswerReported}},
		{"undone, tenant's annotation", task{order: order(kube.StageEnded), sent: 1, written: 1, version: 7}, &podState{version: 8, phase: corev1.PodRunning, disrupted: true}, action{kind: setPhase, write: 2}},
		{"no reason, tenant's annotation", task{order: order(kube.StageEnded), sent: 1, written: 1, version: 7}, &podState{version: 8, phase: corev1.PodFailed, mark: "x", disrupted: true}, action{kind: setPhase, write: 2}},
		{"undone, tenant's number", task{order: order(kube.StageEnded), sent: 1, written: 1, version: 7}, &podState{version: 8, phase: corev1.PodRunning, mark: mark("6"), disrupted: true}, action{kind: setPhase, write: 2}},
		{"undone, tenant's number, answer lost", task{order: order(kube.StageEnded), sent: 1}, &podState{version: 8, phase: corev1.PodRunning, mark: mark("6"), disrupted: true}, action{kind: setPhase, write: 1}},
		{"tenant's number, in flight", task{order: order(kube.StageEnded), sent: 2, sentAt: 8, written: 1, version: 7}, &podState{version: 8, phase: corev1.PodRunning, mark: mark("6"), disrupted: true}, action{kind: setPhase, write: 2}},
		{"tenant's guess, in flight", task{order: order(kube.StageEnded), sent: 2, sentAt: 8, written: 1, version: 7}, &podState{version: 8, phase: corev1.PodRunning, mark: mark("2"), disrupted: true}, action{kind: setPhase, write: 2}},
		{"undone, answer lost", task{order: order(kube.StageEnded), sent: 2, sentAt: 8, written: 1, version: 7}, &podState{version: 9, phase: corev1.PodRunning, mark: mark("2"), disrupted: true}, action{kind: setPhase, write: 3}},
		{"undone, answer lost, no versions", task{order: order(kube.StageEnded), sent: 2, written: 1}, &podState{phase: corev1.PodRunning, mark: mark("2"), disrupted: true}, action{kind: setPhase, write: 3}},
		{"tenant's annotation, older", task{order: order(kube.StageEnded), sent: 1, written: 1, version: 7}, &podState{version: 6, phase: corev1.PodRunning, disrupted: true}, action{answer: kube.AnswerReported}},
		{"undone the sixth time, tenant's annotation", task{order: order(kube.StageEnded), sent: 6, written: 6, version: 7}, &podState{version: 8, phase: corev1.PodRunning, disrupted: true}, action{answer: kube.AnswerReported}},
		{"reported, deleted by a controller", task{order: order(kube.StageEnded)}, &podState{deleting: true, phase: corev1.PodFailed, reason: true, mark: mark("1"), disrupted: true}, action{answer: kube.AnswerReported}},
		{"no reason, deleted by a controller", task{order: order(kube.StageEnded)}, &podState{deleting: true, phase: corev1.PodFailed, mark: mark("1"), disrupted: true}, action{kind: setPhase, write: 2}},
		{"no reason, deleted, terminated", task{order: order(kube.StageEnded)}, &podState{deleting: true, phase: corev1.PodFailed, mark: mark("1"), disrupted: true, terminated: true}, action{answer: kube.AnswerReported, ended: true}},
		{"no reason, deleted, terminated, with a sandbox", task{order: order(kube.StageEnded)}, &podState{deleting: true, phase: corev1.PodFailed, mark: mark("1"), disrupted: true, terminated: true, sandbox: true}, action{kind: setPhase, write: 2}},
		{"reported, deleted, terminated, with a sandbox", task{order: order(kube.StageEnded)}, &podState{deleting: true, phase: corev1.PodFailed, reason: true, mark: mark("1"), disrupted: true, terminated: true, sandbox: true}, action{answer: kube.AnswerReported}},
		{"no reason the sixth time, deleted", task{order: order(kube.StageEnded)}, &podState{deleting: true, phase: corev1.PodFailed, mark: mark("6"), disrupted: true}, action{answer: kube.AnswerReported}},
		{"exclusive, killed, deleted, marked by another client", task{order: exclusive(kube.StageKilled, 0), written: 1}, &podState{deleting: true, phase: corev1.PodRunning, mark: mark("1"), disrupted: true}, action{answer: kube.AnswerReported}},
		{"replaced", task{order: fenced}, &replaced, action{kind: setPhase, write: 1, plain: true}},
		{"replaced, without a fence", task{order: order(kube.StageEnded)}, &replaced, action{kind: setPhase, write: 1}},
		{"replaced, no version", task{order: fenced}, &podState{phase: corev1.PodRunning, restarts: true, replaced: true}, action{kind: setPhase, write: 1}},
		{"replaced, stopping", task{order: kube.Order{Stage: kube.StageStopping, Decided: decided, Fenced: true, GraceSeconds: 5}}, &replaced, action{kind: setPhase, write: 1}},
		{"not replaced", task{order: fenced}, &podState{version: 7, phase: corev1.PodRunning, restarts: true}, action{kind: setPhase, write: 1}},
		{"replaced, reported before a restart", task{order: fenced}, &podState{version: 8, phase: corev1.PodFailed, reason: true, disrupted: true, replaced: true}, action{kind: setPhase, write: 1, plain: true}},
		{"plain", task{order: fenced, written: 1, plain: true}, &podState{version: 8, phase: corev1.PodFailed, reason: true, disrupted: true, replaced: true}, action{kind: setPhase, write: 2, annotate: true}},
		{"plain, undone", task{order: fenced, written: 1, plain: true}, &podState{version: 8, phase: corev1.PodRunning, disrupted: true, replaced: true}, action{kind: setPhase, write: 2}},
		{"plain, no reason, deleted", task{order: fenced, written: 1, plain: true}, &podState{version: 8, phase: corev1.PodFailed, disrupted: true, replaced: true, deleting: true}, action{kind: setPhase, write: 2}},
		{"plain, deleted", task{order: fenced, written: 1, plain: true}, &podState{version: 8, phase: corev1.PodFailed, reason: true, disrupted: true, replaced: true, deleting: true}, action{answer: kube.AnswerReported}},
		{"plain, ended by the kubelet", task{order: fenced, written: 1, plain: true}, &podState{version: 8, phase: corev1.PodFailed, disrupted: true, replaced: true, terminated: true}, action{answer: kube.AnswerReported}},
		{"plain, noticed by the kubelet", task{order: fenced, written: 1, plain: true}, &podState{version: 8, phase: corev1.PodRunning, disrupted: true, replaced: true, terminated: true}, action{kind: setPhase, write: 2, annotate: true}},
		{"plain, annotated", task{order: fenced, written: 1, plain: true}, &podState{version: 9, phase: corev1.PodFailed, reason: true, mark: mark("2"), disrupted: true, replaced: true}, action{answer: kube.AnswerReported}},
		{"ended, mark without the condition", task{order: order(kube.StageEnded)}, &podState{mark: mark("6")}, action{kind: setPhase, write: 1}},
		{"exclusive, killed, marked by another client", task{order: exclusive(kube.StageKilled, 0)}, &podState{phase: corev1.PodRunning, mark: mark("1"), disrupted: true}, action{answer: kube.AnswerMarked}},
		{"exclusive, waiting, marked by another client", task{order: exclusive(kube.StageWaiting, 0)}, &podState{restarts: true, mark: mark("1"), disrupted: true}, action{}},
		{"exclusive, killed, written", task{order: exclusive(kube.StageKilled, 0), written: 1}, &podState{phase: corev1.PodRunning, restarts: true, mark: mark("1"), disrupted: true}, action{}},
		{"stopping", task{order: kube.Order{Stage: kube.StageStopping, Decided: decided, GraceSeconds: 5}}, &podState{restarts: true}, action{kind: setPhase, write: 1}},
		{"StatefulSet, unfenced", task{order: unfenced}, &podState{}, action{kind: setCondition}},
		{"StatefulSet, unfenced, marked", task{order: unfenced}, &podState{disrupted: true}, action{kind: deletePod, grace: 1}},
		{"StatefulSet, unfenced, deleted before a restart", task{order: unfenced}, &podState{deleting: true, disrupted: true}, action{answer: kube.AnswerReported, ended: true}},
		{"StatefulSet, fenced", task{order: kube.Order{Stage: kube.StageEnded, Decided: decided, Exclusive: kube.ExclusiveStatefulSet, Fenced: true}}, &podState{}, action{kind: setPhase, write: 1}},
		{"other controller, unfenced", task{order: exclusive(kube.StageEnded, 0)}, &podState{}, action{kind: setPhase, write: 1}},
		{"stopping, exclusive", task{order: exclusive(kube.StageStopping, 5)}, &podState{}, action{kind: setCondition}},
		{"stopping, exclusive, marked", task{order: exclusive(kube.StageStopping, 5)}, &podState{disrupted: true}, action{kind: deletePod, grace: 5}},
		{"never with grace period 0", task{order: exclusive(kube.StageStopping, 0)}, &podState{disrupted: true}, action{kind: deletePod, grace: 1}},
		{"stopping, exclusive, deleted", task{order: exclusive(kube.StageEnded, 5), deletion: kube.AnswerReported}, &podState{deleting: true}, action{answer: kube.AnswerReported}},
		{"stopping, exclusive, deleted before a restart", task{order: exclusive(kube.StageEnded, 5)}, &podState{deleting: true, disrupted: true}, action{answer: kube.AnswerReported, ended: true}},
		{"large", task{order: order(kube.StageEnded), large: true}, &podState{}, action{kind: deletePod, grace: 1}},
		{"large, stopping", task{order: kube.Order{Stage: kube.StageStopping, Decided: decided, GraceSeconds: 30}, large: true}, &podState{}, action{kind: deletePod, grace: 30}},
		{"large, stopping, exclusive", task{order: exclusive(kube.StageStopping, 30), large: true}, &podState{}, action{kind: deletePod, grace: 30}},
		{"large, killed", task{order: order(kube.StageKilled), large: true}, &podState{}, action{kind: deletePod, grace: 1}},
		{"large, exclusive, killed", task{order: exclusive(kube.StageKilled, 30), large: true}, &podState{}, action{}},
		{"large, exclusive, waiting", task{order: exclusive(kube.StageWaiting, 0), large: true}, &podState{}, action{}},
		{"large, ended after its grace period", task{order: exclusive(kube.StageEnded, 30), large: true}, &podState{}, action{kind: deletePod, grace: 1}},
		{"large, deleted", task{order: order(kube.StageEnded), large: true, deletion: kube.AnswerDeleted}, &podState{}, action{answer: kube.AnswerDeleted}},
	} {
		if diff := cmp.Diff(tt.want, tt.task.next(tt.pod), cmp.AllowUnexported(action{})); diff != "" {
			t.Errorf("%s: next() (-want +got):\n%s", tt.name, diff)
		}
	}
	if got := (&task{order: order(kube.StageEnded)}).next(&podState{mirror: "hash"}); got.answer != kube.AnswerForbidden || !got.ended {
		t.Errorf("mirror pod: next() = %+v; want that it is forbidden", got)
	}
}

// A pod has a sandbox if the kubelet says so, and only then: without the condition its verdict stays.
func TestSandbox(t *testing.T) {
	for _, tt := range []struct {
		name      string
		condition corev1.PodConditionType
		status    corev1.ConditionStatus
		want      bool
	}{
		{"ready", corev1.PodReadyToStartContainers, corev1.ConditionTrue, true},
		{"stopped", corev1.PodReadyToStartContainers, corev1.ConditionFalse, false},
		{"unknown", corev1.PodReadyToStartContainers, corev1.ConditionUnknown, false},
		{"another condition", corev1.PodScheduled, corev1.ConditionTrue, false},
	} {
		s := stateOf(apiPod("0", func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: tt.condition, Status: tt.status}}
		}))
		if s.sandbox != tt.want || s.disrupted {
			t.Errorf("%s: stateOf() = %+v; want sandbox %t", tt.name, s, tt.want)
		}
	}
}

func TestTerminated(t *testing.T) {
	ended := corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137}}}
	running := corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	waiting := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}}
	backoff := corev1.ContainerStatus{RestartCount: 1, State: waiting.State}
	type list = []corev1.ContainerStatus
	for name, tt := range map[string]struct {
		phase                 corev1.PodPhase
		init, main, ephemeral list
		want                  bool
	}{
		"no statuses":                    {corev1.PodFailed, nil, nil, nil, false},
		"terminated":                     {corev1.PodFailed, nil, list{ended}, nil, true},
		"terminated, still running":      {corev1.PodRunning, nil, list{ended}, nil, true},
		"running":                        {corev1.PodFailed, nil, list{running}, nil, false},
		"sidecar runs":                   {corev1.PodFailed, list{running}, list{ended}, nil, false},
		"ephemeral runs":                 {corev1.PodFailed, nil, list{ended}, list{running}, false},
		"ended in its initialization":    {corev1.PodFailed, list{ended}, list{waiting}, nil, true},
		"initializing":                   {corev1.PodPending, list{ended}, list{waiting}, nil, false},
		"waits to be started again":      {corev1.PodFailed, nil, list{backoff}, nil, false},
		"never started, none terminated": {corev1.PodFailed, nil, list{waiting}, nil, false},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, 1)}}
		p.Status = corev1.PodStatus{Phase: tt.phase, InitContainerStatuses: tt.init, ContainerStatuses: tt.main, EphemeralContainerStatuses: tt.ephemeral}
		if got := terminated(p); got != tt.want {
			t.Errorf("%s: terminated() = %t; want %t", name, got, tt.want)
		}
	}
}

func TestOutcome(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	answer := func(code int, reason metav1.StatusReason, message string, causes ...metav1.StatusCause) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: int32(code), Reason: reason, Message: message, Details: &metav1.StatusDetails{Causes: causes}}}
	}
	proxy := func(code int) error {
		return apierrors.NewGenericServerResponse(code, "PATCH", pods, "a", "from a proxy", 0, true)
	}
	const policy = "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"
	for name, tt := range map[string]struct {
		err  error
		want outcome
	}{
		"done":                       {nil, succeeded},
		"no answer":                  {errors.New("connection refused"), later},
		"not found":                  {apierrors.NewNotFound(pods, "a"), podGone},
		"not found by a proxy":       {proxy(404), later},
		"conflict":                   {apierrors.NewConflict(pods, "a", errors.New("x")), conflict},
		"unauthorized":               {apierrors.NewUnauthorized("x"), later},
		"forbidden":                  {apierrors.NewForbidden(pods, "a", errors.New("x")), forbidden},
		"forbidden by a proxy":       {proxy(403), later},
		"policy, 422":                {answer(422, metav1.StatusReasonInvalid, policy, metav1.StatusCause{Message: policy}), refused},
		"policy, 403":                {answer(403, metav1.StatusReasonForbidden, policy), refused},
		"policy, 413":                {answer(413, metav1.StatusReasonRequestEntityTooLarge, policy), refused},
		"webhook, 400":               {answer(400, "", `admission webhook "w.example.com" denied the request: no`), refused},
		"webhook, 409":               {answer(409, "", `admission webhook "w.example.com" denied the request: no`), refused},
		"webhook, 503":               {answer(503, "", `admission webhook "w.example.com" denied the request: later`), later},
		"webhook away":               {answer(500, metav1.StatusReasonInternalError, `failed calling webhook "w.example.com"`), later},
		"too many requests":          {apierrors.NewTooManyRequests("x", 1), later},
		"internal error":             {apierrors.NewInternalError(errors.New("x")), later},
		"unavailable":                {apierrors.NewServiceUnavailable("x"), later},
		"other UID":                  {answer(422, metav1.StatusReasonInvalid, "x", metav1.StatusCause{Type: "FieldValueInvalid", Field: "metadata.uid"}), podGone},
		"annotations":                {answer(422, metav1.StatusReasonInvalid, "x", metav1.StatusCause{Type: "FieldValueTooLong", Field: "metadata.annotations"}), tooLarge},
		"annotations, another cause": {answer(422, metav1.StatusReasonInvalid, "x", metav1.StatusCause{Type: "FieldValueInvalid", Field: "metadata.annotations"}), refused},
		"another field":              {answer(422, metav1.StatusReasonInvalid, "x", metav1.StatusCause{Type: "FieldValueInvalid", Field: "status.phase"}), refused},
		"request entity":             {apierrors.NewRequestEntityTooLargeError("x"), tooLarge},
		"etcd":                       {answer(500, "", "etcdserver: request is too large"), tooLarge},
		"method":                     {answer(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "x"), refused},
	} {
		if got := outcomeOf(tt.err); got != tt.want {
			t.Errorf("%s: outcomeOf(%v) = %d; want %d", name, tt.err, got, tt.want)
		}
		if tt.err != nil {
			if got := outcomeOf(fmt.Errorf("wrapped: %w", tt.err)); got != tt.want {
				t.Errorf("%s, wrapped: %d; want %d", name, got, tt.want)
			}
		}
	}
}

// A missing right is looked for once, not after each 403.
func TestForbiddenChecksOnce(t *testing.T) {
	r := NewReporter("n1", &orders{}, slog.New(slog.DiscardHandler))
	r.Order(&kube.Order{ID: "a"})
	now, c := time.Now(), &connection{&client{}, func(error) {}}
	refuse := func(now time.Time) {
		r.finish(r.tasks["a"], action{kind: setPhase, write: 1}, c, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "a", errors.New("x")), now)
	}
	if refuse(now); !r.checkAfter.Equal(now) {
		t.Error("no check after 403")
	}
	later := now.Add(checkInterval) // all rights are there
	r.checkAfter = later
	if refuse(now.Add(time.Second)); !r.checkAfter.Equal(later) {
		t.Error("checked again after another 403")
	}
	at := now.Add(r.ForbiddenDelay)
	if refuse(at); !r.checkAfter.Equal(at) {
		t.Error("not checked after the delay")
	}
}
