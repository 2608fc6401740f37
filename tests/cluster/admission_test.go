package cluster

import (
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	evictsignal "github.com/evictd/evictd/agent/signal"
)

// refusalMessage is the kubelet's when it refuses a pod.
const refusalMessage = "The node had condition: [MemoryPressure]. "

// TestAdmission: under memory pressure, a BestEffort pod that is bound to the node past the
// scheduler is refused; one that requests memory and one of a DaemonSet run.
func TestAdmission(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	c := startKubeNode(t)
	c.settings, c.transition = "admission: evict\n", 5*time.Minute // longer than the test
	c.startEnforcing()
	before := &workload{"before", "Pod", bound(podSpec("Always", hogContainer("main")))}
	hog := &workload{"hog", "Pod", podSpec("Never", hogContainer("main"))}
	c.create(before)
	c.create(hog)
	c.waitRunning(before)
	c.evict(hog)
	c.until("memory pressure", func() bool { return slices.Contains(c.status().Conditions, evictsignal.MemoryPressure) })

	requests := hogContainer("main")
	requests["resources"] = fields{"requests": fields{"memory": "16Mi"}}
	daemon := podSpec("Always", hogContainer("main"))
	daemon["tolerations"] = []fields{{"operator": "Exists"}} // of taints, or it is not scheduled
	port := hogContainer("main")
	port["ports"] = []fields{{"containerPort": 20001, "hostPort": 20001, "hostIP": nodeAddress}}
	admitted := []*workload{{"burstable", "Pod", bound(podSpec("Always", requests))}, {"daemon", "DaemonSet", daemon}}
	unstarted := held("unstarted", "never") // the kubelet can't be first
	refused := []*workload{{"besteffort", "Pod", bound(podSpec("Always", hogContainer("main")))}, {"never", "Pod", bound(podSpec("Never", hogContainer("main")))}}
	exclusive := &workload{"exclusive", "Pod", bound(podSpec("Always", port))}
	for _, w := range append(append(admitted, refused...), unstarted, exclusive) {
		c.create(w)
	}
	for _, w := range refused { // which may have started
		c.checkRefused(w)
	}
	if got := c.checkRefused(unstarted); got != evict.ResultRefused {
		t.Errorf("result of a pod that can't start = %s; want it refused", got)
	}
	if got := c.checkRefused(exclusive); got != evict.ResultKilled {
		t.Errorf("result of a pod that must not run twice = %s; want it killed", got)
	}
	for _, w := range append(admitted, before) {
		c.waitRunning(w)
	}
	time.Sleep(restartTime)
	for _, w := range append(admitted, before) {
		if _, ok := c.events.running(w.name); !ok {
			t.Errorf("%s does not run after %v", w.name, restartTime)
		}
	}
	for _, w := range append(refused, unstarted, exclusive) {
		s := c.events.last(w.name)
		if hogs := c.hogs(&s[0].Pod); len(hogs) > 0 || s[0].Status.Phase != corev1.PodFailed {
			t.Errorf("%s: phase %s, processes %v after %v", w.name, s[0].Status.Phase, hogs, restartTime)
		}
	}
}

// bound binds a pod to the node when it is created.
func bound(spec fields) fields {
	spec["nodeName"] = "n1"
	return spec
}

// checkRefused waits until a pod is refused, and returns the result of its record: that it had not
// started, or was killed.
func (c *kubeNode) checkRefused(w *workload) (result string) {
	c.t.Helper()
	var states []podState
	var failed podState
	c.until("refusal of "+w.name, func() (ok bool) {
		if last := c.events.last(w.name); len(last) > 0 {
			states = c.events.of(string(last[0].UID))
		}
		failed, ok = first(states, func(s *podState) bool { return s.Status.Phase == corev1.PodFailed && s.Status.Reason == "Evicted" })
		return ok
	})
	c.t.Logf("%s: Failed %v after its creation", w.name, failed.at.Sub(states[0].at).Round(time.Millisecond))
	if failed.Status.Message != refusalMessage {
		c.t.Errorf("%s: message %q; want %q", w.name, failed.Status.Message, refusalMessage)
	}
	var record evict.Record
	c.until("record of "+w.name, func() bool {
		for _, r := range c.status().Records {
			if r.UID == string(states[0].UID) {
				record = r
			}
		}
		return record.Result != "" && record.Result != evict.ResultPending && record.ReportAnswer != ""
	})
	c.t.Logf("%s: %s, %s", w.name, record.Result, record.ReportAnswer)
	if s, _ := first(states, func(s *podState) bool { return s.Status.Phase == corev1.PodFailed }); record.Result == evict.ResultRefused && s.at != failed.at {
		c.t.Errorf("%s: first Failed with the reason %q, although it had not started", w.name, s.Status.Reason)
	}
	ok := record.Result == evict.ResultRefused || record.Result == evict.ResultKilled
	if record.Cause != evict.CauseAdmission || !ok || record.Message != refusalMessage || record.Error != "" {
		c.t.Errorf("%s: record %+v; want that of a refusal", w.name, record)
	}
	c.until("end of "+w.name, func() bool {
		last := c.events.last(w.name)
		return !slices.ContainsFunc(last[0].Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Running != nil })
	})
	c.until("end of the order of "+w.name, func() bool {
		return !slices.ContainsFunc(c.status().Kubernetes.Orders.Oldest, func(o control.Order) bool { return o.UID == record.UID })
	})
	return record.Result
}

// TestEvictsTerminatingPod: a pod that takes memory while it is being deleted is killed and
// not reported.
func TestEvictsTerminatingPod(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	c := startKubeNode(t)
	c.startEnforcing()
	hog := hogContainer("main")
	hog["lifecycle"] = fields{"preStop": fields{"exec": fields{"command": []string{"/hog", "pause"}}}}
	w := &workload{"terminating", "Pod", podSpec("Always", hog)}
	c.create(w)
	p := c.waitRunning(w)
	uid := string(p.UID)
	c.until("eligible pod", func() bool { return c.eligible(uid) })
	c.must(http.MethodDelete, workloadPaths["Pod"]+"/"+w.name, `{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":60}`)
	time.Sleep(3 * time.Second) // longer than it counts as memory that is coming back
	v := c.observe(w, &p.Pod)
	began := time.Now()
	c.grow(&p.Pod)
	c.until("kill", v.ended)
	killed := time.Since(began)
	c.until("end of the pod", func() bool {
		states := c.events.of(uid)
		return states[len(states)-1].deleted
	})
	t.Logf("killed %v after it grew, object gone after %v", killed, time.Since(began))
	if gone := time.Since(began); gone > 30*time.Second {
		t.Errorf("object gone after %v; want less than its grace period", gone)
	}
	<-v.done
	if v.fenced.IsZero() || v.lifted || len(v.revived) > 0 {
		t.Errorf("fenced at %v, lifted %t, later processes %v", v.fenced, v.lifted, v.revived)
	}
	if logs := c.restarted(&p.Pod); len(logs) > 0 {
		t.Errorf("containers ran again: %v", logs)
	}
	c.checkUnreported(v)
}

// checkUnreported checks that a killed pod was recorded, and that nothing was written about it.
func (c *kubeNode) checkUnreported(v *victim) {
	c.t.Helper()
	for _, s := range c.events.of(string(v.pod.UID)) {
		if s.Annotations["evictd.io/evicted"] != "" || s.Status.Reason == "Evicted" || slices.ContainsFunc(s.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.DisruptionTarget }) {
			c.t.Errorf("evictd has written to the pod: %q, %+v", s.Annotations, s.Status)
		}
	}
	var record evict.Record
	c.until("record", func() bool {
		record, _ = v.record()
		return record.Result != evict.ResultPending && record.ReportAnswer != ""
	})
	if record.Result != evict.ResultKilled || record.ReportAnswer != "terminating" || record.DisruptionTarget {
		c.t.Errorf("record %+v; want it killed, and not reported", record)
	}
	c.until("end of the order", func() bool {
		o := c.status().Kubernetes.Orders
		return o.Pending == 0 && o.Fences == 0
	})
	if o := c.status().Kubernetes.Orders; o.FencesLifted > 0 || o.Answers["terminating"] != 1 {
		c.t.Errorf("orders %+v; want one answer, and the fence gone with the cgroup", o)
	}
	events := decode[eventsv1.EventList](c.t, c.must(http.MethodGet, "/apis/events.k8s.io/v1/namespaces/default/events", ""))
	for _, e := range events.Items {
		if e.Regarding.UID == v.pod.UID && e.Reason == "Evicted" {
			c.t.Errorf("event about the pod: %s", e.Note)
		}
	}
}
