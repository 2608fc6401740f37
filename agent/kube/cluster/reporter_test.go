package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/evictd/evictd/agent/kube"
)

// orders is a Reporter with an API server whose answers the test gives.
type orders struct {
	t *testing.T
	*Reporter
	api *apiServer
	log logged

	mu          sync.Mutex
	answers     []kube.Report
	nodeReports []kube.NodeReport
	cannot      []string
	requests    []string // those for orders, as method, space, the pod's name or the event's reason
	times       []time.Time
	inFlight    int
	most        int // the most requests in flight at a time
	connections map[string]bool
}

func (o *orders) Report(r *kube.Report) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answers = append(o.answers, *r)
}

func (o *orders) ReportNode(r *kube.NodeReport) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.nodeReports = append(o.nodeReports, *r)
}

func (o *orders) CannotReport(why string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.cannot = append(o.cannot, why)
}

// startOrders starts a Reporter that watches n pods, named web-0 and so on. respond answers the
// requests for orders; its number begins at 1. change changes the options.
func startOrders(t *testing.T, n int, respond func(o *orders, number int, w http.ResponseWriter, r *http.Request), change ...func(*orders, *Options)) *orders {
	t.Helper()
	a := newAPIServer(t)
	o := &orders{t: t, api: a, connections: map[string]bool{}}
	a.report = func(w http.ResponseWriter, r *http.Request) {
		what := strings.TrimSuffix(r.URL.Path[strings.LastIndex(r.URL.Path, "/pods/")+1:], "/status")
		if strings.HasSuffix(r.URL.Path, "/events") {
			var e eventObject
			_ = json.NewDecoder(r.Body).Decode(&e) // shown by its reason
			what = e.Reason
		}
		o.mu.Lock()
		o.requests, o.times = append(o.requests, r.Method+" "+strings.TrimPrefix(what, "pods/")), append(o.times, time.Now())
		o.inFlight++
		o.most = max(o.most, o.inFlight)
		o.connections[r.RemoteAddr] = true
		number := len(o.requests)
		o.mu.Unlock()
		respond(o, number, w, r)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.inFlight--
	}
	for i := range n {
		a.change(watch.Added, apiPod(fmt.Sprint(i)))
	}
	log := slog.New(slog.NewTextHandler(&o.log, nil))
	o.Reporter = NewReporter("n1", o, log)
	kubeconfig, _, _ := a.files(t)
	options := Options{Kubeconfig: kubeconfig, Node: "n1", BootID: testBoot, Software: "test", Feed: kube.NewFeed("n1", "test", log), Reporter: o.Reporter, Log: log}
	for _, c := range change {
		c(o, &options)
	}
	o.run(options)
	o.until("list", func() bool {
		o.Reporter.mu.Lock()
		defer o.Reporter.mu.Unlock()
		return len(o.pods) == n
	})
	return o
}

func (o *orders) run(options Options) {
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	parts.Go(func() { o.Run(ctx) })
	parts.Go(func() { Watch(ctx, options) })
	if options.Rejector != nil {
		parts.Go(func() { options.Rejector.Run(ctx) })
	}
	o.t.Cleanup(func() {
		cancel()
		parts.Wait()
	})
}

func (o *orders) until(what string, ok func() bool) {
	o.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.t.Fatalf("%s: not after 30s; answers %+v, requests %v, log:\n%s", what, o.answers, o.requests, o.log.String())
		}
	}
}

// order gives an order about a pod.
func (o *orders) order(i int, stage kube.Stage, change ...func(*kube.Order)) string {
	uid := fmt.Sprint(i)
	order := &kube.Order{ID: "order-" + uid, UID: uid, Namespace: "default", Name: "web-" + uid, Stage: stage, Reason: "Evicted", Message: "m", Decided: decided}
	for _, c := range change {
		c(order)
	}
	o.Order(order)
	return order.ID
}

func (o *orders) has(id string, answer kube.Answer) bool { return o.count(id, answer) > 0 }

func (o *orders) count(id string, answer kube.Answer) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, a := range o.answers {
		if a.ID == id && a.Answer == answer {
			n++
		}
	}
	return n
}

// done answers that a request has succeeded.
func done(w http.ResponseWriter) { answer(w, map[string]any{"kind": "PartialObjectMetadata"}) }

// A request that the API server, or a proxy before it, can't carry out now is repeated: when it
// asks for a time, not before. One answer says so.
func TestReportIsRepeated(t *testing.T) {
	t.Parallel()
	o := startOrders(t, 1, func(_ *orders, number int, w http.ResponseWriter, _ *http.Request) {
		switch number {
		case 1: // as priority and fairness refuses it
			w.Header().Set("Retry-After", "1")
			http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
		case 2:
			status(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "etcdserver: leader changed")
		case 3:
			http.Error(w, "<html>not found", http.StatusNotFound) // a proxy's
		case 4:
			http.Error(w, "<html>forbidden", http.StatusForbidden)
		case 5:
			status(w, http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified")
		case 6: // the pod is read again
			answer(w, apiPod("0"))
		case 8:
			http.Error(w, "no", http.StatusServiceUnavailable)
		default:
			done(w)
		}
	})
	id := o.order(0, kube.StageEnded)
	o.until("delay", func() bool { return o.has(id, kube.AnswerDelayed) })
	o.mu.Lock()
	if len(o.requests) != 1 || o.inFlight != 0 {
		t.Errorf("requests %q, %d in flight, before the time that the API server asked for; want one that has ended", o.requests, o.inFlight)
	}
	o.mu.Unlock()
	o.until("report", func() bool { return o.has(id, kube.AnswerReported) })
	o.mu.Lock()
	requests, first, second := o.requests[:7], o.times[0], o.times[1]
	o.mu.Unlock()
	want := []string{"PATCH web-0", "PATCH web-0", "PATCH web-0", "PATCH web-0", "PATCH web-0", "GET web-0", "PATCH web-0"}
	if !slices.Equal(requests, want) {
		t.Errorf("requests %q; want %q", requests, want)
	}
	if d := second.Sub(first); d < time.Second {
		t.Errorf("repeated after %v; want at least the second that the API server asked for", d)
	}
	o.observe(apiPod("0", written("1")))
	o.until("assertion", func() bool { return o.has(id, kube.AnswerAsserted) })
	asserted := time.Now()
	o.until("the answer that counts", func() bool { return o.count(id, kube.AnswerReported) == 2 })
	if d := time.Since(asserted); d < repeatDelay/2 {
		t.Errorf("answer after an assertion replaced after %v; want it to be sent before", d)
	}
	if n := o.count(id, kube.AnswerDelayed); n != 1 {
		t.Errorf("answer delayed %d times; want once, and not after the report", n)
	}
}

// A request that had no answer is repeated as soon as the API server shows that it is back.
func TestReportAfterRecovery(t *testing.T) {
	t.Parallel()
	for name, recover := range map[string]func(*orders){
		"watch":          func(o *orders) { o.api.set(func() {}) },
		"another report": func(o *orders) { o.order(1, kube.StageEnded) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := startOrders(t, 2, func(_ *orders, number int, w http.ResponseWriter, _ *http.Request) {
				if number == 1 {
					panic(http.ErrAbortHandler) // ends the request without an answer
				}
				done(w)
			})
			id := o.order(0, kube.StageEnded)
			o.until("delay", func() bool { return o.has(id, kube.AnswerDelayed) })
			o.Reporter.mu.Lock()
			task := o.tasks[id]
			if !task.unreachable || !o.unreachable {
				t.Error("a request without an answer does not count as one")
			}
			task.notBefore = time.Now().Add(time.Hour)
			o.Reporter.mu.Unlock()
			recover(o)
			o.until("report", func() bool { return o.has(id, kube.AnswerReported) })
		})
	}
}

// An order that is withdrawn, or not given again in the next session, is not carried out.
func TestWithdraw(t *testing.T) {
	t.Parallel()
	o := startOrders(t, 3, func(o *orders, _ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1") // none is in flight when they are withdrawn
		http.Error(w, "no", http.StatusServiceUnavailable)
	})
	for i := range 3 {
		o.order(i, kube.StageEnded)
	}
	for i := range 3 {
		o.until("attempt", func() bool { return o.has(fmt.Sprint("order-", i), kube.AnswerDelayed) })
	}
	o.Withdraw("order-0")
	o.Withdraw("unknown")
	o.Reset()
	o.order(2, kube.StageEnded)
	o.until("end of the requests in flight", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.inFlight == 0
	})
	o.mu.Lock()
	before := len(o.requests)
	o.mu.Unlock()
	o.until("further attempts", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.requests) > before+1
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	if later := o.requests[before:]; count(later, "PATCH web-2") != len(later) {
		t.Errorf("requests %q; want none for the orders that were withdrawn", later)
	}
}

// A request in flight ends when its order is withdrawn, and one that was about to start is not
// sent: evictd lifts the fence of the pod then, and the kubelet may start its containers again.
func TestWithdrawEndsRequests(t *testing.T) {
	t.Parallel()
	for name, withdraw := range map[string]func(*orders, string){
		"Withdraw": func(o *orders, id string) { o.Withdraw(id) },
		"Reset":    func(o *orders, _ string) { o.Reset() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arrived, ended := make(chan bool), make(chan bool, 1)
			o := startOrders(t, 2, func(_ *orders, _ int, w http.ResponseWriter, r *http.Request) {
				arrived <- true
				select {
				case <-r.Context().Done():
					ended <- true
				case <-time.After(2 * time.Second):
					ended <- false
				}
				done(w)
			})
			id := o.order(0, kube.StageEnded)
			<-arrived
			o.Reporter.mu.Lock()
			next := &task{order: kube.Order{ID: "next", UID: "1", Namespace: "default", Name: "web-1", Decided: decided}}
			next.ctx, next.cancel = context.WithCancel(context.Background())
			o.tasks["next"] = next
			send, c := o.start(next, action{kind: setPhase, write: 1}), o.connection
			o.Reporter.mu.Unlock()
			withdraw(o, id)
			if !<-ended {
				t.Error("the request for the order that was withdrawn goes on")
			}
			o.Withdraw("next")
			send(context.Background(), c)
			o.mu.Lock()
			defer o.mu.Unlock()
			if len(o.requests) != 1 {
				t.Errorf("requests %q; want none for an order that was withdrawn before", o.requests)
			}
		})
	}
}

// Credentials that expire are read again, also those in a kubeconfig.
func TestReportWithNewCredentials(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	a.report = func(w http.ResponseWriter, _ *http.Request) { done(w) }
	o, renew := withRefusedToken(t, a, nil)
	id := o.order(0, kube.StageEnded)
	o.until("refusal", func() bool { return o.has(id, kube.AnswerDelayed) })
	renew()
	o.until("report", func() bool { return o.has(id, kube.AnswerReported) })
}

// Drain waits for the orders, and not longer than it may.
func TestDrain(t *testing.T) {
	t.Parallel()
	r := NewReporter("n1", &orders{}, slog.New(slog.DiscardHandler))
	r.Order(&kube.Order{ID: "a"})
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if r.Drain(ctx); ctx.Err() == nil {
		t.Error("Drain returned while there was an order")
	}
	time.AfterFunc(100*time.Millisecond, func() { r.Withdraw("a") })
	r.Drain(context.Background())
}

// An eviction goes from evictd's orders over the socket into the API, and its answer back.
func TestReportThroughTheSession(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	patches := make(chan statusPatch, 10)
	a.report = func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			var p statusPatch
			if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
				t.Error(err)
			}
			patches <- p
		}
		done(w)
	}
	a.change(watch.Added, apiPod("a"))
	kubeconfig, _, _ := a.files(t)
	n := start(t, kubeconfig, "n1")
	n.until("list", func(kube.Status) bool { return n.has("a") && n.facts.CannotReport() == "" })
	if _, err := n.orders.Begin(kube.Eviction{UID: "a", Namespace: "default", Name: "web-a", Reason: "Evicted", Message: "m", Decided: decided}); err != nil {
		t.Fatal(err)
	}
	n.orders.Ended("a")
	p := <-patches
	if p.Metadata.UID != "a" || p.Metadata.Annotations[annotationEvicted] != "2026-11-23T00:00:00.005Z/1" || p.Status.Phase != corev1.PodFailed {
		t.Errorf("patch %+v; want the phase of the pod a", p)
	}
	n.until("answer", func(kube.Status) bool { return n.orders.Status().Answers[kube.AnswerReported] == 1 })
	n.orders.CgroupGone("a")
	n.until("withdrawal", func(kube.Status) bool {
		n.reporter.mu.Lock()
		defer n.reporter.mu.Unlock()
		return len(n.reporter.tasks) == 0 && !n.orders.Pending("a")
	})
}

// TestOrderStartsItsRequest: the request for an order is begun by who passes the order on, and not only when Run runs.
func TestOrderStartsItsRequest(t *testing.T) {
	r := NewReporter("n1", &orders{t: t}, slog.New(slog.DiscardHandler))
	r.connection, r.checkAfter = &connection{}, time.Now().Add(time.Hour)
	r.pods["0"] = podState{}
	begun := 0
	r.setLaunch(func(started, *connection) { begun++ })
	r.Order(&kube.Order{ID: "order-0", UID: "0", Namespace: "default", Name: "web-0", Stage: kube.StageEnded, Reason: "Evicted", Message: "m", Decided: decided})
	if begun != 1 {
		t.Errorf("%d requests were begun; want 1", begun)
	}
}
