package cluster

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/kube"
)

const (
	getNode   = "GET /api/v1/nodes/n1"
	patchNode = "PATCH /api/v1/nodes/n1"
)

// aboutNode answers a read of the Node, and reports whether a request is a write of its spec or
// its status.
func aboutNode(w http.ResponseWriter, r *http.Request) (taints, conditions bool) {
	switch {
	case !strings.HasPrefix(r.URL.Path, "/api/v1/nodes/"):
	case r.Method == http.MethodGet:
		fmt.Fprint(w, `{"metadata":{"uid":"u"},"spec":{},"status":{}}`)
	default:
		conditions = strings.HasSuffix(r.URL.Path, "/status")
		return !conditions, conditions
	}
	return false, false
}

func (o *orders) lastNode() (last kube.NodeReport) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.nodeReports); n > 0 {
		last = o.nodeReports[n-1]
	}
	return last
}

// requested returns how often a request was made.
func (o *orders) requested(request string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return count(o.requests, request)
}

// tainted changes an order to one that waits for a taint.
func tainted(o *kube.Order) { o.Taint = memory }

// The phase of a pod and its deletion wait for the taint of the order, those of others do not.
// Without rights, and after two seconds, they do not wait either.
func TestReportWaitsForTaint(t *testing.T) {
	t.Parallel()
	answer := func(release chan struct{}) func(*orders, int, http.ResponseWriter, *http.Request) {
		return func(_ *orders, _ int, w http.ResponseWriter, r *http.Request) {
			if taints, _ := aboutNode(w, r); taints {
				select {
				case <-release:
				case <-r.Context().Done():
				}
			}
			if r.Method != http.MethodGet {
				done(w)
			}
		}
	}
	t.Run("written", func(t *testing.T) {
		t.Parallel()
		release := make(chan struct{})
		o := startOrders(t, 4, answer(release))
		first, second := o.order(0, kube.StageEnded, tainted), o.order(1, kube.StageEnded, tainted)
		third := o.order(2, kube.StageStopping, tainted, func(k *kube.Order) { k.Exclusive, k.GraceSeconds = kube.ExclusiveHostPort, 5 })
		free := o.order(3, kube.StageEnded)
		o.until("report of the pod without a taint", func() bool { return o.has(free, kube.AnswerReported) })
		o.until("condition of the pod with a grace period", func() bool { return o.requested("PATCH web-2") == 1 })
		time.Sleep(100 * time.Millisecond)
		for _, request := range []string{"PATCH web-0", "PATCH web-1", "DELETE web-2"} {
			if o.requested(request) > 0 {
				t.Errorf("%s before the taint is there", request)
			}
		}
		close(release)
		for _, id := range []string{first, second, third} {
			o.until("report", func() bool { return o.has(id, kube.AnswerReported) })
		}
		if n := o.requested(patchNode); n != 1 {
			t.Errorf("taint written %d times for three orders; want once", n)
		}
	})
	t.Run("late", func(t *testing.T) {
		t.Parallel()
		release := make(chan struct{})
		defer close(release)
		o := startOrders(t, 1, answer(release))
		began := time.Now()
		id := o.order(0, kube.StageEnded, tainted)
		o.until("report", func() bool { return o.has(id, kube.AnswerReported) })
		if took := time.Since(began); took < taintDeadline || took > taintDeadline+time.Second {
			t.Errorf("reported after %v; want %v", took, taintDeadline)
		}
		if !strings.Contains(o.log.String(), "node does not have its taint yet") {
			t.Errorf("log:\n%s\nwant that the taint is missing", o.log.String())
		}
	})
	t.Run("missing right", func(t *testing.T) {
		t.Parallel()
		o := startOrders(t, 1, answer(nil))
		o.until("check of the rights", func() bool {
			o.Reporter.mu.Lock()
			defer o.Reporter.mu.Unlock()
			return !o.checking && time.Until(o.checkAfter) > time.Minute
		})
		o.Reporter.mu.Lock()
		o.setNodeRights(nodeRights)
		o.Reporter.mu.Unlock()
		began := time.Now()
		id := o.order(0, kube.StageEnded, tainted)
		o.until("report", func() bool { return o.has(id, kube.AnswerReported) })
		if took := time.Since(began); took > taintDeadline/2 || o.requested(patchNode) > 0 {
			t.Errorf("reported after %v, with %d writes of the taint; want no wait, and no write", took, o.requested(patchNode))
		}
	})
}

// If the taint is refused, reports do not wait for it, and the reason names the remedy.
func TestReportAfterRefusedTaint(t *testing.T) {
	t.Parallel()
	o := startOrders(t, 1, func(_ *orders, _ int, w http.ResponseWriter, r *http.Request) {
		if taints, conditions := aboutNode(w, r); taints || conditions {
			status(w, http.StatusForbidden, metav1.StatusReasonForbidden, `nodes "n1" is forbidden: node "n1" is not allowed to modify taints`)
		} else if r.Method != http.MethodGet {
			done(w)
		}
	})
	began := time.Now()
	id := o.order(0, kube.StageEnded, tainted)
	o.SetNode(pressure(1, "EvictdMemoryPressure"))
	o.until("report", func() bool { return o.has(id, kube.AnswerReported) })
	if took := time.Since(began); took > taintDeadline/2 {
		t.Errorf("reported after %v; want no wait", took)
	}
	o.until("reason", func() bool { return strings.Contains(o.lastNode().Why, "not allowed to modify taints") })
	if why := o.lastNode().Why; !strings.Contains(why, "service account") || strings.Contains(why, "ClusterRole") {
		t.Errorf("reason %q; want the remedy for a kubelet's credentials", why)
	}
	time.Sleep(3 * time.Second)
	if n := strings.Count(o.log.String(), "could not write evictd's conditions and taints"); n > 2 {
		t.Errorf("logged %d times; want once for each kind of request; log:\n%s", n, o.log.String())
	}
}

// A write of the Node comes after those of pods, but before them if an order waits for it.
func TestNodeHasPriorityOfReports(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	o := startOrders(t, 14, func(_ *orders, _ int, w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
		if aboutNode(w, r); r.Method != http.MethodGet {
			done(w)
		}
	})
	requests := func() []string {
		o.mu.Lock()
		defer o.mu.Unlock()
		return slices.Clone(o.requests)
	}
	for i := range maxInFlight {
		o.order(i, kube.StageEnded)
	}
	o.until("requests", func() bool { return len(requests()) == maxInFlight })
	o.SetNode(pressure(1))
	o.order(11, kube.StageEnded)
	release <- struct{}{}
	o.until("report before the Node", func() bool { return len(requests()) == maxInFlight+1 })
	release <- struct{}{}
	o.until("Node", func() bool { return len(requests()) == maxInFlight+2 })
	if got := requests()[maxInFlight:]; !slices.Equal(got, []string{"PATCH web-11", getNode}) {
		t.Errorf("requests %q; want the report first", got)
	}
	close(release)
	o.until("state", func() bool { return o.lastNode() == kube.NodeReport{Number: 1} })
}

// An order's request about the Node comes before the reports of others.
func TestTaintComesFirst(t *testing.T) {
	r := NewReporter("n1", &orders{}, nil)
	r.connected(&client{}, func(error) {})
	r.checking = true
	for i := range 2 * maxInFlight {
		uid := fmt.Sprint(i)
		r.observe(apiPod(uid))
		o := &kube.Order{ID: uid, UID: uid, Stage: kube.StageEnded, Decided: decided}
		if i == 2*maxInFlight-1 {
			o.Taint = memory
		}
		r.Order(o)
	}
	if list, _ := r.schedule(time.Now()); len(list) != maxInFlight || !r.nodes.busy {
		t.Errorf("%d requests start, with that about the Node: %t; want it among %d", len(list), r.nodes.busy, maxInFlight)
	}
}

// Each failure of a write of the Node is answered and followed by another attempt.
func TestNodeIsWrittenAgain(t *testing.T) {
	t.Parallel()
	var failures = []func(http.ResponseWriter){
		func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
		},
		func(w http.ResponseWriter) {
			status(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "the server rejected our request due to an error in our request")
		},
		func(w http.ResponseWriter) {
			status(w, http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified")
		},
		func(w http.ResponseWriter) {
			status(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "etcdserver: leader changed")
		},
		func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	}
	writes := 0
	o := startOrders(t, 0, func(o *orders, _ int, w http.ResponseWriter, r *http.Request) {
		taints, conditions := aboutNode(w, r)
		if !taints && !conditions {
			return
		}
		o.mu.Lock()
		writes++
		n := writes
		o.mu.Unlock()
		if n <= len(failures) {
			failures[n-1](w)
			return
		}
		done(w)
	})
	o.SetNode(pressure(1, "EvictdMemoryPressure"))
	o.until("state", func() bool { return o.lastNode() == kube.NodeReport{Number: 1} })
	o.mu.Lock()
	defer o.mu.Unlock()
	var want []string
	for range len(failures) + 1 { // each time read again
		want = append(want, getNode, patchNode)
	}
	want = append(want, patchNode) // the status
	if !slices.Equal(o.requests, want) {
		t.Errorf("requests %q; want %q", o.requests, want)
	}
	if d := o.times[2].Sub(o.times[1]); d < time.Second {
		t.Errorf("repeated after %v; want at least the second that the API server asked for", d)
	}
	var whys []string
	for _, r := range o.nodeReports {
		whys = append(whys, fmt.Sprint(r.Number, " ", r.Why))
	}
	if len(whys) < 2 || !strings.HasPrefix(whys[0], "0 ") || !strings.Contains(whys[0], "too many requests") {
		t.Errorf("answers %q; want the reason, and then the number", whys)
	}
}

// A state that was given again is answered again.
func TestNodeStateGivenAgain(t *testing.T) {
	t.Parallel()
	o := startOrders(t, 0, func(_ *orders, _ int, w http.ResponseWriter, r *http.Request) {
		if aboutNode(w, r); r.Method != http.MethodGet {
			done(w)
		}
	})
	for i := range 3 {
		o.SetNode(pressure(7, "EvictdDiskPressure"))
		o.until("answer", func() bool {
			o.mu.Lock()
			defer o.mu.Unlock()
			return len(o.nodeReports) == i+1
		})
	}
	if n := o.requested(patchNode); n != 2 {
		t.Errorf("%d writes; want one of the taints and one of the conditions", n)
	}
	o.SetNode(nil)
	o.until("end of evictd", func() bool { return o.requested(patchNode) == 4 })
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.nodeReports); n != 3 {
		t.Errorf("%d answers; want none to an evictd that is gone", n)
	}
}

// Before it ends, evictd-kube writes the last state of an evictd that stops.
func TestDrainAwaitsLastState(t *testing.T) {
	t.Parallel()
	o := startOrders(t, 0, func(_ *orders, _ int, w http.ResponseWriter, r *http.Request) {
		if aboutNode(w, r); r.Method != http.MethodGet {
			done(w)
		}
	})
	drained := func() chan struct{} {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			o.Drain(t.Context())
		}()
		return ended
	}
	<-drained() // without a state
	o.SetNode(&kube.NodeState{Number: 1})
	<-drained() // in dry run
	o.SetNode(pressure(2, "EvictdMemoryPressure"))
	ended := drained()
	select {
	case <-ended:
		t.Fatal("drained before evictd's last state")
	case <-time.After(200 * time.Millisecond):
	}
	o.SetNode(&kube.NodeState{Number: 3, Stopped: true})
	<-ended
	if got := o.lastNode(); got != (kube.NodeReport{Number: 3}) {
		t.Errorf("last answer %+v; want that to the last state", got)
	}
}

// The taint comes before the report also if the API server answers nothing, or only failures, for
// longer than the report waits.
func TestTaintComesFirstAfterOutage(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(w http.ResponseWriter, r *http.Request, left time.Duration){
		"no connection": func(http.ResponseWriter, *http.Request, time.Duration) { panic(http.ErrAbortHandler) },
		"paused": func(_ http.ResponseWriter, r *http.Request, left time.Duration) {
			select {
			case <-time.After(left):
			case <-r.Context().Done():
			}
		},
		"overloaded": func(w http.ResponseWriter, _ *http.Request, _ time.Duration) {
			status(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "no leader")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const outage = taintDeadline + 1500*time.Millisecond
			end := time.Now().Add(time.Hour)
			var mu sync.Mutex
			var carriedOut []string
			o := startOrders(t, 1, func(_ *orders, _ int, w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				left := time.Until(end)
				mu.Unlock()
				if left > 0 {
					fail(w, r, left)
					if name != "paused" {
						return
					}
				}
				taints, _ := aboutNode(w, r)
				if r.Method == http.MethodPatch {
					mu.Lock()
					carriedOut = append(carriedOut, map[bool]string{true: "taint", false: "report"}[taints])
					mu.Unlock()
					done(w)
				}
			})
			mu.Lock()
			end = time.Now().Add(outage)
			mu.Unlock()
			id := o.order(0, kube.StageEnded, func(k *kube.Order) { k.Taint = memory })
			o.until("report", func() bool { return o.has(id, kube.AnswerReported) })
			mu.Lock()
			defer mu.Unlock()
			if late := time.Since(end); !slices.Equal(carriedOut, []string{"taint", "report"}) || late > 10*time.Second {
				t.Errorf("carried out %q, %v after the outage; want the taint, then the report", carriedOut, late)
			}
		})
	}
}

// A refusal in the form of a race is not repeated each second for ever, and keeps nothing else from
// being written.
func TestEndlessRaceIsRefused(t *testing.T) {
	t.Parallel()
	o := startOrders(t, 0, func(_ *orders, _ int, w http.ResponseWriter, r *http.Request) {
		if taints, _ := aboutNode(w, r); taints {
			status(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "the server rejected our request due to an error in our request")
		} else if r.Method != http.MethodGet {
			done(w)
		}
	})
	o.Reporter.mu.Lock()
	o.nodes.parts[writeTaints].races = maxRaces - 3
	o.Reporter.mu.Unlock()
	o.SetNode(pressure(1, "EvictdMemoryPressure"))
	o.until("conditions", func() bool { return strings.Contains(o.log.String(), "EvictdMemoryPressure=True") })
	o.until("reason", func() bool { return strings.Contains(o.lastNode().Why, "rejected our request") && o.lastNode().Refused })
	if why := o.lastNode().Why; !strings.Contains(why, `other clients have changed the Node "n1"`) || !strings.Contains(why, "--show-managed-fields") {
		t.Errorf("reason %q; want that others change the Node, and how to find it", why)
	}
	o.Reporter.mu.Lock()
	defer o.Reporter.mu.Unlock()
	if !o.nodes.cannotTaint() {
		t.Error("reports wait for the taint")
	}
}
