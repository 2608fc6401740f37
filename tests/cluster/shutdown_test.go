package cluster

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/tests/node"
)

// The times of TestShutdown: of the shutdown of the node, of the part that is for critical pods, of the preStop hook
// of a pod, and by when the pods without such a hook have stopped if nothing is reported.
var shutdownPeriod, criticalPeriod, preStopTime, unreportedTime = stretched(15 * time.Second), stretched(2 * time.Second), stretched(3 * time.Second), stretched(10 * time.Second)

// stretched returns a time of the shutdown as it is on this machine: longer if the processor is emulated, by less than
// timeouts are, as the tests wait for it.
func stretched(d time.Duration) time.Duration { return d * min(4, node.ScaleTimeout(1)) }

// TestShutdown: when the node shuts down, evictd stops the pods of a kubelet that has no shutdown
// grace period. The kubelet runs preStop hooks, no pod that must not run twice does, and a static pod
// does not run again until the shutdown is canceled. An evictd that is killed goes on with it. Without
// the API server the pods stop as well.
func TestShutdown(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	c := startKubeNode(t)
	manifests := filepath.Join(c.dir, "manifests")
	if err := os.Mkdir(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	c.restartKubelet(func(yaml string) string { return yaml + "staticPodPath: " + manifests + "\n" })
	c.settings = "shutdownGracePeriod: " + shutdownPeriod.String() + "\nshutdownGracePeriodCriticalPods: " + criticalPeriod.String() + "\n"
	c.startEnforcing()
	c.until("evictd's shutdown", func() bool { return len(c.status().Shutdown.Why) == 0 })

	hook := func() fields {
		hog := hogContainer("main")
		hog["lifecycle"] = fields{"preStop": fields{"sleep": fields{"seconds": int(preStopTime.Seconds())}}}
		return podSpec("Always", hog)
	}
	stubborn := podSpec("Always", hogWith("main", "grow", "-bytes", "8388608", "-delay", "24h", "-ignore-term"))
	stubborn["terminationGracePeriodSeconds"] = int(shutdownPeriod.Seconds())
	workloads := []*workload{
		{"graceful", "Deployment", hook()}, {"exclusive", "StatefulSet", hook()}, {"stubborn", "Deployment", stubborn},
	}
	for _, w := range workloads[:2] {
		c.create(w)
	}
	static := &workload{"static", "Pod", podSpec("Always", hogContainer("main"))}
	c.writeStatic(manifests, static)
	if stretched(1) > 1 {
		c.rehearseShutdown(workloads[:2], static)
	}
	c.create(workloads[2])
	c.shutdownReported(workloads, static)
	c.cancelShutdown(static)
	for _, w := range workloads {
		if w.name == "stubborn" {
			c.remove(w)
		}
	}
	c.shutdownWithoutServer(workloads[:2], static)
}

// answerTime is how long evictd waits for the answer to a report before it asks the runtime to stop the pod, which runs no
// preStop hooks (agent/act).
const answerTime = 2 * time.Second

// rehearseShutdown shuts the node down and cancels that. What an emulated API server does for the first time takes seconds,
// longer than answerTime.
func (c *kubeNode) rehearseShutdown(workloads []*workload, static *workload) {
	c.t.Helper()
	pods := c.observed(workloads, static)
	_, began := c.begin()
	for _, w := range workloads {
		c.t.Logf("rehearsal: %s was reported after %v", w.name, pods[w.name].reportedAfter(began))
	}
	c.waitStopped(began)
	c.cancelShutdown(static)
}

// reportedAfter waits for the answer to the report of a pod and returns how long after a time it came.
func (v *victim) reportedAfter(began time.Time) time.Duration {
	v.c.t.Helper()
	var r evict.Record
	v.c.until("answer about "+v.w.name, func() bool {
		r, _ = v.record()
		return !r.Reported.IsZero()
	})
	return r.Reported.Sub(began)
}

// writeStatic writes the manifest of a static pod.
func (c *kubeNode) writeStatic(dir string, w *workload) {
	c.t.Helper()
	content, err := json.Marshal(fields{
		"apiVersion": "v1", "kind": "Pod", "metadata": fields{"name": w.name, "namespace": "default", "labels": fields{"app": w.name + "-n1"}}, "spec": w.template,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, w.name+".json"), content, 0o644); err != nil {
		c.t.Fatal(err)
	}
}

// waitStatic waits until the static pod runs and returns it as the runtime has it: with the
// kubelet's UID, not with that of its object.
func (c *kubeNode) waitStatic(w *workload) *corev1.Pod {
	c.t.Helper()
	var pod corev1.Pod
	c.until("static pod", func() bool {
		for _, s := range c.events.last(w.name + "-n1") {
			if !s.deleted && s.Status.Phase == corev1.PodRunning {
				pod = s.Pod
				pod.UID = types.UID(s.Annotations["kubernetes.io/config.hash"])
				return len(c.hogs(&pod)) > 0
			}
		}
		return false
	})
	return &pod
}

// begin begins a shutdown as an operator does, between the times that it returns.
func (c *kubeNode) begin() (before, after time.Time) {
	c.t.Helper()
	before = time.Now()
	if _, err := control.NewClient(c.control()).BeginShutdown(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	return before, time.Now()
}

// waitStopped waits for the end of the shutdown and returns the state of evictd then.
func (c *kubeNode) waitStopped(began time.Time) control.Status {
	c.t.Helper()
	var s control.Status
	c.until("end of the shutdown", func() bool {
		s = c.status()
		return s.Shutdown.Phase == string(shutdown.Ended)
	})
	if took := time.Since(began); took > shutdownPeriod+shutdown.Reserve {
		c.t.Errorf("the shutdown took %v; want at most %v", took, shutdownPeriod+shutdown.Reserve)
	}
	c.t.Logf("pods stopped after %v", since(began))
	return s
}

// observed begins to observe the pods of workloads, by their names.
func (c *kubeNode) observed(workloads []*workload, static *workload) map[string]*victim {
	c.t.Helper()
	all := map[string]*victim{}
	for _, w := range workloads {
		p := c.waitRunning(w)
		c.until("facts about "+w.name, func() bool { return c.eligible(string(p.UID)) })
		all[w.name] = c.observe(w, &p.Pod)
	}
	all[static.name] = c.observe(static, c.waitStatic(static))
	return all
}

// emptyAfter returns how long after a time the last process of the pod was gone.
func (v *victim) emptyAfter(began time.Time) time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.empty.IsZero() {
		v.c.t.Errorf("%s: processes are left", v.w.name)
	}
	if len(v.revived) > 0 {
		v.c.t.Errorf("%s: processes ran again: %q", v.w.name, v.revived)
	}
	return v.empty.Sub(began).Round(time.Millisecond)
}

// reportedAs returns the answer in the last record of a pod, which must be that of a shutdown.
func (v *victim) reportedAs() string {
	var r evict.Record
	v.c.until("end of the record of "+v.w.name, func() bool {
		found, ok := v.record()
		r = found
		return ok && r.Result != evict.ResultPending
	})
	if r.Cause != evict.CauseShutdown || r.Reason != shutdown.ReasonTerminated || r.Result != evict.ResultKilled && r.Result != evict.ResultStopped {
		v.c.t.Errorf("record of %s: %+v; want that of a shutdown", v.w.name, r)
	}
	return r.ReportAnswer
}

// saved reports whether evictd has saved the end of the pod's record.
func (v *victim) saved() bool {
	content, err := os.ReadFile(filepath.Join(v.c.dir, "state", "state.json"))
	if err != nil {
		return false
	}
	records := decode[struct{ Records []evict.Record }](v.c.t, content).Records
	i := slices.IndexFunc(records, func(r evict.Record) bool { return r.UID == string(v.pod.UID) && r.Cause == evict.CauseShutdown })
	return i >= 0 && records[i].Result != evict.ResultPending
}

// shutdownReported shuts the node down, and kills evictd while it waits for the end of a pod that
// ignores SIGTERM.
func (c *kubeNode) shutdownReported(workloads []*workload, static *workload) {
	c.t.Helper()
	pods := c.observed(workloads, static)
	before, began := c.begin()
	ended := []*victim{pods["graceful"], pods["exclusive"]}
	for _, v := range ended {
		v.reportedAs() // which would else be unknown
	}
	c.until("saved records", func() bool { return !slices.ContainsFunc(ended, func(v *victim) bool { return !v.saved() }) })
	kill(c.t, c.cmd)
	c.startAgent()
	end := c.waitStopped(began)
	checkTimes(pods, before, began)
	c.checkEnd(pods, &end)
	time.Sleep(stretched(restartTime))
	for _, v := range pods {
		v.emptyAfter(began) // nothing ran again
	}
	if states := c.events.last("exclusive"); slices.ContainsFunc(states, func(s podState) bool {
		return !s.deleted && s.UID != pods["exclusive"].pod.UID && s.Spec.NodeName != ""
	}) {
		c.t.Errorf("a replacement of the pod that must not run twice was scheduled to the node: %+v", states)
	}
}

// checkTimes checks when the pods stopped, and the answers to their reports. The shutdown began between two times.
func checkTimes(pods map[string]*victim, before, began time.Time) {
	groupEnd := shutdownPeriod - criticalPeriod - time.Second // a second is left for the answers
	soon, late := preStopTime+stretched(3*time.Second), groupEnd+stretched(2*time.Second)
	for name, want := range map[string][2]time.Duration{
		"graceful": {preStopTime, soon}, "exclusive": {preStopTime, soon}, "stubborn": {groupEnd - time.Second, late}, "static": {0, late},
	} {
		v := pods[name]
		if want[0] == preStopTime {
			if after := v.reportedAfter(before); after > answerTime {
				v.c.t.Logf("%s was reported after %v, so that the runtime was asked to stop it", name, after)
				want[0] = 0
			}
		}
		if got := v.emptyAfter(began); v.emptyAfter(before) < want[0] || got > want[1] {
			v.c.t.Errorf("%s was stopped after %v; want between %v and %v", name, got, want[0], want[1])
		} else {
			v.c.t.Logf("%s was stopped after %v", name, got)
		}
		answer := v.reportedAs()
		if want := map[bool]string{true: "", false: "reported"}[name == "static"]; answer != want {
			v.c.t.Errorf("%s: answer %q; want %q", name, answer, want)
		}
	}
}

// checkEnd checks the reports and the Node when the shutdown has ended. end is the state of evictd then.
func (c *kubeNode) checkEnd(pods map[string]*victim, end *control.Status) {
	c.t.Helper()
	for _, r := range end.Records { // as they were when evictd let the node go down
		if strings.HasPrefix(r.Pod, "default/") && r.Cause == evict.CauseShutdown && r.ReportAnswer == "" && r.UID != string(pods["static"].pod.UID) {
			c.t.Errorf("%s had no answer at the end of the shutdown: %+v", r.Pod, r)
		}
	}
	for _, name := range []string{"stubborn", "static"} {
		if !pods[name].isFenced() {
			c.t.Errorf("%s was not fenced", name)
		}
	}
	n := c.node()
	if taints := n.taints(); !slices.Contains(taints, "evictd.io/node-shutdown:NoSchedule") {
		c.t.Errorf("taints in the shutdown: %q", taints)
	}
	if condition := n.condition("EvictdNodeShutdown"); condition.Status != corev1.ConditionTrue {
		c.t.Errorf("condition in the shutdown: %+v; want True", condition)
	}
	for _, name := range []string{"graceful", "stubborn"} {
		states := c.events.of(string(pods[name].pod.UID))
		if _, ok := first(states, func(s *podState) bool {
			return s.Status.Phase == corev1.PodFailed && s.Status.Reason == shutdown.ReasonTerminated &&
				s.Status.Message == shutdown.MessageTerminated && s.Annotations["evictd.io/evicted"] != ""
		}); !ok {
			c.t.Errorf("%s was not reported: %s", name, pods[name].history(&outcome{}))
		}
	}
}

// cancelShutdown cancels the operator's shutdown: the static pod runs again, and so do the workloads.
func (c *kubeNode) cancelShutdown(static *workload) {
	c.t.Helper()
	c.until("fence of the static pod", func() bool { s := c.kubernetes(); return s != nil && s.Orders.Fences > 0 }) // set after the stop
	if _, err := control.NewClient(c.control()).CancelShutdown(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	c.waitStatic(static)
	c.until("end of the taint", func() bool {
		return !slices.ContainsFunc(c.node().taints(), func(t string) bool { return strings.HasPrefix(t, "evictd.io/") })
	})
}

// shutdownWithoutServer shuts the node down while the API server is stopped. The reports follow.
func (c *kubeNode) shutdownWithoutServer(workloads []*workload, static *workload) {
	c.t.Helper()
	pods := c.observed(workloads, static)
	c.pauseAPI()
	_, began := c.begin()
	c.waitStopped(began)
	time.Sleep(stretched(restartTime)) // the kubelet tries to start the containers again
	for name, v := range pods {
		c.t.Logf("without the API server %s was stopped after %v", name, v.emptyAfter(began))
		if got := v.emptyAfter(began); got > unreportedTime {
			c.t.Errorf("%s was stopped after %v; want it before the end of the group", name, got)
		}
	}
	c.resumeAPI()
	for _, w := range workloads {
		v := pods[w.name]
		c.until("report of "+w.name, func() bool { r, ok := v.record(); return ok && r.ReportAnswer != "" })
		v.emptyAfter(began)
	}
}
