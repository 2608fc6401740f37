package cluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/evictd/evictd/agent/kube"
	kubecluster "github.com/evictd/evictd/agent/kube/cluster"
)

const (
	nodePath    = "/api/v1/nodes/n1"
	memoryTaint = "evictd.io/memory-pressure"
	diskTaint   = "evictd.io/disk-pressure"
	notReady    = "node.kubernetes.io/not-ready:NoSchedule" // of each new Node
)

// nodeRightsRule lets the account write the Node, beside reportRights.
const nodeRightsRule = `{"apiGroups":[""],"resources":["nodes","nodes/status"],"verbs":["patch"]}`

// nodeObject is a Node.
type nodeObject struct{ corev1.Node }

func (r *rig) node() nodeObject {
	r.t.Helper()
	return nodeObject{decode[corev1.Node](r.t, r.must(http.MethodGet, nodePath, ""))}
}

// taints returns the taints of the node as key:effect.
func (n nodeObject) taints() (list []string) {
	for _, t := range n.Spec.Taints {
		list = append(list, t.Key+":"+string(t.Effect))
	}
	return list
}

// conditions returns the conditions of evictd as type=status/reason, sorted.
func (n nodeObject) conditions() (list []string) {
	for _, c := range n.Status.Conditions {
		if strings.HasPrefix(string(c.Type), "Evictd") {
			list = append(list, string(c.Type)+"="+string(c.Status)+"/"+c.Reason)
		}
	}
	slices.Sort(list)
	return list
}

func (n nodeObject) condition(kind corev1.NodeConditionType) (found corev1.NodeCondition) {
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			found = c
		}
	}
	return found
}

// newNodeRig is newReportRig with the rights to write the Node.
func newNodeRig(t *testing.T) *rig {
	t.Helper()
	r := newReportRig(t)
	r.setRights(nodeRightsRule)
	return r
}

// setRights gives the account reportRights and a rule.
func (r *rig) setRights(rules ...string) {
	r.t.Helper()
	r.must("PUT", "/apis/rbac.authorization.k8s.io/v1/clusterroles/r", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"r"},"rules":[`+
		strings.Join(append([]string{fmt.Sprintf(reportRights, `,"delete"`)}, rules...), ",")+`]}`)
}

// setTaints sets all taints of the node, as key:effect.
func (r *rig) setTaints(list ...string) {
	r.t.Helper()
	taints := []any{}
	for _, s := range list {
		key, effect, _ := strings.Cut(s, ":")
		taints = append(taints, map[string]string{"key": key, "effect": effect})
	}
	r.patchNode("", fmt.Sprintf(`{"spec":{"taints":%s}}`, jsonOf(r.t, taints)))
}

func (r *rig) patchNode(subresource, body string) {
	r.t.Helper()
	if _, err := r.request(http.MethodPatch, nodePath+subresource, "application/merge-patch+json", body); err != nil {
		r.t.Fatal(err)
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	content, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// nodeState returns a state with all conditions of evictd, of which some are true.
func nodeState(number uint64, since time.Time, present ...string) *kube.NodeState {
	s := &kube.NodeState{Number: number}
	for kind := range kube.NodeConditions {
		s.Conditions = append(s.Conditions, kube.NodeCondition{Type: kind, Status: slices.Contains(present, kind), Since: since})
	}
	return s
}

// set gives a state and waits until it is written.
func (r *reporting) set(s *kube.NodeState) {
	r.t.Helper()
	r.SetNode(s)
	r.until(fmt.Sprint("state ", s.Number), func() bool { return r.lastNode().Number == s.Number })
}

func (r *reporting) lastNode() (last kube.NodeReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.nodeReports); n > 0 {
		last = r.nodeReports[n-1]
	}
	return last
}

func (r *reporting) logged(text string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Count(r.log.String(), text)
}

// allConditions are conditions() with all but some False.
func allConditions(except ...string) []string {
	list := []string{
		"EvictdDiskPressure=False/EvictdHasNoDiskPressure", "EvictdMemoryPressure=False/EvictdHasSufficientMemory",
		"EvictdNodeShutdown=False/EvictdDoesNotShutDown", "EvictdPIDPressure=False/EvictdHasSufficientPID",
	}
	for _, e := range except {
		kind, _, _ := strings.Cut(e, "=")
		list = slices.DeleteFunc(list, func(s string) bool { return strings.HasPrefix(s, kind) })
	}
	list = append(list, except...)
	slices.Sort(list)
	return list
}

const memoryTrue = "EvictdMemoryPressure=True/EvictdHasInsufficientMemory"

// wantNode fails the test if the node has other conditions or taints.
func (r *rig) wantNode(when string, conditions []string, taints ...string) nodeObject {
	r.t.Helper()
	n := r.node()
	if diff := cmp.Diff(conditions, n.conditions()); diff != "" {
		r.t.Errorf("%s: conditions of evictd (-want +got):\n%s", when, diff)
	}
	if diff := cmp.Diff(taints, n.taints()); diff != "" {
		r.t.Errorf("%s: taints (-want +got):\n%s", when, diff)
	}
	return n
}

// TestNodeState: the conditions and taints of evictd's states, from the first one to the last,
// beside those of others.
func TestNodeState(t *testing.T) {
	t.Parallel()
	r := newNodeRig(t)
	others := []string{"a/first:NoExecute", memoryTaint + ":NoExecute", "b/last:NoSchedule"}
	r.setTaints(others[0], diskTaint+":NoSchedule", others[1], memoryTaint+":PreferNoSchedule", others[2])
	r.patchNode("/status", `{"status":{"conditions":[{"type":"MemoryPressure","status":"False","reason":"KubeletHasSufficientMemory"}]}}`)
	others = []string{"a/first:NoExecute", memoryTaint + ":NoExecute", memoryTaint + ":PreferNoSchedule", "b/last:NoSchedule"}
	n := r.report()
	time.Sleep(100 * time.Millisecond)
	r.wantNode("before the first state", nil, "a/first:NoExecute", diskTaint+":NoSchedule", memoryTaint+":NoExecute", memoryTaint+":PreferNoSchedule", "b/last:NoSchedule")

	since := time.Now().Add(-time.Minute).Truncate(time.Second)
	n.set(nodeState(1, since, "EvictdMemoryPressure"))
	got := r.wantNode("memory pressure", allConditions(memoryTrue), append(others, memoryTaint+":NoSchedule")...)
	c := got.condition("EvictdMemoryPressure")
	if !c.LastTransitionTime.Time.Equal(since) || time.Since(c.LastHeartbeatTime.Time) > 10*time.Second || c.Message == "" {
		t.Errorf("condition %+v; want the transition at %v and a heartbeat now", c, since)
	}
	if last := got.Spec.Taints[len(got.Spec.Taints)-1]; last.TimeAdded == nil || time.Since(last.TimeAdded.Time) > 10*time.Second {
		t.Errorf("taint %+v; want the time when it was added", last)
	}
	if c := got.condition("MemoryPressure"); c.Reason != "KubeletHasSufficientMemory" || !c.LastHeartbeatTime.IsZero() {
		t.Errorf("the kubelet's condition = %+v; want it unchanged", c)
	}

	n.set(nodeState(1, time.Now(), "EvictdMemoryPressure")) // again, in the next session
	if again := r.node(); again.ResourceVersion != got.ResourceVersion {
		t.Errorf("the same state was written again: %+v", again)
	}
	r.patchNode("", `{"spec":{"taints":null}}`) // others are removed with evictd's
	n.set(nodeState(2, time.Now(), "EvictdDiskPressure"))
	r.wantNode("disk pressure", allConditions("EvictdDiskPressure=True/EvictdHasDiskPressure"), diskTaint+":NoSchedule")
	n.set(nodeState(3, time.Now()))
	got = r.wantNode("no pressure", allConditions())
	if c := got.condition("EvictdPIDPressure"); !c.LastTransitionTime.Time.Equal(since) {
		t.Errorf("condition %+v; want the transition at %v as before", c, since)
	}
	n.set(nodeState(4, time.Now(), "EvictdMemoryPressure", "EvictdDiskPressure"))
	r.wantNode("both", allConditions(memoryTrue, "EvictdDiskPressure=True/EvictdHasDiskPressure"), diskTaint+":NoSchedule", memoryTaint+":NoSchedule")

	// A restarted evictd-kube keeps all until evictd's state comes.
	n.stop()
	n = r.report()
	n.set(nodeState(4, time.Now(), "EvictdMemoryPressure"))
	got = r.wantNode("after a restart", allConditions(memoryTrue), memoryTaint+":NoSchedule")
	n.set(&kube.NodeState{Number: 5, Stopped: true})
	r.wantNode("stopped", allUnknown("EvictdStopped"))
	n.set(&kube.NodeState{Number: 6})
	r.wantNode("dry run", allUnknown("EvictdDryRun"))
	n.set(nodeState(7, time.Now().Add(-time.Hour), "EvictdMemoryPressure"))
	if c := r.node().condition("EvictdMemoryPressure"); time.Since(c.LastTransitionTime.Time) > time.Minute {
		t.Errorf("condition %+v; want a transition after that to Unknown", c)
	}
	n.SetNode(nil)
	r.until("end of evictd", func() bool { node := r.node(); return slices.Equal(node.conditions(), allUnknown("EvictdGone")) })
	r.wantNode("evictd is gone", allUnknown("EvictdGone"))
}

func allUnknown(reason string) (list []string) {
	for kind := range kube.NodeConditions {
		list = append(list, kind+"=Unknown/"+reason)
	}
	slices.Sort(list)
	return list
}

// TestTaintsBesideOtherWriters: a client that changes the taints all the time loses none, and
// evictd's are written in time.
func TestTaintsBesideOtherWriters(t *testing.T) {
	t.Parallel()
	r := newNodeRig(t)
	r.setTaints("other/stays:NoSchedule")
	n := r.report()
	stop := make(chan struct{})
	var writer sync.WaitGroup
	var writes, conflicts int
	own := false // whether the other taint must be there
	writer.Go(func() {
		for ticker := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case <-stop:
				return
			case <-ticker.C:
			}
			var object map[string]any
			content, err := r.request(http.MethodGet, nodePath, "", "")
			if err != nil || json.Unmarshal(content, &object) != nil {
				t.Error(err)
				return
			}
			spec := object["spec"].(map[string]any)
			taints, _ := spec["taints"].([]any)
			has := slices.ContainsFunc(taints, func(v any) bool { return v.(map[string]any)["key"] == "other/toggled" })
			if has != own {
				t.Errorf("taint of the other writer is there: %t; want %t", has, own)
			}
			if has { // in front, which changes the places of all
				taints = slices.DeleteFunc(taints, func(v any) bool { return v.(map[string]any)["key"] == "other/toggled" })
			} else {
				taints = append([]any{map[string]any{"key": "other/toggled", "effect": "PreferNoSchedule"}}, taints...)
			}
			spec["taints"] = taints
			_, err = r.request(http.MethodPut, nodePath, "application/json", jsonOf(t, object))
			switch {
			case err == nil:
				own = !own
				writes++
			case strings.Contains(err.Error(), "409 Conflict"):
				conflicts++
			default:
				t.Error(err)
				return
			}
		}
	})
	var took []time.Duration
	for i := range 40 {
		s := nodeState(uint64(i+1), time.Now())
		if i%2 == 0 {
			s = nodeState(uint64(i+1), time.Now(), "EvictdMemoryPressure", "EvictdDiskPressure")
		}
		began := time.Now()
		n.set(s)
		took = append(took, time.Since(began))
		got := r.node()
		if has := strings.Contains(fmt.Sprint(got.taints()), memoryTaint); has != (i%2 == 0) || !strings.Contains(fmt.Sprint(got.taints()), "other/stays") {
			t.Errorf("taints after state %d: %v", s.Number, got.taints())
		}
	}
	close(stop)
	writer.Wait()
	slices.Sort(took)
	t.Logf("written after %v (median), %v (most), beside %d writes and %d conflicts of the other", took[len(took)/2], took[len(took)-1], writes, conflicts)
	if most := took[len(took)-1]; most > 5*time.Second {
		t.Errorf("written after %v; want at most 5s", most)
	}
}

// TestTaintBeforeReport: the Node has the taint of an order before the pod is reported, also if
// another client has removed it, and loses it some seconds later.
func TestTaintBeforeReport(t *testing.T) {
	t.Parallel()
	r := newNodeRig(t)
	n := r.report()
	n.set(nodeState(1, time.Now()))
	var orders []*kube.Order
	for i := range 5 {
		orders = append(orders, r.killed(fmt.Sprint("daemon-", i), "Always", kube.StageEnded, func(map[string]any) {}))
		orders[i].Taint = memoryTaint
	}
	report := func(list []*kube.Order) {
		t.Helper()
		began := time.Now()
		for _, o := range list {
			n.Order(o)
		}
		for _, o := range list {
			n.want(o.ID, kube.AnswerReported)
			if taints := r.node(); !slices.Contains(taints.taints(), memoryTaint+":NoSchedule") {
				t.Errorf("%s was reported, and the node has the taints %v", o.Name, taints.taints())
			}
		}
		t.Logf("%d orders with a taint reported after %v", len(list), time.Since(began))
	}
	report(orders[:3])
	time.Sleep(2 * time.Second) // what is known of the Node is too old then
	r.patchNode("", `{"spec":{"taints":null}}`)
	report(orders[3:])
	began := time.Now() // the orders remain until the pods' cgroups are gone
	n.until("end of the taint", func() bool { node := r.node(); return len(node.taints()) == 0 })
	if held := time.Since(began); held < 5*time.Second || held > 15*time.Second {
		t.Errorf("taint removed %v after the reports; want about 10 s", held)
	}
	if n.logged("does not have its taint yet") > 0 {
		t.Error("pods were reported without the taint")
	}
}

// TestNodeRights: missing rights and a policy that refuses are told, and delay no report.
func TestNodeRights(t *testing.T) {
	t.Parallel()
	r := newReportRig(t)
	r.setTaints("other/stays:NoSchedule")
	n := r.report(func(o *kubecluster.Options) { o.Reporter.ForbiddenDelay = time.Second })
	n.SetNode(nodeState(1, time.Now(), "EvictdMemoryPressure"))
	const missing = "the user of evictd-kube may not patch nodes, patch nodes/status: bind the ClusterRole of deploy/kubernetes to it"
	n.until("missing rights", func() bool { return n.lastNode() == kube.NodeReport{Why: missing, Refused: true} })
	report := func(name string) {
		t.Helper()
		o := r.killed(name, "Always", kube.StageEnded)
		o.Taint = memoryTaint
		began := time.Now()
		n.Order(o)
		n.want(o.ID, kube.AnswerReported)
		if took := time.Since(began); took > time.Second {
			t.Errorf("%s reported after %v; want it not to wait for the taint", name, took)
		}
	}
	report("without-rights")
	if got := n.cannot[len(n.cannot)-1]; got != "" {
		t.Errorf("cannot report: %s; want evictions to go on", got)
	}
	if got := n.logged("conditions and taints of the Node can't be written"); got != 1 {
		t.Errorf("logged %d times; want once", got)
	}
	r.setRights(`{"apiGroups":[""],"resources":["nodes/status"],"verbs":["patch"]}`)
	n.until("conditions", func() bool { node := r.node(); return len(node.conditions()) == 4 })
	n.until("missing right", func() bool { return strings.Contains(n.lastNode().Why, "may not patch nodes: bind") })

	const policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
	r.must("POST", policies+"ies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"no"},"spec":{
		"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["UPDATE"],"resources":["nodes"]}]},
		"validations":[{"expression":"!request.userInfo.username.endsWith(':evictd-kube')","message":"not evictd's"}]}}`)
	r.must("POST", policies+"ybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":"no"},
		"spec":{"policyName":"no","validationActions":["Deny"]}}`)
	time.Sleep(2 * time.Second) // until the API server has read it
	r.setRights(nodeRightsRule)
	n.until("refusal", func() bool { return strings.Contains(n.lastNode().Why, "not evictd's") })
	t.Log(n.lastNode().Why)
	report("refused")
	r.must("DELETE", policies+"ybindings/no", "")
	n.until("state", func() bool { return n.lastNode() == kube.NodeReport{Number: 1} })
	r.wantNode("in the end", allConditions(memoryTrue), "other/stays:NoSchedule", memoryTaint+":NoSchedule")
}

// TestNodeFaults: the state is written after an API server was paused, and to a Node that was
// deleted and made again.
func TestNodeFaults(t *testing.T) {
	t.Parallel()
	r := newNodeRig(t)
	n := r.report()
	n.set(nodeState(1, time.Now()))
	r.pauseAPI()
	n.SetNode(nodeState(2, time.Now(), "EvictdMemoryPressure"))
	n.until("no answer", func() bool { return strings.Contains(n.lastNode().Why, "does not answer") })
	n.SetNode(nodeState(3, time.Now(), "EvictdDiskPressure"))
	time.Sleep(5 * time.Second)
	r.resumeAPI()
	began := time.Now()
	n.until("state", func() bool { return n.lastNode() == kube.NodeReport{Number: 3} })
	t.Logf("written %v after the pause", time.Since(began))
	time.Sleep(2 * time.Second)
	r.wantNode("after the pause", allConditions("EvictdDiskPressure=True/EvictdHasDiskPressure"), notReady, diskTaint+":NoSchedule")

	r.must("DELETE", nodePath, "")
	n.SetNode(nodeState(4, time.Now(), "EvictdMemoryPressure"))
	n.until("missing Node", func() bool { return strings.Contains(n.lastNode().Why, `has no Node "n1"`) })
	r.must("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`)
	n.until("state", func() bool { return n.lastNode() == kube.NodeReport{Number: 4} })
	r.wantNode("new Node", allConditions(memoryTrue), notReady, memoryTaint+":NoSchedule")
	r.must("DELETE", nodePath, "")
	r.must("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`)
	n.set(nodeState(5, time.Now(), "EvictdDiskPressure"))
	if n.logged("Node object was replaced") != 2 {
		t.Error("the log does not say that the Node was replaced, twice")
	}
	r.wantNode("another Node", allConditions("EvictdDiskPressure=True/EvictdHasDiskPressure"), notReady, diskTaint+":NoSchedule")
}
