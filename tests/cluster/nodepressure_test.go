package cluster

import (
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// transitionPeriod is how long the node has a condition after the pressure in these tests: longer than the restart of all
// programs takes.
const transitionPeriod = 30 * time.Second

// taintWatch looks for evictd's taint until the test ends.
type taintWatch struct {
	mu    sync.Mutex
	has   bool
	since time.Time // when has was first seen
	last  time.Time // when a look began that has seen the taint
}

// watchTaint looks at the node every 20 ms.
func (c *kubeNode) watchTaint() *taintWatch {
	w := &taintWatch{}
	ctx := c.t.Context()
	go func() {
		for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
			began := time.Now()
			content, err := c.request("GET", nodePath, "", "")
			if err != nil {
				continue
			}
			has := strings.Contains(string(content), memoryTaint)
			w.mu.Lock()
			if has != w.has {
				w.has, w.since = has, time.Now()
			}
			if has {
				w.last = began
			}
			w.mu.Unlock()
		}
	}()
	return w
}

// state returns whether the node has the taint, since when, and when it was last seen.
func (w *taintWatch) state() (has bool, since, last time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.has, w.since, w.last
}

// underPressure evicts the pod of a DaemonSet, and returns the node when it has the condition and
// the taint.
func (c *kubeNode) underPressure(w *workload, taint *taintWatch, others ...string) (*victim, nodeObject) {
	c.t.Helper()
	v := c.evict(w, others...)
	killed := time.Now()
	c.until("taint", func() bool { has, _, _ := taint.state(); return has })
	_, since, _ := taint.state()
	c.t.Logf("taint seen %v after the kill", since.Sub(killed).Round(time.Millisecond))
	var n nodeObject
	c.until("condition", func() bool {
		n = c.rig.node()
		return n.condition("EvictdMemoryPressure").Status == corev1.ConditionTrue
	})
	return v, n
}

// recreated waits for the pod that the DaemonSet makes after the taint, and fails the test if one
// was there before.
func (c *kubeNode) recreated(w *workload, taint *taintWatch, others ...string) podState {
	c.t.Helper()
	p := c.waitRunning(w, others...)
	states := c.events.of(string(p.UID))
	has, since, last := taint.state()
	if has || states[0].at.Before(last) {
		c.t.Errorf("pod made %v before the taint was last seen, which is there: %t", last.Sub(states[0].at), has)
	}
	c.t.Logf("pod made %v after the taint was gone", states[0].at.Sub(since).Round(time.Millisecond))
	return p
}

// TestNodePressure: while pods are evicted and for the transition period, the node has evictd's
// condition and taint, and a DaemonSet makes no pod. Both stay when the kubelet, evictd and
// evictd-kube are killed and started again, and go when evictd is stopped.
func TestNodePressure(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	c := startKubeNode(t)
	c.transition = transitionPeriod
	c.startEnforcing()
	c.until("conditions", func() bool { return len(c.rig.node().conditions()) == 4 })
	c.wantNode("before the pressure", allConditions())
	taint := c.watchTaint()
	w := &workload{"daemon", "DaemonSet", podSpec("Always", hogContainer("main"))}
	c.create(w)

	v, before := c.underPressure(w, taint)
	kill(t, c.kubelet)
	// A heartbeat has whole seconds. That of the next kubelet, in its first second, is later than the
	// last one of this.
	restarted := time.Now().Truncate(time.Second).Add(time.Second)
	time.Sleep(time.Until(restarted))
	c.startKubelet()
	kill(t, c.kube)
	kill(t, c.cmd)
	c.startAgent()
	c.startKube()
	c.until("node ready", func() bool {
		n := c.rig.node()
		ready := n.condition(corev1.NodeReady)
		return ready.Status == corev1.ConditionTrue && !ready.LastHeartbeatTime.Time.Before(restarted)
	})
	time.Sleep(3 * time.Second) // in which the kubelet takes foreign values of its own conditions back
	after := c.wantNode("all restarted", allConditions(memoryTrue), memoryTaint+":NoSchedule")
	if a, b := before.condition("EvictdMemoryPressure"), after.condition("EvictdMemoryPressure"); !a.LastTransitionTime.Equal(&b.LastTransitionTime) {
		t.Errorf("transition at %v, after the restarts at %v; want it unchanged", a.LastTransitionTime, b.LastTransitionTime)
	}
	second := c.recreated(w, taint, string(v.pod.UID))
	c.wantNode("after the pressure", allConditions())

	// Both are stopped at the same time, as with a DaemonSet.
	first := string(v.pod.UID)
	c.underPressure(w, taint, first)
	began := time.Now()
	signal(t, c.kube, syscall.SIGTERM)
	signal(t, c.cmd, syscall.SIGTERM)
	if err := c.cmd.Wait(); err != nil {
		t.Error(err)
	}
	evictdEnded := time.Since(began)
	if err := c.kube.Wait(); err != nil {
		t.Error(err)
	}
	t.Logf("stopped: evictd after %v, evictd-kube after %v", evictdEnded, time.Since(began))
	c.wantNode("stopped", allUnknown("EvictdStopped"))
	third := c.recreated(w, taint, first, string(second.UID))

	c.startAgent()
	c.startKube()
	c.until("enforcement", func() bool { return !c.status().Mode.DryRun })
	c.underPressure(w, taint, first, string(second.UID))
	kill(t, c.kube)
	time.Sleep(transitionPeriod + 3*time.Second)
	c.wantNode("evictd-kube is away", allConditions(memoryTrue), memoryTaint+":NoSchedule")
	c.startKube()
	c.recreated(w, taint, first, string(second.UID), string(third.UID))
	if n := c.rig.node(); !slices.Equal(n.conditions(), allConditions()) {
		t.Errorf("conditions %v after evictd-kube has come back; want no pressure", n.conditions())
	}
}
