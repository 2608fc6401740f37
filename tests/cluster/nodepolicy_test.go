package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/kube"
	kubecluster "github.com/evictd/evictd/agent/kube/cluster"
)

// nodeWrite is one write of a node. clause has words of the message of the clause that denies
// it, and is empty for a write that is allowed.
type nodeWrite struct {
	name, token, node, path, contentType, body, clause string
}

const (
	clauseThisNode     = "not bound to this node"
	clauseNodeMetadata = "metadata of the node"
	clauseAnnotations  = "of the annotations only"
	clauseMarkLength   = "an annotation of evictd has"
	clauseNodeSpec     = "of the spec"
	clauseTaints       = "only taints of evictd"
	clauseNodeStatus   = "of the status only conditions"
	clauseOthers       = "only conditions of evictd"
	clauseReason       = "the reason of a condition"
	clauseRemains      = "remains, once"
)

// conditionJSON returns a condition of a node.
func conditionJSON(kind, status, reason, message string) string {
	return fmt.Sprintf(`{"type":%q,"status":%q,"reason":%q,"message":%q,"lastHeartbeatTime":"2026-01-01T00:00:02Z","lastTransitionTime":"2026-01-01T00:00:01Z"}`,
		kind, status, reason, message)
}

func taintJSON(key, effect string) string { return fmt.Sprintf(`{"key":%q,"effect":%q}`, key, effect) }

// largeNode returns a node with the status of a kubelet, 50 images, 100 taints and 40
// conditions. The taint at index 1 is evictd's, and one of the conditions.
func largeNode(name string) string {
	list := func(n int, item func(i int) string) string {
		items := make([]string, n)
		for i := range items {
			items[i] = item(i)
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	return `{"apiVersion":"v1","kind":"Node","metadata":{"name":"` + name + `","labels":{"a":"b","c":"d"},"annotations":{"a":"b"},"finalizers":["example.com/a"]},
		"spec":{"taints":` + list(100, func(i int) string {
		if i == 1 {
			return taintJSON("evictd.io/disk-pressure", "NoSchedule")
		}
		return taintJSON(fmt.Sprintf("example.com/%d", i), "NoSchedule")
	}) + `},"status":{"conditions":` + list(40, func(i int) string {
		switch i {
		case 0:
			return conditionJSON("Ready", "True", "KubeletReady", "kubelet is posting ready status")
		case 1:
			return conditionJSON("EvictdDiskPressure", "True", "EvictdHasDiskPressure", "")
		}
		return conditionJSON(fmt.Sprintf("Example%d", i), "False", "Example", strings.Repeat("x", 100))
	}) + `,"addresses":[{"type":"InternalIP","address":"10.0.0.1"},{"type":"Hostname","address":"` + name + `"}],
		"capacity":{"cpu":"8000m","memory":"16Gi","pods":"110","example.com/device":"1"},"allocatable":{"cpu":"8","memory":"15Gi","pods":"110"},
		"daemonEndpoints":{"kubeletEndpoint":{"Port":10250}},
		"nodeInfo":{"machineID":"a","systemUUID":"b","bootID":"` + bootID + `","kernelVersion":"6.1","osImage":"x","containerRuntimeVersion":"containerd://2.0",
		"kubeletVersion":"v1.36.3","kubeProxyVersion":"","operatingSystem":"linux","architecture":"amd64","swap":{"capacity":1024}},
		"volumesInUse":["kubernetes.io/csi/a"],"volumesAttached":[{"name":"kubernetes.io/csi/a","devicePath":"/dev/a"}],
		"runtimeHandlers":[{"name":"","features":{"recursiveReadOnlyMounts":true,"userNamespaces":true}}],"features":{"supplementalGroupsPolicy":true},
		"images":` + list(50, func(i int) string {
		return fmt.Sprintf(`{"names":["registry.example.com/team/image-%d@sha256:%s","registry.example.com/team/image-%d:v1"],"sizeBytes":%d}`, i, strings.Repeat("a", 64), i, 1<<20+i)
	}) + `}}`
}

// nodeWrites returns the writes. The node n1 is a largeNode, n2 has nothing.
func nodeWrites() (list []nodeWrite) {
	const jsonPatch, merge = "application/json-patch+json", "application/strategic-merge-patch+json"
	add := func(name, token, node, path, contentType, body, clause string) {
		list = append(list, nodeWrite{name, token, node, path, contentType, body, clause})
	}
	spec := func(name, change, clause string) { // of n1
		add(name, "n1", "n1", "", jsonPatch, `[{"op":"test","path":"/metadata/resourceVersion","value":"RV"},`+change+`]`, clause)
	}
	status := func(name, status, clause string) {
		add(name, "n1", "n1", "/status", merge, `{"status":`+status+`}`, clause)
	}
	conditions := func(list ...string) string { return `{"conditions":[` + strings.Join(list, ",") + `]}` }

	for _, kind := range slices.Sorted(maps.Keys(kube.NodeConditions)) {
		text := kube.NodeConditions[kind]
		own := taintJSON(text.Taint, "NoSchedule")
		if kind != "EvictdDiskPressure" { // which n1 has
			spec("taint "+text.Taint, `{"op":"add","path":"/spec/taints/-","value":`+own+`}`, "")
		}
		add("first taint "+text.Taint, "n2", "n2", "", jsonPatch, `[{"op":"add","path":"/spec/taints","value":[`+own+`]}]`, "")
		for _, c := range []string{
			conditionJSON(kind, "True", text.TrueReason, text.TrueMessage), conditionJSON(kind, "False", text.FalseReason, text.FalseMessage),
			conditionJSON(kind, "Unknown", "EvictdStopped", "evictd was stopped"),
		} {
			status("condition "+c, conditions(c), "")
			add("first condition "+c, "n2", "n2", "/status", merge, `{"status":`+conditions(c)+`}`, "")
		}
	}
	spec("remove the own taint", `{"op":"remove","path":"/spec/taints/1"}`, "")
	spec("change the own taint", `{"op":"add","path":"/spec/taints/1/timeAdded","value":"2026-01-01T00:00:00Z"}`, "")
	spec("change the place of the own taint", `{"op":"move","from":"/spec/taints/1","path":"/spec/taints/50"}`, "")
	status("heartbeat", conditions(`{"type":"EvictdDiskPressure","lastHeartbeatTime":"2026-01-01T00:05:00Z"}`), "")
	status("longest text", conditions(conditionJSON("EvictdDiskPressure", "True", "Evictd"+strings.Repeat("x", 94), strings.Repeat("ä", 1000))), "")

	for _, token := range []string{"n2", ""} {
		add("taint another node with the token of "+token, token, "n1", "", jsonPatch, `[{"op":"remove","path":"/spec/taints/1"}]`, clauseThisNode)
		add("condition of another node with the token of "+token, token, "n1", "/status", merge,
			`{"status":`+conditions(conditionJSON("EvictdDiskPressure", "False", "EvictdHasNoDiskPressure", ""))+`}`, clauseThisNode)
	}
	for name, change := range map[string]string{
		"add a label": `{"labels":{"x":"y"}}`, "change a label": `{"labels":{"a":"x"}}`, "remove a label": `{"labels":{"a":null}}`, "remove all labels": `{"labels":null}`,
		"add a finalizer": `{"finalizers":["example.com/b"]}`, "remove a finalizer": `{"$deleteFromPrimitiveList/finalizers":["example.com/a"]}`,
		"add an owner": `{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"x"}]}`,
	} {
		add(name, "n1", "n1", "", merge, `{"metadata":`+change+`}`, clauseNodeMetadata)
		add(name+" through the status", "n1", "n1", "/status", merge, `{"metadata":`+change+`}`, clauseNodeMetadata)
	}
	for name, change := range map[string]string{
		"add an annotation": `{"x":"y"}`, "change an annotation": `{"a":"x"}`, "remove all annotations": `null`,
		"another annotation of evictd": `{"evictd.io/fencing-paused":"2030-01-01T00:00:00Z"}`, "an annotation with a mark": `{"evictd.io/watchdog":"{}","x":"y"}`,
	} {
		add(name, "n1", "n1", "", merge, `{"metadata":{"annotations":`+change+`}}`, clauseAnnotations)
		add(name+" through the status", "n1", "n1", "/status", merge, `{"metadata":{"annotations":`+change+`}}`, clauseAnnotations)
	}
	for _, key := range []string{"evictd.io/watchdog", "evictd.io/planned-shutdown"} {
		mark := func(text string) string { return `{"metadata":{"annotations":{"` + key + `":"` + text + `"}}}` }
		for _, node := range []string{"n1", "n2"} {
			add(key+" of "+node, node, node, "", merge, mark(strings.Repeat("x", 1024)), "")
			add("long "+key+" of "+node, node, node, "", merge, mark(strings.Repeat("x", 1025)), clauseMarkLength)
		}
		add(key+" of another node", "n2", "n1", "", merge, mark("x"), clauseThisNode)
	}
	spec("cordon", `{"op":"add","path":"/spec/unschedulable","value":true}`, clauseNodeSpec)
	spec("cordon with a taint", `{"op":"remove","path":"/spec/taints/1"},{"op":"add","path":"/spec/unschedulable","value":true}`, clauseNodeSpec)
	spec("provider", `{"op":"add","path":"/spec/providerID","value":"x"}`, clauseNodeSpec)
	spec("addresses of pods", `{"op":"add","path":"/spec/podCIDRs","value":["10.9.0.0/24"]},{"op":"add","path":"/spec/podCIDR","value":"10.9.0.0/24"}`, clauseNodeSpec)

	spec("another taint", `{"op":"add","path":"/spec/taints/-","value":`+taintJSON("example.com/x", "NoSchedule")+`}`, clauseTaints)
	spec("a taint of the kubelet", `{"op":"add","path":"/spec/taints/-","value":`+taintJSON("node.kubernetes.io/memory-pressure", "NoSchedule")+`}`, clauseTaints)
	spec("a taint of this domain", `{"op":"add","path":"/spec/taints/-","value":`+taintJSON("evictd.io/other", "NoSchedule")+`}`, clauseTaints)
	spec("an own taint that evicts", `{"op":"add","path":"/spec/taints/-","value":`+taintJSON("evictd.io/memory-pressure", "NoExecute")+`}`, clauseTaints)
	spec("an own taint that advises", `{"op":"replace","path":"/spec/taints/1/effect","value":"PreferNoSchedule"}`, clauseTaints)
	spec("remove another taint", `{"op":"remove","path":"/spec/taints/0"}`, clauseTaints)
	spec("change another taint", `{"op":"add","path":"/spec/taints/0/value","value":"x"}`, clauseTaints)
	spec("change the order of taints", `{"op":"move","from":"/spec/taints/0","path":"/spec/taints/50"}`, clauseTaints)
	spec("remove all taints", `{"op":"remove","path":"/spec/taints"}`, clauseTaints)
	add("replace all taints", "n1", "n1", "", merge, `{"spec":{"taints":[`+taintJSON("evictd.io/memory-pressure", "NoSchedule")+`]}}`, clauseTaints)

	for name, change := range map[string]string{
		"addresses": `{"addresses":[{"type":"InternalIP","address":"10.9.9.9"}]}`, "no addresses": `{"addresses":null}`,
		"capacity": `{"capacity":{"example.com/device":"2"}}`, "less capacity": `{"capacity":{"example.com/device":null}}`,
		"allocatable": `{"allocatable":{"memory":"16Gi"}}`, "no allocatable": `{"allocatable":null}`,
		"port of the kubelet": `{"daemonEndpoints":{"kubeletEndpoint":{"Port":1}}}`, "version of the kubelet": `{"nodeInfo":{"kubeletVersion":"v1.0.0"}}`,
		"images": `{"images":[{"names":["x"],"sizeBytes":1}]}`, "no images": `{"images":null}`, "volumes in use": `{"volumesInUse":null}`,
		"attached volumes": `{"volumesAttached":null}`, "runtime handlers": `{"runtimeHandlers":null}`, "features": `{"features":null}`, "phase": `{"phase":"Terminated"}`,
		"images with a condition": `{"images":null,` + conditions(conditionJSON("EvictdDiskPressure", "False", "EvictdHasNoDiskPressure", ""))[1:],
	} {
		status(name, change, clauseNodeStatus)
	}

	status("not ready", conditions(`{"type":"Ready","status":"False"}`), clauseOthers)
	status("heartbeat of another condition", conditions(`{"type":"Ready","lastHeartbeatTime":"2026-01-01T00:05:00Z"}`), clauseOthers)
	status("a condition of the kubelet", conditions(conditionJSON("MemoryPressure", "True", "EvictdHasInsufficientMemory", "")), clauseOthers)
	status("another condition of evictd", conditions(conditionJSON("EvictdOther", "True", "EvictdOther", "")), clauseOthers)
	status("remove another condition", conditions(`{"type":"Ready","$patch":"delete"}`), clauseOthers)
	add("change the order of conditions", "n1", "n1", "/status", jsonPatch, `[{"op":"move","from":"/status/conditions/0","path":"/status/conditions/20"}]`, clauseOthers)

	status("another reason", conditions(conditionJSON("EvictdMemoryPressure", "True", "KubeletHasInsufficientMemory", "")), clauseReason)
	status("no reason", conditions(`{"type":"EvictdMemoryPressure","status":"True"}`), clauseReason)
	status("change to no reason", conditions(`{"type":"EvictdDiskPressure","reason":null}`), clauseReason)
	status("long reason", conditions(conditionJSON("EvictdMemoryPressure", "True", "Evictd"+strings.Repeat("x", 95), "")), clauseReason)
	status("long message", conditions(conditionJSON("EvictdMemoryPressure", "True", "EvictdHasInsufficientMemory", strings.Repeat("x", 1001))), clauseReason)

	status("remove the own condition", conditions(`{"type":"EvictdDiskPressure","$patch":"delete"}`), clauseRemains)
	add("a condition twice", "n1", "n1", "/status", jsonPatch, `[{"op":"copy","from":"/status/conditions/1","path":"/status/conditions/-"}]`, clauseRemains)
	add("a new condition twice", "n2", "n2", "/status", jsonPatch, `[{"op":"add","path":"/status/conditions","value":[`+
		conditionJSON("EvictdDiskPressure", "False", "EvictdA", "")+","+conditionJSON("EvictdDiskPressure", "True", "EvictdB", "")+`]}]`, clauseRemains)
	return list
}

// TestNodePolicy: the policy allows evictd's taints and conditions on the own node, and denies
// all else that the account has a right to. Each clause is needed: without it the API server
// lets the writes through that it denies.
func TestNodePolicy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, doc := range renderOverlay(t, "enforce") {
		r.applyObject(doc)
	}
	// As by a GitOps tool, which then owns the fields that evictd-kube changes.
	const apply = "application/apply-patch+yaml"
	if code, _, answer := r.do(adminToken, http.MethodPatch, "/api/v1/nodes/n1?fieldManager=gitops", apply, largeNode("n1")); code != http.StatusCreated {
		t.Fatalf("apply n1 = %d %.500s", code, answer)
	}
	r.must("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n2"}}`)
	r.withoutTaints("n2")
	tokens := map[string]string{"": r.tokenOfPod("")}
	for _, node := range []string{"n1", "n2"} {
		r.agent("agent-"+node, node)
		tokens[node] = r.tokenOfPod("agent-" + node)
	}
	writes := nodeWrites()
	r.until("the policy applies", func() bool {
		denied := writes[slices.IndexFunc(writes, func(w nodeWrite) bool { return w.clause != "" })]
		code, _, _ := r.tryNode(tokens, &denied)
		return code == http.StatusUnprocessableEntity
	})
	var longest time.Duration
	for _, w := range writes {
		code, message, took := r.tryNode(tokens, &w)
		longest = max(longest, took)
		if w.clause == "" {
			if code != http.StatusOK {
				t.Errorf("%s = %d %.500s; want it allowed", w.name, code, message)
			}
			continue
		}
		if code != http.StatusUnprocessableEntity || !strings.Contains(message, "ValidatingAdmissionPolicy '"+nodePolicy+"'") || !strings.Contains(message, w.clause) {
			t.Errorf("%s = %d %.500s; want it denied because %q", w.name, code, message, w.clause)
		}
	}
	t.Logf("%d writes, the longest took %v", len(writes), longest)
	// A server-side apply of an object that does not exist creates it, with the right to create it alone.
	code, _, answer := r.do(tokens["n1"], http.MethodPatch, "/api/v1/nodes/n3?fieldManager=x&dryRun=All", apply,
		`{"apiVersion":"v1","kind":"Node","metadata":{"name":"n3"}}`)
	if code != http.StatusForbidden {
		t.Errorf("apply of a new node = %d %.500s; want %d", code, answer, http.StatusForbidden)
	}
	if t.Failed() {
		return
	}
	r.withoutClauses(nodePolicy, func(removed string) {
		denied := slices.DeleteFunc(slices.Clone(writes), func(w nodeWrite) bool { return w.clause == "" || !strings.Contains(removed, w.clause) })
		if len(denied) == 0 {
			t.Errorf("no write is denied by the clause: %s", removed)
		}
		for _, w := range denied {
			code, message := 0, ""
			r.until(w.name+" is not denied by the removed clause: "+removed, func() bool {
				code, message, _ = r.tryNode(tokens, &w)
				return !strings.Contains(message, removed)
			})
			if code != http.StatusOK {
				t.Errorf("%s = %d %.500s without the clause; want it allowed", w.name, code, message)
			}
		}
	})
}

// TestNodeStateUnderPolicy: with the rights and the policies of the overlay enforce, and a token
// as the kubelet requests it, evictd-kube writes all states.
func TestNodeStateUnderPolicy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, doc := range renderOverlay(t, "enforce") {
		r.applyObject(doc)
	}
	r.must("POST", "/api/v1/nodes", largeNode("n1"))
	r.must("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n2"}}`)
	r.agent("agent-n1", "n1")
	token := r.tokenOfPod("agent-n1")
	r.until("the policy applies", func() bool {
		code, _ := r.as(token, http.MethodPatch, "/api/v1/nodes/n2?dryRun=All", `{"spec":{"unschedulable":true}}`)
		return code == http.StatusUnprocessableEntity
	})
	before := r.node().taints()
	others := slices.DeleteFunc(slices.Clone(before), func(s string) bool { return strings.HasPrefix(s, diskTaint) })
	n := r.report(func(o *kubecluster.Options) { o.Kubeconfig = r.kubeconfig(r.write("bound", token)) })
	var all, present, taints []string
	for kind, text := range kube.NodeConditions {
		all = append(all, kind)
		present = append(present, kind+"=True/"+text.TrueReason)
		if text.Taint != diskTaint { // which the node has
			taints = append(taints, text.Taint+":NoSchedule")
		}
	}
	slices.Sort(present)
	slices.Sort(taints)
	n.set(nodeState(1, time.Now(), all...))
	r.wantNode("all", present, append(slices.Clone(before), taints...)...)
	n.set(nodeState(2, time.Now()))
	r.wantNode("none", allConditions(), others...)
	n.set(nodeState(3, time.Now(), all...))
	n.set(&kube.NodeState{Number: 4, Stopped: true})
	r.wantNode("stopped", allUnknown("EvictdStopped"), others...)
	n.set(nodeState(5, time.Now(), all...))
	n.SetNode(nil)
	r.until("end of evictd", func() bool { return slices.Equal(r.node().conditions(), allUnknown("EvictdGone")) })
	if refused := n.logged("could not write"); refused > 0 {
		t.Errorf("%d writes failed", refused)
	}
}

// TestRemoveNodeState: the commands of deploy/kubernetes/README.md remove evictd's taints and
// conditions, and nothing else, from nodes that have one and nodes that have none. Others remove the
// rights before the policies, with the namespace or without it.
func TestRemoveNodeState(t *testing.T) {
	t.Parallel()
	programs := findPrograms(t, kubectl)
	r := newRig(t)
	for _, node := range []string{largeNode("n1"), largeNode("n2"), `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n3"}}`} {
		r.must("POST", "/api/v1/nodes", node)
	}
	if err := os.Symlink(filepath.Join(programs, kubectl), filepath.Join(r.dir, "kubectl")); err != nil {
		t.Fatal(err)
	}
	const readme = "../../deploy/kubernetes/README.md"
	commands := append(readmeCommands(t, readme, "for taint in", "for taint in"), readmeCommands(t, readme, "for node in", "done")...)
	before := r.node()
	cmd := exec.Command("sh", "-c", strings.Join(commands, ""))
	cmd.Env = append(os.Environ(), "PATH="+r.dir+":"+os.Getenv("PATH"), "HOME="+r.dir, "KUBECONFIG="+r.adminConfig("admin", adminToken))
	if out, err := cmd.CombinedOutput(); err != nil || len(commands) < 5 {
		t.Errorf("%d commands: %v: %s", len(commands), err, out)
	}
	if answer := r.must("GET", "/api/v1/nodes", ""); bytes.Contains(answer, []byte("evictd.io/")) || bytes.Contains(answer, []byte("Evictd")) {
		t.Errorf("nodes have taints or conditions of evictd: %s", answer)
	}
	if after := r.node(); len(after.taints()) != len(before.taints())-1 || len(after.Status.Conditions) != len(before.Status.Conditions)-1 {
		t.Errorf("%d taints and %d conditions; want one less each than %d and %d",
			len(after.taints()), len(after.Status.Conditions), len(before.taints()), len(before.Status.Conditions))
	}
	apply := func() {
		for _, doc := range renderOverlay(t, "enforce") {
			r.applyObject(doc)
		}
	}
	apply()
	r.shell(r.dir, readmeCommands(t, readme, "kubectl delete --ignore-not-found validating", "kubectl -n evictd delete"))
	const evictd = "/api/v1/namespaces/evictd"
	for path, want := range map[string]int{
		evictd: http.StatusOK, evictd + "/configmaps/evictd": http.StatusNotFound, evictd + "/resourcequotas/system-node-critical": http.StatusNotFound,
		"/apis/rbac.authorization.k8s.io/v1/clusterroles/evictd-kube":   http.StatusNotFound,
		"/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/evictd-kube": http.StatusNotFound,
		policyPath(podPolicy): http.StatusNotFound, policyPath(nodePolicy): http.StatusNotFound,
	} {
		if code, _ := r.as(adminToken, http.MethodGet, path, ""); code != want {
			t.Errorf("GET %s = %d; want %d", path, code, want)
		}
	}
	apply()
	r.removeRights("../../deploy/kubernetes", readme)
}

// withoutTaints removes the taint of a node that is not ready, which the API server has added.
func (r *rig) withoutTaints(node string) {
	r.t.Helper()
	if _, err := r.request(http.MethodPatch, "/api/v1/nodes/"+node, "application/merge-patch+json", `{"spec":{"taints":null}}`); err != nil {
		r.t.Fatal(err)
	}
}

// tryNode makes a write of a node, in dry run. It fails if a write that is allowed changes nothing.
func (r *rig) tryNode(tokens map[string]string, w *nodeWrite) (code int, message string, took time.Duration) {
	r.t.Helper()
	path := "/api/v1/nodes/" + w.node
	old := r.must("GET", path, "")
	body := strings.ReplaceAll(w.body, `"RV"`, `"`+decode[struct {
		Metadata struct{ ResourceVersion string }
	}](r.t, old).Metadata.ResourceVersion+`"`)
	began := time.Now()
	code, _, answer := r.do(tokens[w.token], http.MethodPatch, path+w.path+"?dryRun=All", w.contentType, body)
	took = time.Since(began)
	if code == http.StatusOK && sameNode(r.t, old, answer) {
		r.t.Errorf("%s changes nothing", w.name)
	}
	return code, decode[struct{ Message string }](r.t, answer).Message, took
}

// sameNode reports whether two nodes are equal but for managedFields.
func sameNode(t *testing.T, a, b []byte) bool {
	t.Helper()
	strip := func(content []byte) string {
		o := decode[map[string]any](t, content)
		delete(o["metadata"].(map[string]any), "managedFields")
		out, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	return strip(a) == strip(b)
}
