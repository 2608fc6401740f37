package cluster

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
)

// licenceRequired is the annotation of pods that need a label that the node does not have at first.
const licenceRequired = `{"nodeSelectorTerms":[{"matchExpressions":[{"key":"example.com/licence","operator":"In","values":["valid"]}]}]}`

// rejectionMessage is that of a pod that is rejected without the label.
const rejectionMessage = "Predicate NodeAffinity failed: annotation requires example.com/licence In [valid]; the node has no such label"

// createAnnotated creates a workload whose pods have the annotation.
func (c *kubeNode) createAnnotated(w *workload) {
	c.t.Helper()
	m := w.manifest()
	of := m["metadata"].(fields)
	if w.kind != "Pod" {
		of = m["spec"].(fields)["template"].(fields)["metadata"].(fields)
	}
	of["annotations"] = fields{"evictd.io/required-during-execution": licenceRequired}
	body, err := json.Marshal(m)
	if err != nil {
		c.t.Fatal(err)
	}
	c.must("POST", workloadPaths[w.kind], string(body))
}

func pausing(name string) *workload {
	return &workload{name, "Pod", bound(podSpec("Always", hogContainer("main")))}
}

// held returns a pod of which the kubelet creates no container before there is the ConfigMap.
func held(name, configMap string) *workload {
	main := hogContainer("main")
	main["volumeMounts"] = []fields{{"name": "hold", "mountPath": "/hold"}}
	w := &workload{name, "Pod", bound(podSpec("Always", main))}
	w.template["volumes"] = []fields{{"name": "hold", "configMap": fields{"name": configMap}}}
	return w
}

// isRejected reports whether the API shows a pod as the kubelet shows one that it rejects.
func isRejected(s *podState) bool {
	return s.Status.Phase == corev1.PodFailed && s.Status.Reason == "NodeAffinity"
}

// reject creates a pod that the node does not match, and waits until it is rejected. The pod is held, so that the kubelet
// can't be first, however busy the machine is.
func (c *kubeNode) reject(name string) {
	c.t.Helper()
	c.createAnnotated(held(name, "never"))
	c.until("rejection of "+name, func() bool {
		return slices.ContainsFunc(c.events.last(name), func(s podState) bool { return isRejected(&s) })
	})
}

// checkRejected checks that the rejected pods of a workload were rejected with the message, have ended and have no process
// left, and returns the number of them. The kubelet starts a pod at the same time: if it had created a container, it may
// have removed the reason when that ended. While it has undone a rejection, the pod's owner may delete the pod as one too
// many: then it runs until its grace period ends.
func (c *kubeNode) checkRejected(name string) (rejected int) {
	c.t.Helper()
	for _, s := range c.events.last(name) {
		states := c.events.of(string(s.UID))
		at, ok := first(states, isRejected)
		if !ok {
			continue
		}
		rejected++
		created := slices.ContainsFunc(states, func(s podState) bool {
			return slices.ContainsFunc(s.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.ContainerID != "" })
		})
		c.t.Logf("%s: rejected %v after its creation, %d states, a container was created: %t, reason at the end %q",
			s.Name, at.at.Sub(states[0].at).Round(time.Millisecond), len(states), created, s.Status.Reason)
		ended := s.Status.Phase == corev1.PodFailed && (created || isRejected(&s))
		if at.Status.Message != rejectionMessage || !ended && !s.deleted && s.DeletionTimestamp == nil {
			c.t.Errorf("%s: message %q; then phase %s, reason %q", s.Name, at.Status.Message, s.Status.Phase, s.Status.Reason)
		}
		// The first process of a container ignores a SIGTERM that comes before it has a handler: the kubelet then waits
		// for the grace period.
		c.until("end of the processes of "+s.Name, func() bool { return len(c.hogs(&s.Pod)) == 0 })
	}
	return rejected
}

// TestAffinityAdmission: beside a kubelet, a pod that comes to a node that does not match its annotation is rejected, and
// the kubelet ends it. Pods that ran before, also before a restart of evictd-kube, go on, and so do those of DaemonSets,
// those that must not run twice, and the third of a Deployment.
func TestAffinityAdmission(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	c := startKubeNode(t)
	c.kubeFlags = []string{"--affinity-admission=reject"}
	before := pausing("before")
	c.createAnnotated(before)
	c.waitRunning(before)
	c.startEnforcing()
	c.until("conditions", func() bool { return c.status().Kubernetes.NodeObject.Decided })

	web := &workload{"web", "Deployment", podSpec("Always", hogContainer("main"))}
	daemon := &workload{"daemon", "DaemonSet", podSpec("Always", hogContainer("main"))}
	exclusive := &workload{"exclusive", "StatefulSet", podSpec("Always", hogContainer("main"))}
	c.reject("bare")
	for _, w := range []*workload{web, daemon, exclusive} {
		c.createAnnotated(w)
	}
	for _, w := range []*workload{web, daemon, exclusive} {
		c.waitRunning(w)
	}
	time.Sleep(restartTime)
	if rejected := c.checkRejected("web"); rejected > 2 {
		t.Errorf("%d pods of the Deployment were rejected; want 2", rejected)
	}
	// On a busy machine the kubelet is first, or changes a pod so that the write that would reject it fails, and counts.
	c.until("count of the pod that was left", func() bool {
		n := c.status().Kubernetes.AffinityAdmission
		return n["workload"]+n["started"]+n["late"] > 0
	})
	// While the kubelet has undone a rejection, the ReplicaSet has one pod too many and deletes one.
	c.until("one pod of the Deployment that has not failed", func() bool {
		left := slices.DeleteFunc(c.events.last("web"), func(s podState) bool {
			return s.deleted || s.DeletionTimestamp != nil || s.Status.Phase == corev1.PodFailed
		})
		return len(left) == 1
	})
	t.Logf("the Deployment has had %d pods", len(c.events.last("web")))
	c.checkRejected("bare")
	c.checkRejectionEvents("web", "bare")

	c.labelNode(`"valid"`)
	licensed := pausing("licensed")
	c.createAnnotated(licensed)
	c.waitRunning(licensed)
	c.labelNode("null")

	c.stopKube()
	absent := pausing("absent")
	c.createAnnotated(absent)
	c.waitRunning(absent)
	c.startKube()
	c.until("reconnect", func() bool { k := c.status().Kubernetes; return k.Connected && k.Watching })
	c.reject("second")
	for _, name := range []string{"before", "web", "daemon", "exclusive", "licensed", "absent"} {
		if _, ok := c.events.running(name); !ok {
			t.Errorf("%s does not run after the restart of evictd-kube", name)
		}
	}
	c.until("numbers", func() bool { return c.status().Kubernetes.AffinityAdmission["rejected"] == 1 })

	c.forbidRejections()
	denied := []*workload{held("denied-1", "later"), held("denied-2", "later"), held("denied-3", "later")}
	for _, w := range denied {
		c.createAnnotated(w)
	}
	c.until("numbers", func() bool { return c.status().Kubernetes.AffinityAdmission["refused"] == 3 })
	c.must("POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"later"}}`)
	for _, w := range denied {
		c.waitRunning(w)
	}
	log, err := os.ReadFile(filepath.Join(c.dir, "evictd-kube.log"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(log), "could not reject a pod"); n != 1 {
		t.Errorf("the refusal was logged %d times; want once", n)
	}
}

// labelNode sets the label of the node to a JSON value.
func (c *kubeNode) labelNode(value string) {
	c.t.Helper()
	if _, err := c.request(http.MethodPatch, "/api/v1/nodes/n1", "application/merge-patch+json", `{"metadata":{"labels":{"example.com/licence":`+value+`}}}`); err != nil {
		c.t.Fatal(err)
	}
}

// stopKube ends evictd-kube as a crash does.
func (c *kubeNode) stopKube() {
	c.t.Helper()
	c.check(c.kube.Process.Kill())
	_ = c.kube.Wait() // it was killed
}

// checkRejectionEvents checks that each rejected pod of some workloads has one event.
func (c *kubeNode) checkRejectionEvents(names ...string) {
	c.t.Helper()
	c.until("events", func() bool {
		count, want := 0, 0
		list := decode[eventsv1.EventList](c.t, c.must(http.MethodGet, "/apis/events.k8s.io/v1/namespaces/default/events", ""))
		for _, name := range names {
			for _, s := range c.events.last(name) {
				if !isRejected(&s) {
					continue
				}
				want++
				for _, e := range list.Items {
					if e.Regarding.UID == s.UID && e.Reason == "NodeAffinity" && e.Type == corev1.EventTypeWarning && e.Note == rejectionMessage {
						count++
					}
				}
			}
		}
		return want > 0 && count == want
	})
}

// forbidRejections adds a clause to the policy by which no pod may be rejected.
func (c *kubeNode) forbidRejections() {
	c.t.Helper()
	policy := decode[map[string]any](c.t, c.must("GET", policyPath(podPolicy), ""))
	spec := policy["spec"].(map[string]any)
	spec["validations"] = append(spec["validations"].([]any), fields{"expression": "!variables.rejects", "message": "none may be rejected"})
	body, err := json.Marshal(policy)
	if err != nil {
		c.t.Fatal(err)
	}
	c.must("PUT", policyPath(podPolicy), string(body))
	time.Sleep(10 * time.Second) // the API server reads it later
}
