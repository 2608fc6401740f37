package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/evictd/evictd/agent/kube"
)

// An API server that sends events and answers no writes does not get these more often.
func TestEventsKeepBackoff(t *testing.T) {
	t.Parallel()
	const pods = 20
	o := startOrders(t, pods, func(*orders, int, http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler)
	})
	for i := range pods {
		o.order(i, kube.StageEnded)
	}
	for range 60 {
		o.api.change(watch.Modified, apiPod("0"))
		o.api.change(watch.Deleted, apiPod("other"))
		time.Sleep(50 * time.Millisecond)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.requests); n > 8*pods {
		t.Errorf("%d requests for %d orders in 3s; want at most 8 each", n, pods)
	}
}

// A write that always conflicts with others is repeated with a back-off and reported to evictd.
func TestConflictsBackOff(t *testing.T) {
	t.Parallel()
	o := startOrders(t, 1, func(_ *orders, _ int, w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			answer(w, apiPod("0"))
			return
		}
		status(w, http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified")
	})
	id := o.order(0, kube.StageEnded)
	o.until("delay", func() bool { return o.has(id, kube.AnswerDelayed) })
	time.Sleep(2 * time.Second)
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.requests); n > 15 {
		t.Errorf("%d requests in 2s: %q; want at most 15", n, o.requests)
	}
}

// The answer that an eviction was reported stands if it can't be reported again.
func TestRefusedAssertion(t *testing.T) {
	t.Parallel()
	o := startOrders(t, 1, func(_ *orders, number int, w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch && number > 1 {
			status(w, http.StatusForbidden, metav1.StatusReasonForbidden, `admission webhook "w" denied the request: no`)
			return
		}
		done(w)
	})
	id := o.order(0, kube.StageEnded)
	o.until("report", func() bool { return o.has(id, kube.AnswerReported) })
	o.observe(apiPod("0", written("1")))
	o.until("end", func() bool {
		o.Reporter.mu.Lock()
		defer o.Reporter.mu.Unlock()
		return o.tasks[id].ended
	})
	if o.has(id, kube.AnswerForbidden) || strings.Contains(o.log.String(), "does not evict it any more") {
		t.Errorf("answered that it is forbidden after it was reported; log:\n%s", o.log.String())
	}
	if !strings.Contains(o.log.String(), "reported again") {
		t.Errorf("log:\n%s\nwant that it can't be reported again", o.log.String())
	}
}

// written returns a change of a pod that has a write of the report, without its phase.
func written(number string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{annotationEvicted: "2026-11-23T00:00:00.005Z/" + number}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reasonDisrupted}}
	}
}

// A write that the API server does not answer in time gets more time, and a pod whose status
// can't be written in that time is deleted, if the API server answers to a read.
func TestSlowWrites(t *testing.T) {
	r := NewReporter("n1", &orders{}, slog.New(slog.DiscardHandler))
	c := &connection{&client{}, func(error) {}}
	pod := stateOf(apiPod("0"))
	write := action{kind: setPhase, write: 1}
	outcomes := func(a action, errs ...error) (timeouts []time.Duration, next action) {
		r.Reset()
		r.Order(&kube.Order{ID: "a", UID: "0", Stage: kube.StageEnded, Decided: decided})
		task := r.tasks["a"]
		for _, err := range errs {
			if task.look {
				timeouts = append(timeouts, 0)
				r.finish(task, action{kind: readPod}, c, nil, time.Now())
			}
			timeouts = append(timeouts, task.timeout(a))
			r.finish(task, a, c, err, time.Now())
		}
		return timeouts, task.next(&pod)
	}
	late := fmt.Errorf("patch: %w", context.DeadlineExceeded)
	for name, tt := range map[string]struct {
		a        action
		errs     []error
		timeouts []int
		want     action
	}{
		"first":             {write, []error{late}, []int{5}, write},
		"fourth":            {write, []error{late, late, late, late}, []int{5, 10, 20, 30}, action{kind: readPod}},
		"after the read":    {write, []error{late, late, late, late, late}, []int{5, 10, 20, 30, 0, 30}, action{kind: deletePod, grace: 1}},
		"succeeded":         {write, []error{late, late, late, late, nil, late}, []int{5, 10, 20, 30, 0, 30, 5}, action{answer: kube.AnswerReported}},
		"an answer between": {write, []error{late, late, late, apierrors.NewServiceUnavailable("x"), late}, []int{5, 10, 20, 30, 30}, action{kind: readPod}},
		"read":              {action{kind: readPod}, []error{late, late, late, late, late, late}, []int{5, 5, 5, 5, 5, 5}, write},
	} {
		timeouts, next := outcomes(tt.a, tt.errs...)
		var seconds []int
		for _, d := range timeouts {
			seconds = append(seconds, int(d.Seconds()))
		}
		if !slices.Equal(seconds, tt.timeouts) || next != tt.want {
			t.Errorf("%s: timeouts %d, then %+v; want %d, %+v", name, seconds, next, tt.timeouts, tt.want)
		}
	}
}

// The error of a request that was not answered in time is known as such.
func TestSlowWriteIsNoted(t *testing.T) {
	t.Parallel()
	o := startOrders(t, 1, func(_ *orders, _ int, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	id := o.order(0, kube.StageEnded)
	o.until("delay", func() bool { return o.has(id, kube.AnswerDelayed) })
	o.Reporter.mu.Lock()
	defer o.Reporter.mu.Unlock()
	if got := o.tasks[id].late; got != 1 {
		t.Errorf("%d writes not answered in time; want 1", got)
	}
}

// Writes that get more time leave half of the requests in flight to others.
func TestSlowWritesLeaveRoom(t *testing.T) {
	r := NewReporter("n1", &orders{}, slog.New(slog.DiscardHandler))
	r.connected(&client{}, func(error) {})
	r.checking = true
	const pods = 2 * maxInFlight
	for i := range pods {
		uid := fmt.Sprint(i)
		r.observe(apiPod(uid))
		r.Order(&kube.Order{ID: uid, UID: uid, Stage: kube.StageEnded, Decided: decided})
		if i < maxInFlight { // the oldest
			r.tasks[uid].late = 1
		}
	}
	if list, _ := r.schedule(time.Now()); len(list) != maxInFlight {
		t.Errorf("%d requests start; want %d", len(list), maxInFlight)
	}
	slow := 0
	for i := range pods {
		task := r.tasks[fmt.Sprint(i)]
		if task.inFlight[setPhase] > 0 && task.late > 0 {
			slow++
		}
	}
	if slow != maxSlowInFlight {
		t.Errorf("%d writes with more time in flight; want %d", slow, maxSlowInFlight)
	}
}

// A check over an earlier connection does not replace that of the present one.
func TestRightsOfPresentConnection(t *testing.T) {
	a := newAPIServer(t)
	kubeconfig, _, _ := a.files(t)
	o := &Options{Kubeconfig: kubeconfig, Node: "n1"}
	c, err := o.connect()
	if err != nil {
		t.Fatal(err)
	}
	r := NewReporter("n1", &orders{}, slog.New(slog.DiscardHandler))
	r.connected(c, func(error) {})
	earlier := r.connection
	r.connected(c, func(error) {})
	if r.check(t.Context(), earlier); r.checkAfter.After(time.Now()) {
		t.Error("the present connection is not checked")
	}
	if r.check(t.Context(), r.connection); !r.checkAfter.After(time.Now()) {
		t.Error("checked again at once")
	}
}

// A webhook without a backend delays the writes of the Node alone: an order that arrives during one
// that is not answered does not wait as in an outage.
func TestReportWhileNodeWritesHang(t *testing.T) {
	t.Parallel()
	o := startOrders(t, 1, func(_ *orders, _ int, w http.ResponseWriter, r *http.Request) {
		if taints, conditions := aboutNode(w, r); taints || conditions {
			<-r.Context().Done()
		} else if r.Method != http.MethodGet {
			done(w)
		}
	})
	o.SetNode(pressure(1, "EvictdMemoryPressure"))
	o.until("write", func() bool { return o.requested(patchNode) == 1 })
	o.Reporter.mu.Lock()
	o.nodes.parts[writeTaints].delay = longestDelay
	o.Reporter.mu.Unlock()
	began := time.Now()
	id := o.order(0, kube.StageEnded, func(k *kube.Order) { k.Taint = memory })
	o.until("report", func() bool { return o.has(id, kube.AnswerReported) })
	if took := time.Since(began); took < taintDeadline || took > writeTimeout+2*taintDeadline {
		t.Errorf("reported after %v; want %v after the write had no answer", took, taintDeadline)
	}
}

// logFunc is called for each line of a log.
type logFunc func()

func (f logFunc) Write(line []byte) (int, error) {
	f()
	return len(line), nil
}

// Watch waits twice as long after each failure, less up to half of it, and at most longestBackoff.
func TestWatchBackoff(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	synctest.Test(t, func(t *testing.T) {
		var attempts []time.Time
		log := slog.New(slog.NewTextHandler(logFunc(func() {
			attempts = append(attempts, time.Now())
			if os.Remove(kubeconfig) != nil { // another error than the last one, which would not be logged
				write(t, kubeconfig, "{")
			}
		}), nil))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		Watch(ctx, Options{Kubeconfig: kubeconfig, Node: "n1", Feed: kube.NewFeed("n1", "test", slog.New(slog.DiscardHandler)), Log: log})
		if len(attempts) < 12 {
			t.Fatalf("%d attempts in 5 minutes; want at least 12", len(attempts))
		}
		want := firstBackoff
		for i, last := range attempts[:len(attempts)-1] {
			if wait := attempts[i+1].Sub(last); wait < want/2 || wait > want {
				t.Errorf("wait %d is %v; want %v to %v", i, wait, want/2, want)
			}
			want = min(2*want, longestBackoff)
		}
	})
}

// The requests for an order are delayed by 0.1 s at first, by twice as long after each failure, and by 30 s at
// most, also if the API server asks for more.
func TestOrderBackoff(t *testing.T) {
	now := time.Now()
	within := func(what string, delay, least, most time.Duration) {
		t.Helper()
		if delay < least || delay > most {
			t.Errorf("%s: %v; want %v to %v", what, delay, least, most)
		}
	}
	var o task
	for i := range 20 {
		o.wait(now, 0)
		longest := min(100*time.Millisecond<<i, 30*time.Second)
		within(fmt.Sprintf("failure %d", i+1), o.notBefore.Sub(now), longest/2, longest)
	}
	o = task{}
	o.wait(now, 2*time.Second)
	within("asked for 2 s", o.notBefore.Sub(now), 2*time.Second, 2500*time.Millisecond)
	o.wait(now, time.Hour)
	within("asked for an hour", o.notBefore.Sub(now), 30*time.Second, 37500*time.Millisecond)
}

// client-go delays no request.
func TestNoRequestLimit(t *testing.T) {
	kubeconfig, _, _ := newAPIServer(t).files(t)
	c, err := (&Options{Kubeconfig: kubeconfig}).connect()
	if err != nil {
		t.Fatal(err)
	}
	if limiter := c.rest.GetRateLimiter(); limiter != nil {
		t.Errorf("limit of %v requests a second; want none", limiter.QPS())
	}
}
