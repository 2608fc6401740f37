package cluster

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/evictd/evictd/agent/kube"
)

// At most ten requests are in flight: writes of the status before deletions before events.
func TestReportsHavePriority(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	o := startOrders(t, 14, func(_ *orders, _ int, w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
		done(w)
	})
	count := func() int {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.requests)
	}
	o.order(10, kube.StageWaiting, func(k *kube.Order) { k.Exclusive = kube.ExclusiveJob }) // an event
	o.until("event", func() bool { return count() == 1 })
	for i := range 9 {
		o.order(i, kube.StageEnded)
	}
	o.until("ten requests", func() bool { return count() == 10 })
	o.order(11, kube.StageWaiting, func(k *kube.Order) { k.Exclusive = kube.ExclusiveJob }) // another event
	disrupted := apiPod("12", func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reasonDisrupted}}
	})
	o.observe(disrupted)
	o.order(12, kube.StageStopping, func(k *kube.Order) { k.Exclusive, k.GraceSeconds = kube.ExclusiveJob, 5 })
	o.order(13, kube.StageEnded)
	time.Sleep(50 * time.Millisecond)
	if n := count(); n != 10 {
		t.Fatalf("%d requests; want 10 in flight", n)
	}
	for i := 11; i <= 13; i++ {
		release <- struct{}{}
		o.until("next request", func() bool { return count() >= i })
	}
	close(release)
	o.until("reports", func() bool { return o.has("order-13", kube.AnswerReported) && o.has("order-12", kube.AnswerReported) })
	o.mu.Lock()
	defer o.mu.Unlock()
	if got := o.requests[10:12]; !slices.Equal(got, []string{"PATCH web-13", "DELETE web-12"}) || !strings.HasPrefix(o.requests[12], "POST ") {
		t.Errorf("requests after ten: %q; want the patch, the deletion, an event", o.requests[10:13])
	}
	if o.most > maxInFlight {
		t.Errorf("%d requests in flight; want at most %d", o.most, maxInFlight)
	}
}

// The phase does not wait for the answer to the condition, and that is no answer to the order
// any more.
func TestPhaseDoesNotWaitForCondition(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	o := startOrders(t, 1, func(_ *orders, number int, w http.ResponseWriter, r *http.Request) {
		if number == 1 {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		done(w)
	})
	o.observe(apiPod("0", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }))
	id := o.order(0, kube.StageKilled)
	o.until("condition", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.requests) == 1
	})
	o.order(0, kube.StageEnded)
	o.until("report", func() bool { return o.has(id, kube.AnswerReported) })
	close(release)
	o.until("answer to the condition", func() bool {
		o.Reporter.mu.Lock()
		defer o.Reporter.mu.Unlock()
		return o.tasks[id].inFlight == [deletePod + 1]int{}
	})
	if n := o.count(id, kube.AnswerMarked); n != 0 {
		t.Error("marked after it was reported")
	}
}

// A report that was undone is written again before the answer to the write that the watch has
// shown. A repeated write is waited for: the watch may have shown its first attempt.
func TestAssertionDoesNotWaitForAnswer(t *testing.T) {
	t.Parallel()
	for name, repeated := range map[string]bool{"first attempt": false, "repeated": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			release := make(chan struct{})
			held := 1
			if repeated {
				held = 2
			}
			writes := make(chan int, 10)
			o := startOrders(t, 1, func(_ *orders, number int, w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodPatch {
					done(w)
					return
				}
				writes <- number
				if number == held {
					select {
					case <-release:
					case <-r.Context().Done():
					}
				}
				if number == 1 {
					http.Error(w, "no", http.StatusServiceUnavailable)
					return
				}
				done(w)
			})
			id := o.order(0, kube.StageEnded)
			for range held {
				<-writes
			}
			o.observe(apiPod("0", written("1")))
			if repeated {
				select {
				case <-writes:
					t.Error("written again before the answer to a repeated write")
				case <-time.After(100 * time.Millisecond):
				}
				close(release)
			}
			o.until("assertion", func() bool { return o.has(id, kube.AnswerAsserted) })
			if !repeated {
				close(release)
			}
			o.until("the answer that counts, to the second write", func() bool {
				o.Reporter.mu.Lock()
				defer o.Reporter.mu.Unlock()
				got := o.tasks[id]
				return got.inFlight == [deletePod + 1]int{} && got.written == 2 && got.answer == kube.AnswerReported
			})
			o.Reporter.mu.Lock()
			if d := o.tasks[id].delay; d != 0 {
				t.Errorf("back-off %v after the late answer to the first write; want none, because it was shown", d)
			}
			o.Reporter.mu.Unlock()
			if n := o.count(id, kube.AnswerAsserted); n != 1 {
				t.Errorf("asserted %d times; want once", n)
			}
		})
	}
}

// A number that a tenant has written does not end the wait for the answer to the write that is in flight.
func TestForgedNumberInFlight(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	writes := make(chan int, 10)
	o := startOrders(t, 2, func(_ *orders, number int, w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/web-0/status") {
			writes <- number
			if len(writes) == 2 {
				select {
				case <-release:
				case <-r.Context().Done():
				}
			}
		}
		done(w)
	})
	id := o.order(0, kube.StageEnded)
	o.until("report", func() bool { return o.has(id, kube.AnswerReported) })
	o.observe(apiPod("0", written("6")))
	o.until("assertion", func() bool { return len(writes) == 2 })
	o.order(1, kube.StageEnded) // looks at all orders
	o.until("other report", func() bool { return o.has("order-1", kube.AnswerReported) })
	if n := len(writes); n != 2 {
		t.Errorf("%d writes before the answer to the second; want 2", n)
	}
	close(release)
	o.until("assertion", func() bool { return o.has(id, kube.AnswerAsserted) })
}

// Events that can't be created are bounded and delay no report.
func TestEventsAreBounded(t *testing.T) {
	t.Parallel()
	const pods = 200
	release := make(chan struct{})
	o := startOrders(t, pods, func(_ *orders, _ int, w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		done(w)
	})
	for i := range pods {
		o.order(i, kube.StageEnded, func(k *kube.Order) { k.Annotations = map[string]string{annotationStarved: "memory"} })
	}
	for i := range pods {
		o.until("report", func() bool { return o.has(fmt.Sprint("order-", i), kube.AnswerReported) })
	}
	o.until("two events in flight", func() bool {
		o.Reporter.mu.Lock()
		defer o.Reporter.mu.Unlock()
		if len(o.events) > maxEvents || o.eventsInFlight > maxEventsInFlight {
			t.Fatalf("%d events wait, %d in flight; want at most %d and %d", len(o.events), o.eventsInFlight, maxEvents, maxEventsInFlight)
		}
		return o.eventsInFlight == maxEventsInFlight && len(o.events) >= maxEvents-maxEventsInFlight
	})
	close(release)
	o.until("end of the events", func() bool {
		o.Reporter.mu.Lock()
		defer o.Reporter.mu.Unlock()
		return len(o.events) == 0 && o.eventsInFlight == 0
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := count(o.requests, "POST "+reasonThresholdMet); n != 1 {
		t.Errorf("%d events on the node; want one in a minute", n)
	}
}

func count(list []string, s string) (n int) {
	for _, e := range list {
		if e == s {
			n++
		}
	}
	return n
}

// Reports use the connection of the watch, so that none waits for a TLS handshake.
func TestReportsUseTheWatchesConnection(t *testing.T) {
	t.Parallel()
	const pods = 101
	arrived := make(chan time.Time, 2*pods)
	o := startOrders(t, pods, func(_ *orders, _ int, w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			arrived <- time.Now()
		}
		done(w)
	})
	var took []time.Duration
	for i := range pods {
		began := time.Now()
		o.order(i, kube.StageEnded)
		took = append(took, (<-arrived).Sub(began))
	}
	slices.Sort(took)
	t.Logf("from the order to the server's handler: median %v, p99 %v", took[pods/2], took[pods*99/100])
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.connections) != 1 {
		t.Errorf("connections %v; want one", o.connections)
	}
}
