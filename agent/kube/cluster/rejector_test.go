package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/evictd/evictd/agent/affinity"
	"github.com/evictd/evictd/agent/kube"
)

// admission is a Rejector with an API server that keeps the pods.
type admission struct {
	*orders
	rejector *Rejector

	mu      sync.Mutex
	node    *corev1.Node
	results map[string]int
	// fault answers a request instead of the API server if it returns true.
	fault func(w http.ResponseWriter, r *http.Request) bool
	reads int // of the Node
	sent  int // writes of a status
}

// CountAffinity implements counter.
func (a *admission) CountAffinity(result string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.results[result]++
}

// startAdmission starts a Rejector on a node without labels, with pods that are there before. evictd enforces.
func startAdmission(t *testing.T, before ...*corev1.Pod) *admission {
	t.Helper()
	a := &admission{node: testNode(), results: map[string]int{}}
	a.orders = startOrders(t, len(before), func(_ *orders, _ int, w http.ResponseWriter, r *http.Request) { a.serve(w, r) }, func(o *orders, options *Options) {
		clear(o.api.pods)
		for _, p := range before {
			o.api.change(watch.Added, p)
		}
		a.rejector = NewRejector(o.Reporter, a, options.Log)
		options.Rejector = a.rejector
		o.SetNode(pressure(1))
	})
	a.until("list", func() bool { return strings.Contains(a.log.String(), "watching the pods") })
	return a
}

func (a *admission) serve(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	aboutPods := strings.Contains(r.URL.Path, "/pods/")
	if aboutPods && r.Method == http.MethodPatch {
		a.sent++
	}
	switch {
	case a.fault != nil && a.fault(w, r):
	case strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") && r.Method == http.MethodGet:
		a.reads++
		answer(w, a.node)
	case aboutPods:
		a.servePod(w, r)
	default:
		done(w)
	}
}

func (a *admission) servePod(w http.ResponseWriter, r *http.Request) {
	name := strings.Split(strings.SplitN(r.URL.Path, "/pods/", 2)[1], "/")[0]
	p := a.pod(name)
	if p == nil {
		status(w, http.StatusNotFound, metav1.StatusReasonNotFound, "not found")
		return
	}
	if r.Method == http.MethodPatch {
		body, _ := io.ReadAll(r.Body)
		var patch statusPatch
		if err := json.Unmarshal(body, &patch); err != nil {
			a.t.Error(err)
		}
		if v := patch.Metadata.ResourceVersion; v != "" && v != p.ResourceVersion {
			status(w, http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified")
			return
		}
		p = p.DeepCopy()
		p.Annotations = maps.Clone(p.Annotations)
		maps.Copy(p.Annotations, patch.Metadata.Annotations)
		p.Status.Phase, p.Status.Reason, p.Status.Message = patch.Status.Phase, patch.Status.Reason, patch.Status.Message
		a.api.change(watch.Modified, p)
	}
	answer(w, p)
}

// pod returns a pod of the API by its name; nil if there is none.
func (a *admission) pod(name string) *corev1.Pod {
	a.api.mu.Lock()
	defer a.api.mu.Unlock()
	for _, p := range a.api.pods {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// set changes the API server.
func (a *admission) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

func (a *admission) result(name string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.results[name]
}

// add adds a pod, and waits until a result was counted n times.
func (a *admission) add(p *corev1.Pod, result string, n int) {
	a.t.Helper()
	a.api.change(watch.Added, p)
	a.until(result+" of "+p.Name, func() bool { return a.result(result) == n })
}

// want checks what the API shows of a pod.
func (a *admission) want(name string, phase corev1.PodPhase, reason string) {
	a.t.Helper()
	p := a.pod(name)
	if p.Status.Phase != phase || p.Status.Reason != reason {
		a.t.Errorf("%s: phase %s, reason %q; want %s, %q", name, p.Status.Phase, p.Status.Reason, phase, reason)
	}
}

func TestRejects(t *testing.T) {
	t.Parallel()
	a := startAdmission(t)
	a.add(newPod("a", licence), kube.AffinityRejected, 1)
	a.want("web-a", corev1.PodFailed, "NodeAffinity")
	if p := a.pod("web-a"); !strings.HasPrefix(p.Status.Message, affinityPrefix+"annotation requires licence") || !strings.HasSuffix(p.Annotations[annotationEvicted], "/1") || len(p.Status.Conditions) > 0 {
		t.Errorf("message %q, annotations %q, conditions %v", p.Status.Message, p.Annotations, p.Status.Conditions)
	}
	a.until("event", func() bool { return a.requested("POST NodeAffinity") == 1 })
	a.add(newPod("bad", "{}"), kube.AffinityInvalid, 1)
	a.want("web-bad", corev1.PodPending, "")
	a.add(newPod("daemon", licence, ownedBy("DaemonSet", "apps/v1")), kube.AffinityInvalid, 1)
	a.add(newPod("set", licence, ownedBy("StatefulSet", "apps/v1")), kube.AffinityExclusive, 1)
	a.set(func() { a.node = testNode(func(n *corev1.Node) { n.Spec.Unschedulable = true }) })
	a.add(newPod("cordoned", licence), kube.AffinityNode, 1)
	a.want("web-cordoned", corev1.PodPending, "")
	a.set(func() { a.node = testNode(func(n *corev1.Node) { n.Labels = map[string]string{"licence": "valid"} }) })
	a.add(newPod("valid", licence), kube.AffinityMatched, 1)
	a.want("web-valid", corev1.PodPending, "")
	for _, name := range []string{"web-daemon", "web-set"} {
		a.want(name, corev1.PodPending, "")
	}
	if a.sent != 1 {
		t.Errorf("%d writes; want 1", a.sent)
	}
}

// A pod of the first list, and of a later one, may have been there before.
func TestDoesNotRejectListedPods(t *testing.T) {
	t.Parallel()
	a := startAdmission(t, newPod("before", licence))
	a.add(newPod("a", licence), kube.AffinityRejected, 1)
	a.api.set(func() {
		a.api.gone = true
		p := newPod("between", licence)
		p.ResourceVersion, p.TypeMeta = "2", metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		a.api.pods[p.UID] = p
	})
	a.until("another list", func() bool {
		a.Reporter.mu.Lock()
		defer a.Reporter.mu.Unlock()
		_, ok := a.pods["between"]
		return ok
	})
	a.add(newPod("b", licence), kube.AffinityRejected, 2)
	a.want("web-before", corev1.PodPending, "")
	a.want("web-between", corev1.PodPending, "")
}

func TestRejectsInDryRun(t *testing.T) {
	t.Parallel()
	a := startAdmission(t)
	shuts := &kube.NodeState{Number: 4, Conditions: []kube.NodeCondition{{Type: shutdownCondition, Status: true}}}
	for i, s := range []*kube.NodeState{nil, {Number: 2}, {Number: 3, Stopped: true, Conditions: pressure(1).Conditions}, shuts} {
		a.SetNode(s)
		a.add(newPod(strconv.Itoa(i), licence), kube.AffinityWouldReject, i+1)
		a.want("web-"+strconv.Itoa(i), corev1.PodPending, "")
	}
	if !strings.Contains(a.log.String(), "would reject a pod") || a.sent > 0 {
		t.Errorf("%d writes; want none, log:\n%s", a.sent, a.log.String())
	}
	// The bounds hold in dry run, too, and leave those of real rejections as they are.
	web := func(name string) *corev1.Pod { return newPod(name, licence, ownedBy("ReplicaSet", "apps/v1")) }
	a.add(web("w1"), kube.AffinityWouldReject, 5)
	a.add(web("w2"), kube.AffinityWouldReject, 6)
	a.add(web("w3"), kube.AffinityWorkload, 1)
	a.SetNode(pressure(5))
	a.add(web("w4"), kube.AffinityRejected, 1)
	a.add(newPod("a", licence), kube.AffinityRejected, 2)
}

// A ReplicaSet replaces each rejected pod at once.
func TestRejectsTwoOfAWorkload(t *testing.T) {
	t.Parallel()
	a := startAdmission(t)
	for i := range 4 {
		if result, n := kube.AffinityRejected, i+1; i < affinityPerWorkload {
			a.add(newPod(strconv.Itoa(i), licence, ownedBy("ReplicaSet", "apps/v1")), result, n)
		} else {
			a.add(newPod(strconv.Itoa(i), licence, ownedBy("ReplicaSet", "apps/v1")), kube.AffinityWorkload, n-affinityPerWorkload)
		}
	}
	a.add(newPod("other", licence), kube.AffinityRejected, 3)
}

// The pod that is read just before the write decides.
func TestReadsThePodAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*corev1.Pod)
		result string
	}{
		"started":            {func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{ContainerID: "x"}} }, kube.AffinityStarted},
		"running":            {func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, kube.AffinityStarted},
		"annotation changed": {func(p *corev1.Pod) { p.Annotations[affinity.Annotation] = strings.Replace(licence, "In", "NotIn", 1) }, kube.AffinityMatched},
		"annotation broken":  {func(p *corev1.Pod) { p.Annotations[affinity.Annotation] = "{" }, kube.AffinityInvalid},
		"annotation removed": {func(p *corev1.Pod) { delete(p.Annotations, affinity.Annotation) }, ""},
		"being deleted":      {func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }, ""},
		"another pod":        {func(p *corev1.Pod) { p.UID = types.UID("other") }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := startAdmission(t)
			changed := func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/web-a") {
					return false
				}
				p := a.pod("web-a").DeepCopy()
				tt.change(p)
				answer(w, p)
				return true
			}
			a.set(func() { a.fault = changed })
			a.api.change(watch.Added, newPod("a", licence))
			if tt.result != "" {
				a.until(tt.result, func() bool { return a.result(tt.result) == 1 })
			} else {
				a.until("read of the pod", func() bool { return a.requested("GET web-a") == 1 })
				a.set(func() { a.fault = nil })
				a.add(newPod("next", licence), kube.AffinityRejected, 1)
			}
			a.want("web-a", corev1.PodPending, "")
		})
	}
}

// The kubelet writes the status of a pod at the same time: a conflict is decided anew, and a pod that has started
// meets no second attempt.
func TestRejectionConflicts(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*corev1.Pod)
		result string
	}{
		"waits":  {func(p *corev1.Pod) { p.Status.StartTime = new(metav1.Now()) }, kube.AffinityRejected},
		"starts": {func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, kube.AffinityStarted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := startAdmission(t)
			changed := false
			change := func(_ http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/pods/") && !changed {
					changed = true
					p := a.pod("web-a").DeepCopy()
					tt.change(p)
					a.api.change(watch.Modified, p)
				}
				return false
			}
			a.set(func() { a.fault = change })
			a.add(newPod("a", licence), tt.result, 1)
			if want := map[string]int{"waits": 2, "starts": 1}[name]; a.sent != want {
				t.Errorf("%d writes; want %d", a.sent, want)
			}
		})
	}
}

// A pod whose owner keeps changing it is tried a bounded number of times, and another pod does not wait for that.
func TestRejectionConflictsDontDelayOthers(t *testing.T) {
	t.Parallel()
	a := startAdmission(t)
	tries := 0
	storm := func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPatch || !strings.HasSuffix(r.URL.Path, "/web-busy/status") {
			return false
		}
		tries++
		status(w, http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified")
		return true
	}
	a.set(func() { a.fault = storm })
	a.api.change(watch.Added, newPod("busy", licence))
	a.until("first try", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return tries > 0 })
	a.add(newPod("other", licence), kube.AffinityRejected, 1)
	if n := a.result(kube.AffinityLate); n > 0 {
		t.Errorf("the other pod was rejected after all tries of the one that changes")
	}
	a.until("last try", func() bool { return a.result(kube.AffinityLate) == 1 })
	a.want("web-busy", corev1.PodPending, "")
	if a.set(func() {}); tries != maxConflicts+1 {
		t.Errorf("%d tries; want %d", tries, maxConflicts+1)
	}
}

// A pod that is tried again waits, and others are decided on before. The time from its arrival bounds that.
func TestRetry(t *testing.T) {
	r := &Rejector{log: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1)}
	now := time.Now()
	first, second := arrival{uid: "first", decided: now}, arrival{uid: "second", decided: now}
	r.arrivals = []arrival{first, second}
	a, _, _ := r.take(now)
	if a == nil || a.uid != "first" {
		t.Fatalf("take = %+v; want the first", a)
	}
	r.retry(a, errors.New("later"))
	if a, _, _ = r.take(time.Now()); a == nil || a.uid != "second" {
		t.Fatalf("take = %+v; want the second, while the first waits", a)
	}
	if a, _, wait := r.take(now); a != nil || wait <= 0 || wait > 2*firstDelay {
		t.Errorf("take = %+v, %s; want none for %s", a, wait, firstDelay)
	}
	for range 20 {
		if a, _, _ = r.take(now.Add(affinityDeadline)); a == nil || a.uid != "first" {
			t.Fatalf("take at the deadline = %+v; want the first", a)
		}
		r.retry(a, errors.New("later"))
	}
	if wait := r.arrivals[0].notBefore.Sub(now); wait != affinityDeadline {
		t.Errorf("last try after %s; want %s", wait, affinityDeadline)
	}
}

// A refusal is logged once, and each pod is tried once.
func TestRejectionRefused(t *testing.T) {
	t.Parallel()
	a := startAdmission(t)
	refuse := func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPatch || !strings.Contains(r.URL.Path, "/pods/") {
			return false
		}
		status(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, `pods "x" is forbidden: ValidatingAdmissionPolicy 'x' with binding 'x' denied request: no`)
		return true
	}
	a.set(func() { a.fault = refuse })
	for i := range 5 {
		a.add(newPod(strconv.Itoa(i), licence), kube.AffinityRefused, i+1)
	}
	if n := strings.Count(a.log.String(), "could not reject a pod"); n != 1 || a.sent != 5 {
		t.Errorf("%d writes, logged %d times; want 5, and once; log:\n%s", a.sent, n, a.log.String())
	}
	a.set(func() { a.fault = nil })
	a.add(newPod("a", licence), kube.AffinityRejected, 1)
	a.set(func() { a.fault = refuse })
	a.add(newPod("b", licence), kube.AffinityRefused, 6)
	if n := strings.Count(a.log.String(), "could not reject a pod"); n != 2 {
		t.Errorf("logged %d times after a rejection has succeeded; want 2", n)
	}
}

// An API server that answers slowly is asked again, and a write whose answer was lost counts as written.
func TestRejectionWithoutAnswer(t *testing.T) {
	t.Parallel()
	a := startAdmission(t)
	failures := 0
	a.set(func() {
		a.fault = func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/events") || failures == 3 {
				return false
			}
			failures++
			if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/pods/") {
				a.servePod(noAnswer{w}, r)
			}
			status(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "later")
			return true
		}
	})
	a.add(newPod("a", licence), kube.AffinityRejected, 1)
	a.set(func() {
		a.fault = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/pods/") {
				a.servePod(noAnswer{w}, r)
				status(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "later")
				return true
			}
			return false
		}
	})
	before := a.sent
	a.add(newPod("b", licence), kube.AffinityRejected, 2)
	if a.sent != before+1 {
		t.Errorf("%d writes of a pod whose first one has succeeded without an answer; want 1", a.sent-before)
	}
	a.until("events", func() bool { return a.requested("POST NodeAffinity") == 2 })
}

// noAnswer drops an answer.
type noAnswer struct{ http.ResponseWriter }

func (noAnswer) Write(b []byte) (int, error) { return len(b), nil }

// A rejection that the API server could not write again is tried again, however often, and not in dry run.
func TestRejectionAgainFails(t *testing.T) {
	t.Parallel()
	a := startAdmission(t)
	a.add(newPod("a", licence), kube.AffinityRejected, 1)
	undo := func() {
		p := a.pod("web-a").DeepCopy()
		p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodPending, "", ""
		a.api.change(watch.Modified, p)
	}
	failures := 0
	a.set(func() {
		a.fault = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPatch || !strings.Contains(r.URL.Path, "/pods/") || failures == 3 {
				return false
			}
			failures++
			status(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "later")
			return true
		}
	})
	undo()
	a.until("second write", func() bool { return strings.HasSuffix(a.pod("web-a").Annotations[annotationEvicted], "/2") })
	a.want("web-a", corev1.PodFailed, "NodeAffinity")
	if n := strings.Count(a.log.String(), "could not write the rejection"); n != 3 {
		t.Errorf("failures logged %d times; want 3; log:\n%s", n, a.log.String())
	}
	a.until("log", func() bool { return strings.Count(a.log.String(), "wrote it again") == 1 })
	a.SetNode(nil)
	writes := a.sent
	undo()
	a.until("log", func() bool { return strings.Contains(a.log.String(), "it is not written again") })
	if a.set(func() {}); a.sent != writes {
		t.Errorf("%d writes in dry run; want none", a.sent-writes)
	}
	a.want("web-a", corev1.PodPending, "")
}

// The kubelet may write the status that it had in mind when the pod came, until it has seen the rejection.
func TestRejectionIsWrittenAgain(t *testing.T) {
	t.Parallel()
	a := startAdmission(t)
	a.add(newPod("a", licence), kube.AffinityRejected, 1)
	undo := func(change func(*corev1.Pod)) {
		p := a.pod("web-a").DeepCopy()
		p.Status.Reason, p.Status.Message = "", ""
		change(p)
		a.api.change(watch.Modified, p)
	}
	undo(func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending })
	a.until("second write", func() bool { return strings.HasSuffix(a.pod("web-a").Annotations[annotationEvicted], "/2") })
	a.want("web-a", corev1.PodFailed, "NodeAffinity")
	// A rejection is not written over a status that has come since: of a container that has started, for example.
	writes := a.sent
	between := true
	a.set(func() {
		a.fault = func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/pods/") && between {
				between = false
				p := a.pod("web-a").DeepCopy()
				p.ResourceVersion = "between"
				a.api.change(watch.Modified, p)
			}
			return false
		}
	})
	undo(func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending })
	a.until("third write", func() bool { return strings.HasSuffix(a.pod("web-a").Annotations[annotationEvicted], "/3") })
	if a.set(func() {}); a.sent != writes+2 {
		t.Errorf("%d writes; want one that conflicts, and one", a.sent-writes)
	}
	undo(func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{ContainerID: "x", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	})
	time.Sleep(100 * time.Millisecond)
	if a.set(func() {}); a.sent != writes+2 {
		t.Errorf("%d writes after a container has started; want none", a.sent-writes-2)
	}
	a.api.change(watch.Deleted, a.pod("web-a"))
	a.until("end", func() bool {
		a.rejector.mu.Lock()
		defer a.rejector.mu.Unlock()
		return len(a.rejector.rejected) == 0
	})
}

// The kubelet may write its status, and the pod may go, while there is no watch.
func TestRejectionUndoneWithoutWatch(t *testing.T) {
	t.Parallel()
	a := startAdmission(t)
	a.add(newPod("a", licence), kube.AffinityRejected, 1)
	uid := a.pod("web-a").UID
	a.api.set(func() {
		a.api.gone = true
		a.api.version++
		p := a.api.pods[uid].DeepCopy()
		p.ResourceVersion = fmt.Sprint(a.api.version)
		p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodPending, "", ""
		a.api.pods[uid] = p
	})
	a.until("second write", func() bool { return strings.HasSuffix(a.pod("web-a").Annotations[annotationEvicted], "/2") })
	a.want("web-a", corev1.PodFailed, "NodeAffinity")
	a.api.set(func() {
		a.api.gone = true
		delete(a.api.pods, uid)
	})
	a.until("end", func() bool {
		a.rejector.mu.Lock()
		defer a.rejector.mu.Unlock()
		return len(a.rejector.rejected) == 0
	})
}
