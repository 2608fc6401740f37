package cluster

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/kube"
)

// faultsEnv is the environment variable with a regular expression: TestEvictionFaults and TestSoftEvictionFaults have
// the rows whose names match. A name is that of a step and that of a fault, as in "fenced-evictd".
const faultsEnv = "EVICTD_TEST_FAULTS"

const (
	// faultTime is how long a program is stopped, or away. The kubelet starts a container again
	// within 0.2-1.7 s.
	faultTime = 3 * time.Second
	// reconnectTime bounds the time until a replacement runs after the API server was killed: the watches of the kubelet and of the
	// controllers wait for longer and longer before they try again (up to 98 s seen).
	reconnectTime = 5 * time.Minute
	apiKilled     = "killed"
	// softGrace is the grace period of soft evictions. It is longer than a fault and the steps around it.
	softGrace = 8 * time.Second
	// softThreshold is met by a hog that takes softHogSize, and podsThreshold is not.
	softThreshold, softHogSize = 768 * mebibyte, 384 * mebibyte
)

// step is a point of an eviction.
type step struct {
	name string
	kind string // of the workload
	spec fields // of its pod
	// reach evicts the workload's pod up to this step.
	reach func(*kubeNode, *workload) reached
	// deleted is set if the pod is deleted instead of reported: then its final status has no reason. And the kubelet ends it
	// at the end of its grace period, and starts no container of it, so it needs no fence while evictd is away.
	deleted bool
	// verdict is set if the kubelet reports the end of the pod under its own verdict a second after it. The fault delays
	// evictd's report for longer, so that there may be no reason.
	verdict bool
}

// reached is an eviction that does not leave its step.
type reached struct {
	victim *victim
	// next lets it go on during the fault, and end after the fault. Each may be nil.
	next, end func()
}

// fault stops a part of the system, and lets it go on.
type fault struct {
	name       string
	begin, end func(*kubeNode)
}

var faults = []fault{
	{"evictd", func(c *kubeNode) { kill(c.t, c.cmd) }, (*kubeNode).startAgent},
	{"evictd-kube", func(c *kubeNode) { kill(c.t, c.kube) }, (*kubeNode).startKube},
	{"kubelet", func(c *kubeNode) { kill(c.t, c.kubelet) }, func(c *kubeNode) { c.startKubelet() }},
	{"paused", func(c *kubeNode) { c.pauseAPI() }, func(c *kubeNode) { c.resumeAPI() }},
	{apiKilled, func(c *kubeNode) { c.stopAPI() }, func(c *kubeNode) { c.startAPI() }},
}

// hardSteps returns the steps of a hard eviction.
func hardSteps() []step {
	alone, late := podSpec("Always", hogContainer("main")), hogWith("late", "hold", "-bytes", "8388608")
	withLate := podSpec("Always", hogContainer("main"), late)
	return []step{
		{name: "fenced", kind: "StatefulSet", spec: alone, reach: (*kubeNode).untilFenced},
		{name: "exiting", kind: "StatefulSet", spec: withLate, reach: (*kubeNode).untilExiting},
		{name: "marked", kind: "Job", spec: podSpec("Never", hogContainer("main"), late), reach: (*kubeNode).untilMarked, verdict: true},
		{name: "reported", kind: "Deployment", spec: alone, reach: (*kubeNode).untilReported},
		{name: "undone", kind: "Deployment", spec: withLate, reach: (*kubeNode).untilUndone},
	}
}

// softSteps returns the steps of an eviction with a grace period, in which the pod ignores SIGTERM.
func softSteps() []step {
	spec := podSpec("Always", hogWith("main", "grow", "-bytes", strconv.Itoa(softHogSize), "-delay", "24h", "-ignore-term"))
	return []step{
		{name: "ordered", kind: "Deployment", spec: spec, reach: (*kubeNode).untilOrdered},
		{name: "stopping", kind: "Deployment", spec: spec, reach: (*kubeNode).untilStopping},
		{name: "over", kind: "Deployment", spec: spec, reach: (*kubeNode).untilGraceOver},
		{name: "disrupted", kind: "StatefulSet", spec: spec, reach: (*kubeNode).untilDisrupted, deleted: true},
		{name: "deleted", kind: "StatefulSet", spec: spec, reach: (*kubeNode).untilDeleted, deleted: true},
		{name: "deleted-over", kind: "StatefulSet", spec: spec, reach: (*kubeNode).untilDeletedGraceOver, deleted: true},
	}
}

// TestEvictionFaults: a hard eviction ends as it must if evictd, evictd-kube or the kubelet is killed at one of its
// steps, or the API server is stopped for some seconds or killed. These are some of the rows. With
// EVICTD_TEST_FAULTS=. all of them are tested.
func TestEvictionFaults(t *testing.T) {
	testFaults(t, hardSteps(), false, `^(fenced-(evictd|paused)|exiting-evictd|marked-kubelet|reported-kubelet|undone-evictd-kube)$`)
}

// TestSoftEvictionFaults is the same for evictions with a grace period.
func TestSoftEvictionFaults(t *testing.T) {
	testFaults(t, softSteps(), true, `^(ordered-paused|stopping-kubelet|disrupted-evictd-kube|deleted-kubelet|deleted-over-evictd-kube)$`)
}

// testFaults has the rows of steps whose names match usual, or what the environment says.
func testFaults(t *testing.T, steps []step, soft bool, usual string) {
	t.Helper()
	if !inNamespaces(t) {
		return
	}
	chosen, err := regexp.Compile(cmp.Or(os.Getenv(faultsEnv), usual))
	if err != nil {
		t.Fatalf("%s: %v", faultsEnv, err)
	}
	c := startKubeNode(t)
	if soft {
		c.settings = fmt.Sprintf("evictionSoft: {allocatableMemory.available: %d}\nevictionSoftGracePeriod: {allocatableMemory.available: 1s}\nevictionMaxPodGracePeriod: %d\n",
			softThreshold, int(softGrace/time.Second))
	}
	c.startEnforcing()
	rows := 0
	for _, s := range steps {
		for _, f := range faults {
			if name := s.name + "-" + f.name; chosen.MatchString(name) {
				began := time.Now()
				c.failAt(&workload{name, s.kind, s.spec}, &s, &f, soft)
				t.Logf("%s took %v", name, since(began))
				rows++
			}
		}
	}
	t.Logf("%d rows", rows)
}

// failAt evicts a workload's pod with a fault at one step.
func (c *kubeNode) failAt(w *workload, s *step, f *fault, soft bool) {
	c.t.Helper()
	c.create(w)
	h := s.reach(c, w)
	h.victim.interrupted, h.victim.soft = f.name == "evictd", soft
	c.patience = 0
	if f.name == apiKilled {
		c.patience = reconnectTime
	}
	f.begin(c)
	if h.next != nil {
		h.next()
	}
	time.Sleep(faultTime)
	f.end(c)
	if h.end != nil {
		h.end()
	}
	h.victim.checkAfterFault(s)
	c.until("end of the order and the fence of "+w.name, func() bool {
		k := c.kubernetes()
		return k != nil && k.Orders.Pending == 0 && k.Orders.Fences == 0 && k.Orders.FencesUnlifted == 0
	})
	// Pods that end would be waited for in the next eviction.
	c.must("DELETE", workloadPaths[w.kind]+"/"+w.name, `{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}`)
	c.must("DELETE", workloadPaths["Pod"]+"?labelSelector=app%3D"+w.name, `{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0}`)
}

// checkAfterFault is check for an eviction of which each problem counts, except what the step explains.
func (v *victim) checkAfterFault(s *step) {
	v.c.t.Helper()
	e := v.result()
	v.c.t.Logf("%s %s: %v", v.w.kind, v.w.name, &e)
	// The kubelet's status, which waited for the API server, too, can follow evictd's, and the controller deletes the
	// object of a pod that it saw Failed before evictd-kube can write again.
	explained := []problemKind{problemDeleted}
	deleted := slices.ContainsFunc(e.problems, func(p problem) bool { return p.kind == problemDeleted })
	if phase := v.state().Status.Phase; phase != corev1.PodFailed && !deleted {
		v.c.t.Errorf("%s %s: final phase %s; want Failed", v.w.kind, v.w.name, phase)
	}
	if s.deleted || s.verdict {
		explained = append(explained, problemReason, problemLate)
	}
	if s.deleted && v.interrupted && !v.lifted {
		explained = append(explained, problemFence)
	}
	for _, p := range e.problems {
		report := v.c.t.Errorf
		if slices.Contains(explained, p.kind) {
			report = v.c.t.Logf
		}
		report("%s %s: %s: %s", v.w.kind, v.w.name, p.kind, p.text)
	}
	if len(e.problems) > 0 {
		v.c.t.Logf("%s %s:%s", v.w.kind, v.w.name, v.history(&e))
	}
}

// pause stops a program. The function that is returned lets it go on, unless it was killed.
func (c *kubeNode) pause(cmd *exec.Cmd) (goOn func()) {
	c.t.Helper()
	signal(c.t, cmd, syscall.SIGSTOP)
	return func() {
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
			c.t.Fatal(err)
		}
	}
}

// untilState waits for a state of a victim that the API server shows.
func (v *victim) untilState(what string, ok func(*podState) bool) {
	v.c.t.Helper()
	v.c.until(what+" of "+v.w.name, func() bool { s := v.state(); return ok(&s) })
}

// state returns the last state of a victim that the API server has shown.
func (v *victim) state() podState {
	states := v.c.events.of(string(v.pod.UID))
	return states[len(states)-1]
}

func (s *podState) evicted() bool {
	return s.Status.Phase == corev1.PodFailed && s.Status.Reason == "Evicted" && s.Annotations["evictd.io/evicted"] != ""
}

func (s *podState) disrupted() bool {
	return slices.ContainsFunc(s.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Reason == disruptionReason
	})
}

// untilOrder waits for a stage of a victim's order, and returns the order.
func (v *victim) untilOrder(stage kube.Stage) (found control.Order) {
	v.c.t.Helper()
	v.c.until(fmt.Sprintf("stage %s of the order for %s", stage, v.w.name), func() bool {
		k := v.c.kubernetes()
		if k == nil {
			return false
		}
		i := slices.IndexFunc(k.Orders.Oldest, func(o control.Order) bool { return o.UID == string(v.pod.UID) && o.Stage == string(stage) })
		if i >= 0 {
			found = k.Orders.Oldest[i]
		}
		return i >= 0
	})
	return found
}

// mustRun fails the test if a victim in its grace period has ended.
func (v *victim) mustRun() {
	v.c.t.Helper()
	if v.ended() {
		v.c.t.Errorf("%s has ended; want it to be in its grace period", v.w.name)
	}
}

// untilFenced: the pod is killed and fenced, and nothing is written to the API.
func (c *kubeNode) untilFenced(w *workload) reached {
	c.t.Helper()
	c.waitEligible(w) // with facts
	goOn := c.pause(c.kube)
	v := c.grown(w)
	c.until("fence of "+w.name, func() bool { return v.ended() && v.isFenced() })
	if o := v.untilOrder(kube.StageEnded); o.Answer != "" {
		c.t.Errorf("answer %q to the order for %s; want none", o.Answer, w.name)
	}
	return reached{victim: v, next: goOn}
}

// untilExiting: the pod is killed, and the end of its last process is waited for.
func (c *kubeNode) untilExiting(w *workload) reached {
	c.t.Helper()
	v, end := c.exiting(w)
	if o := v.untilOrder(kube.StageKilled); !o.AwaitsProcesses {
		c.t.Errorf("order for %s: %+v; want it to wait for processes", w.name, o)
	}
	return reached{victim: v, end: end}
}

// untilMarked: the same of a pod that is not restarted, which has its condition by then.
func (c *kubeNode) untilMarked(w *workload) reached {
	c.t.Helper()
	h := c.untilExiting(w)
	h.victim.untilState("condition", func(s *podState) bool { return s.disrupted() && s.Status.Phase == corev1.PodRunning })
	return h
}

// untilReported: the pod is reported, and its cgroup remains.
func (c *kubeNode) untilReported(w *workload) reached {
	c.t.Helper()
	c.waitEligible(w) // before the kubelet is stopped
	goOn := c.pause(c.kubelet)
	v := c.grown(w)
	v.untilState("report", (*podState).evicted)
	return reached{victim: v, next: goOn}
}

// untilUndone: the kubelet has taken the reason back, and evictd-kube has not written it again.
func (c *kubeNode) untilUndone(w *workload) reached {
	c.t.Helper()
	c.waitEligible(w)
	resumeKubelet := c.pause(c.kubelet)
	v, end := c.exiting(w)
	v.untilState("report", (*podState).evicted)
	resumeReporter := c.pause(c.kube)
	resumeKubelet()
	v.untilState("status without a reason", func(s *podState) bool { return s.Status.Reason == "" })
	return reached{victim: v, next: resumeReporter, end: func() {
		c.t.Helper()
		v.untilState("second report", (*podState).evicted)
		end()
	}}
}

// untilOrdered: the pod has a grace period, of which nothing is written to the API.
func (c *kubeNode) untilOrdered(w *workload) reached {
	c.t.Helper()
	c.waitEligible(w)
	goOn := c.pause(c.kube)
	v := c.grown(w)
	if o := v.untilOrder(kube.StageStopping); o.Answer != "" {
		c.t.Errorf("answer %q to the order for %s; want none", o.Answer, w.name)
	}
	v.mustRun()
	return reached{victim: v, next: goOn}
}

// untilStopping: the pod is reported and in its grace period.
func (c *kubeNode) untilStopping(w *workload) reached {
	c.t.Helper()
	return c.inGracePeriod(w, "report", (*podState).evicted)
}

// inGracePeriod evicts a workload's pod until the API server shows a state of it, which is in its grace period.
func (c *kubeNode) inGracePeriod(w *workload, what string, ok func(*podState) bool) reached {
	c.t.Helper()
	v := c.grown(w)
	v.untilState(what, ok)
	v.untilOrder(kube.StageStopping)
	v.mustRun()
	return reached{victim: v}
}

// untilGraceOver: the pod is killed at the end of its grace period, and its cgroup remains.
func (c *kubeNode) untilGraceOver(w *workload) reached {
	c.t.Helper()
	return c.graceOver(c.untilStopping(w))
}

// graceOver holds an eviction after the kill at the end of its grace period.
func (c *kubeNode) graceOver(h reached) reached {
	c.t.Helper()
	h.next = c.pause(c.kubelet)
	c.until("kill of "+h.victim.w.name, func() bool { return h.victim.ended() && h.victim.isFenced() })
	return h
}

// untilDisrupted: the pod has a grace period and the condition, and is not deleted.
func (c *kubeNode) untilDisrupted(w *workload) reached {
	c.t.Helper()
	allow := c.forbidDelete()
	v := c.grown(w)
	v.untilState("condition", (*podState).disrupted)
	goOn := c.pause(c.kube)
	allow()
	if s := v.state(); s.DeletionTimestamp != nil {
		c.t.Errorf("%s is deleted already", w.name)
	}
	v.mustRun()
	return reached{victim: v, next: goOn}
}

// untilDeleted: the pod is deleted with its grace period, which has not ended.
func (c *kubeNode) untilDeleted(w *workload) reached {
	c.t.Helper()
	return c.inGracePeriod(w, "deletion", func(s *podState) bool { return s.disrupted() && s.DeletionTimestamp != nil })
}

// untilDeletedGraceOver: the same after the kill at the end of the grace period.
func (c *kubeNode) untilDeletedGraceOver(w *workload) reached {
	c.t.Helper()
	return c.graceOver(c.untilDeleted(w))
}

// forbidDelete takes the right to delete pods from evictd-kube. The function that is returned gives it back.
func (c *kubeNode) forbidDelete() (allow func()) {
	c.t.Helper()
	const path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/evictd-kube"
	role := decode[rbacv1.ClusterRole](c.t, c.must("GET", path, ""))
	write := func(rules []rbacv1.PolicyRule) {
		c.t.Helper()
		body, err := json.Marshal(fields{"rules": rules})
		if err == nil {
			_, err = c.request(http.MethodPatch, path, "application/merge-patch+json", string(body))
		}
		c.check(err)
	}
	var less []rbacv1.PolicyRule
	for _, rule := range role.Rules {
		rule.Verbs = slices.DeleteFunc(slices.Clone(rule.Verbs), func(verb string) bool { return verb == "delete" })
		less = append(less, rule)
	}
	write(less)
	return func() { write(role.Rules) }
}
