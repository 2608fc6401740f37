package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// The policies of the overlay enforce, for pods and for nodes.
const (
	podPolicy  = "evictd-kube"
	nodePolicy = "evictd-kube-node"
)

func policyPath(name string) string {
	return "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/" + name
}

// policyPod returns a pod on a node; on none if it is empty. More metadata can be added.
func policyPod(name, node, metadata string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q%s},"spec":{"nodeName":%q,"containers":[{"name":"main","image":"x"}]}}`,
		name, metadata, node)
}

// runningStatus is a status as a kubelet writes it.
const runningStatus = `{"status":{"phase":"Running","startTime":"2026-01-01T00:00:00Z","hostIP":"10.0.0.1","hostIPs":[{"ip":"10.0.0.1"}],
	"podIP":"10.1.0.1","podIPs":[{"ip":"10.1.0.1"}],"observedGeneration":1,"conditions":[
	{"type":"PodReadyToStartContainers","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"},
	{"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z","observedGeneration":1},
	{"type":"PodScheduled","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}],
	"containerStatuses":[{"name":"main","image":"x","imageID":"x","ready":true,"started":true,"restartCount":1,
	"state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}},"lastState":{"terminated":{"exitCode":1}},
	"allocatedResources":{"cpu":"1000m","memory":"0.5Gi"},"resources":{"requests":{"cpu":"1000m","memory":"0.5Gi"}},
	"volumeMounts":[{"name":"v","mountPath":"/v","readOnly":true,"recursiveReadOnly":"Disabled"}],
	"user":{"linux":{"uid":0,"gid":0,"supplementalGroups":[1]}}}]}}`

// disruptionTarget returns the condition that says why the pod is ended.
func disruptionTarget(status, reason string) string {
	return fmt.Sprintf(`{"type":"DisruptionTarget","status":%q,"reason":%q,"message":"m","lastTransitionTime":"2026-01-01T00:00:01Z"}`, status, reason)
}

// reportPatch returns the patch by which evictd-kube reports an eviction.
func reportPatch(uid, reason string) string {
	return fmt.Sprintf(`{"metadata":{"uid":%q,"annotations":{"evictd.io/evicted":"2026-01-01T00:00:00.000Z/1"}},
		"status":{"phase":"Failed","reason":%q,"message":"The node was low on resource: memory.","conditions":[%s]}}`,
		uid, reason, disruptionTarget("True", "TerminationByEvictd"))
}

// policyCase is one write. clause has words of the message of the clause that denies it, and
// is empty for a write that is allowed.
type policyCase struct {
	name, token, method, pod, body, clause string
}

const (
	clauseOnNode     = "not bound to the node"
	clauseCritical   = "critical"
	clauseStatic     = "static"
	clauseDeletion   = "may be deleted only"
	clauseOptions    = "of the options"
	clauseMetadata   = "of the metadata"
	clauseAnnotation = "only the annotation"
	clauseStatus     = "of the status"
	clausePhase      = "the phase may only"
	clauseConditions = "of the conditions"
	clauseDisruption = "the condition DisruptionTarget"

	clauseRejectAnnotation = "only with the annotation evictd.io/required"
	clauseRejectPending    = "only while it is Pending"
	clauseRejectStarted    = "before a container"
	clauseRejectDaemon     = "of a DaemonSet"
	clauseRejectMessage    = "the message of the kubelet"
	clauseRejectMark       = "another value of the annotation"
)

// policyCases returns the writes. UID stands for the UID of the pod.
func policyCases() []policyCase {
	const patch, remove = http.MethodPatch, http.MethodDelete
	ok := reportPatch("UID", "Evicted")
	grace1 := `{"gracePeriodSeconds":1,"preconditions":{"uid":"UID"}}`
	// option returns the deletion with a further option.
	option := func(field string) string { return strings.Replace(grace1, "{", "{"+field+",", 1) }
	// also returns the report with a further change.
	also := func(change string) string {
		var a, b map[string]any
		_ = json.Unmarshal([]byte(ok), &a) // both are constants
		if err := json.Unmarshal([]byte(change), &b); err != nil {
			panic(err)
		}
		for part, fields := range b {
			into := a[part].(map[string]any)
			for k, v := range fields.(map[string]any) {
				switch have := into[k].(type) {
				case map[string]any:
					maps.Copy(have, v.(map[string]any))
				case []any:
					into[k] = append(have, v.([]any)...)
				default:
					into[k] = v
				}
			}
		}
		out, _ := json.Marshal(a) // it was JSON
		return string(out)
	}
	rejects := func(changes ...string) string {
		body := `{"metadata":{"uid":"UID","resourceVersion":"RV","annotations":{"evictd.io/evicted":"2026-01-01T00:00:00.000Z/1"}},
			"status":{"phase":"Failed","reason":"NodeAffinity","message":"Predicate NodeAffinity failed: m"}}`
		return strings.NewReplacer(changes...).Replace(body)
	}
	conditionsOnly := func(list ...string) string {
		return `{"metadata":{"uid":"UID"},"status":{"conditions":[` + strings.Join(list, ",") + `]}}`
	}
	return []policyCase{
		{"report", "n1", patch, "running", ok, ""},
		{"report of a terminated pod", "n1", patch, "running", reportPatch("UID", "Terminated"), ""},
		{"report before the pod runs", "n1", patch, "pending", ok, ""},
		{"report again", "n1", patch, "failed", strings.Replace(ok, "/1", "/2", 1), ""},
		{"report a pod that is being deleted", "n1", patch, "terminating", ok, ""},
		{"report a pod with many annotations", "n1", patch, "crowded", ok, ""},
		{"mark", "n1", patch, "running", conditionsOnly(disruptionTarget("True", "TerminationByEvictd")), ""},
		{"mark over an old condition", "n1", patch, "disrupted", conditionsOnly(disruptionTarget("True", "TerminationByEvictd")), ""},
		{"annotation alone", "n1", patch, "running", `{"metadata":{"annotations":{"evictd.io/evicted":"x"}}}`, ""},
		{"delete", "n1", remove, "running", grace1, ""},
		{"reject", "n1", patch, "misfit", rejects(), ""},
		{"reject a pod whose containers wait", "n1", patch, "misfit-waiting", rejects(), ""},
		{"reject again", "n1", patch, "misfit-undone", rejects("/1", "/2"), ""},
		{"delete a pod with many annotations", "n1", remove, "crowded", grace1, ""},
		{"delete with a longer grace period", "n1", remove, "running", strings.Replace(grace1, "1", "30", 1), ""},
		{"delete a pod that has failed", "n1", remove, "failed", grace1, ""},
		{"delete at once", "n1", remove, "running", strings.Replace(grace1, "1", "0", 1), ""},

		{"report from another node", "n2", patch, "running", ok, clauseOnNode},
		{"report with a token of no pod", "", patch, "running", ok, clauseOnNode},
		{"report of an unscheduled pod with a token of no pod", "", patch, "unscheduled", ok, clauseOnNode},
		{"report of an unscheduled pod", "n1", patch, "unscheduled", ok, clauseOnNode},
		{"delete from another node", "n2", remove, "running", grace1, clauseOnNode},
		{"delete with a token of no pod", "", remove, "running", grace1, clauseOnNode},
		{"report a critical pod of the node", "n1", patch, "node-critical", ok, clauseCritical},
		{"report a critical pod of the cluster", "n1", patch, "cluster-critical", ok, clauseCritical},
		{"delete a critical pod", "n1", remove, "cluster-critical", grace1, clauseCritical},
		{"report a static pod", "n1", patch, "mirror", ok, clauseStatic},
		{"delete a static pod", "n1", remove, "mirror", grace1, clauseStatic},
		{"delete whatever pod has the name", "n1", remove, "running", `{"gracePeriodSeconds":1}`, clauseDeletion},
		{"delete with another precondition", "n1", remove, "running", `{"gracePeriodSeconds":1,"preconditions":{"resourceVersion":"RV"}}`, clauseDeletion},
		{"delete without options", "n1", remove, "running", "", clauseDeletion},
		{"delete and orphan dependents", "n1", remove, "running", option(`"propagationPolicy":"Orphan"`), clauseOptions},
		{"delete after dependents", "n1", remove, "running", option(`"propagationPolicy":"Foreground"`), clauseOptions},
		{"delete before dependents", "n1", remove, "running", option(`"propagationPolicy":"Background"`), clauseOptions},
		{"delete and orphan dependents as of old", "n1", remove, "running", option(`"orphanDependents":true`), clauseOptions},
		{"delete and don't orphan dependents", "n1", remove, "running", option(`"orphanDependents":false`), clauseOptions},

		{"add a label", "n1", patch, "running", also(`{"metadata":{"labels":{"app":"other"}}}`), clauseMetadata},
		{"change a label", "n1", patch, "running", also(`{"metadata":{"labels":{"a":"other"}}}`), clauseMetadata},
		{"remove all labels", "n1", patch, "running", also(`{"metadata":{"labels":null}}`), clauseMetadata},
		{"add a finalizer", "n1", patch, "running", also(`{"metadata":{"finalizers":["example.com/b"]}}`), clauseMetadata},
		{"remove a finalizer", "n1", patch, "terminating", also(`{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.com/a"]}}`), clauseMetadata},
		{"add an annotation", "n1", patch, "running", also(`{"metadata":{"annotations":{"other":"x"}}}`), clauseAnnotation},
		{"change an annotation", "n1", patch, "running", also(`{"metadata":{"annotations":{"a":"x"}}}`), clauseAnnotation},
		{"remove an annotation", "n1", patch, "running", also(`{"metadata":{"annotations":{"a":null}}}`), clauseAnnotation},
		{"remove all annotations", "n1", patch, "running", `{"metadata":{"annotations":null}}`, clauseAnnotation},
		{"remove the own annotation", "n1", patch, "failed", `{"metadata":{"annotations":{"evictd.io/evicted":null}}}`, clauseAnnotation},
		{"add annotations to a pod with many", "n1", patch, "crowded", also(`{"metadata":{"annotations":{"other":"x"}}}`), clauseAnnotation},
		{"change the address", "n1", patch, "running", also(`{"status":{"podIP":"10.9.9.9","podIPs":[{"$patch":"replace"},{"ip":"10.9.9.9"}]}}`), clauseStatus},
		{"remove the addresses", "n1", patch, "running", also(`{"status":{"podIP":null,"podIPs":[{"$patch":"replace"}]}}`), clauseStatus},
		{"change the host's address", "n1", patch, "running", also(`{"status":{"hostIP":"10.9.9.9","hostIPs":[{"$patch":"replace"},{"ip":"10.9.9.9"}]}}`), clauseStatus},
		{"change the containers", "n1", patch, "running", also(`{"status":{"containerStatuses":[{"name":"main","image":"y","imageID":"y","ready":false,"restartCount":1}]}}`), clauseStatus},
		{"add init containers", "n1", patch, "running", also(`{"status":{"initContainerStatuses":[{"name":"i","image":"y","imageID":"y","ready":false,"restartCount":1}]}}`), clauseStatus},
		{"change the resize", "n1", patch, "running", also(`{"status":{"resize":"Infeasible"}}`), clauseStatus},
		{"change the start", "n1", patch, "running", also(`{"status":{"startTime":"2026-01-02T00:00:00Z"}}`), clauseStatus},
		{"remove the start", "n1", patch, "running", also(`{"status":{"startTime":null}}`), clauseStatus},
		{"change the generation", "n1", patch, "running", also(`{"status":{"observedGeneration":7}}`), clauseStatus},
		{"succeed", "n1", patch, "running", also(`{"status":{"phase":"Succeeded"}}`), clausePhase},
		{"run", "n1", patch, "pending", also(`{"status":{"phase":"Running"}}`), clausePhase},
		{"fail for another reason", "n1", patch, "running", reportPatch("UID", "DeadlineExceeded"), clausePhase},
		{"fail without a reason", "n1", patch, "running", also(`{"status":{"reason":null}}`), clausePhase},
		{"reason alone", "n1", patch, "running", `{"status":{"reason":"Evicted"}}`, clausePhase},
		{"message alone", "n1", patch, "running", `{"status":{"message":"x"}}`, clausePhase},
		{"remove the reason", "n1", patch, "failed", `{"status":{"reason":null}}`, clausePhase},
		{"fail a pod that has succeeded", "n1", patch, "succeeded", ok, clausePhase},
		{"reject from another node", "n2", patch, "misfit", rejects(), clauseOnNode},
		{"reject a pod without the annotation", "n1", patch, "pending", rejects(), clauseRejectAnnotation},
		{"reject a running pod", "n1", patch, "misfit-unstarted", rejects(), clauseRejectPending},
		{"reject a pod that was evicted", "n1", patch, "misfit-evicted", rejects("/1", "/2"), clauseRejectPending},
		{"reject a pod with a container", "n1", patch, "misfit-created", rejects(), clauseRejectStarted},
		{"reject a pod with an init container", "n1", patch, "misfit-initialized", rejects(), clauseRejectStarted},
		{"reject a pod whose container has ended", "n1", patch, "misfit-ended", rejects(), clauseRejectStarted},
		{"reject a pod of a DaemonSet", "n1", patch, "misfit-daemon", rejects(), clauseRejectDaemon},
		{"reject with another message", "n1", patch, "misfit", rejects("Predicate NodeAffinity failed: m", "x"), clauseRejectMessage},
		{"reject without a message", "n1", patch, "misfit", rejects(`,"message":"Predicate NodeAffinity failed: m"`, ""), clauseRejectMessage},
		{"reject without the annotation of evictd", "n1", patch, "misfit", rejects(`,"annotations":{"evictd.io/evicted":"2026-01-01T00:00:00.000Z/1"}`, ""), clauseRejectMark},
		{"reject and add a label", "n1", patch, "misfit", rejects(`"annotations"`, `"labels":{"a":"b"},"annotations"`), clauseMetadata},
		{"change a condition", "n1", patch, "running", also(`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`), clauseConditions},
		{"add a condition", "n1", patch, "running", also(`{"status":{"conditions":[{"type":"example.com/Other","status":"True"}]}}`), clauseConditions},
		{"remove a condition", "n1", patch, "running", also(`{"status":{"conditions":[{"type":"Ready","$patch":"delete"}]}}`), clauseConditions},
		{"not disrupted", "n1", patch, "running", conditionsOnly(disruptionTarget("False", "TerminationByEvictd")), clauseDisruption},
		{"disrupted for another reason", "n1", patch, "running", conditionsOnly(disruptionTarget("True", "PreemptionByScheduler")), clauseDisruption},
		{"remove the disruption", "n1", patch, "disrupted", conditionsOnly(`{"type":"DisruptionTarget","$patch":"delete"}`), clauseDisruption},
	}
}

// policyPods creates the pods of policyCases.
func (r *rig) policyPods() {
	for name, pod := range map[string]string{
		"running":          policyPod("running", "n1", `,"labels":{"a":"b"},"annotations":{"a":"b"}`),
		"pending":          policyPod("pending", "n1", ""),
		"failed":           policyPod("failed", "n1", ""),
		"terminating":      policyPod("terminating", "n1", `,"finalizers":["example.com/a"]`),
		"disrupted":        policyPod("disrupted", "n1", ""),
		"succeeded":        policyPod("succeeded", "n1", ""),
		"unscheduled":      policyPod("unscheduled", "", ""),
		"node-critical":    strings.Replace(policyPod("node-critical", "n1", ""), `"spec":{`, `"spec":{"priorityClassName":"system-node-critical",`, 1),
		"cluster-critical": strings.Replace(policyPod("cluster-critical", "n1", ""), `"spec":{`, `"spec":{"priorityClassName":"system-cluster-critical",`, 1),
		"mirror":           policyPod("mirror", "n1", `,"annotations":{"kubernetes.io/config.mirror":"x"}`),
		"crowded":          crowdedPod("crowded", "n1"),
	} {
		r.must("POST", "/api/v1/namespaces/default/pods", pod)
		if name != "pending" && name != "unscheduled" {
			r.patch(name, runningStatus)
		}
	}
	for name, status := range map[string]string{
		"misfit":             "",
		"misfit-daemon":      "",
		"misfit-waiting":     `"containerStatuses":[` + containerStatus(`"waiting":{"reason":"ContainerCreating"}`, "") + `]`,
		"misfit-undone":      `"phase":"Failed"`,
		"misfit-evicted":     `"phase":"Failed","reason":"Evicted"`,
		"misfit-unstarted":   `"phase":"Running"`,
		"misfit-created":     `"containerStatuses":[` + containerStatus(`"waiting":{"reason":"ContainerCreating"}`, "containerd://x") + `]`,
		"misfit-initialized": `"initContainerStatuses":[` + containerStatus(`"running":{"startedAt":"2026-01-01T00:00:00Z"}`, "") + `]`,
		"misfit-ended":       `"containerStatuses":[` + containerStatus(`"terminated":{"exitCode":1}`, "") + `]`,
	} {
		metadata := `,"annotations":{"evictd.io/required-during-execution":"x"}`
		if name == "misfit-daemon" {
			metadata += `,"ownerReferences":[{"apiVersion":"apps/v1","kind":"DaemonSet","name":"d","uid":"u","controller":true}]`
		}
		r.must("POST", "/api/v1/namespaces/default/pods", policyPod(name, "n1", metadata))
		if status != "" {
			r.patch(name, `{"status":{`+status+`}}`)
		}
	}
	uid := func(pod string) string {
		return decode[named](r.t, r.must("GET", "/api/v1/namespaces/default/pods/"+pod, "")).Metadata.UID
	}
	r.patch("failed", reportPatch(uid("failed"), "Evicted"))
	r.patch("disrupted", `{"status":{"conditions":[`+disruptionTarget("False", "EvictionByEvictionAPI")+`]}}`)
	r.patch("succeeded", `{"status":{"phase":"Succeeded"}}`)
	r.must("DELETE", "/api/v1/namespaces/default/pods/terminating", "")
}

// containerStatus returns the status of a container in a state.
func containerStatus(state, id string) string {
	return fmt.Sprintf(`{"name":"main","image":"x","imageID":"","ready":false,"restartCount":0,"state":{%s},"containerID":%q}`, state, id)
}

func (r *rig) patch(pod, body string) {
	r.t.Helper()
	if code, answer := r.as(adminToken, http.MethodPatch, "/api/v1/namespaces/default/pods/"+pod+"/status", body); code != http.StatusOK {
		r.t.Fatalf("status of %s = %d %.500s", pod, code, answer)
	}
}

// TestPolicy: the policy of the overlay enforce allows what an eviction writes, and denies
// all else that the account has a right to. Each clause is needed: without it the API server
// lets the writes through that it denies.
func TestPolicy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.client.Timeout = time.Minute // for the pod with many annotations
	for _, doc := range renderOverlay(t, "enforce") {
		r.applyObject(doc)
	}
	tokens := map[string]string{"": r.tokenOfPod("")}
	for _, node := range []string{"n1", "n2"} {
		r.must("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"`+node+`"}}`)
		r.agent("agent-"+node, node)
		tokens[node] = r.tokenOfPod("agent-" + node)
	}
	r.policyPods()
	try := func(c *policyCase) (int, string) { return r.try(tokens[c.token], c) }
	cases := policyCases()
	r.until("the policy applies", func() bool {
		code, _ := try(&cases[slices.IndexFunc(cases, func(c policyCase) bool { return c.clause != "" })])
		return code == http.StatusUnprocessableEntity
	})
	for _, c := range cases {
		code, message := try(&c)
		if c.clause == "" {
			if code != http.StatusOK {
				t.Errorf("%s = %d %.500s; want it allowed", c.name, code, message)
			}
			continue
		}
		if code != http.StatusUnprocessableEntity || !strings.Contains(message, "ValidatingAdmissionPolicy 'evictd-kube'") || !strings.Contains(message, c.clause) {
			t.Errorf("%s = %d %.500s; want it denied because %q", c.name, code, message, c.clause)
		}
	}
	if t.Failed() {
		return
	}
	r.withoutClauses(podPolicy, func(removed string) {
		denied := slices.DeleteFunc(slices.Clone(cases), func(c policyCase) bool { return c.clause == "" || !strings.Contains(removed, c.clause) })
		if len(denied) == 0 {
			t.Errorf("no write is denied by the clause: %s", removed)
		}
		for _, c := range denied {
			code, message := 0, ""
			r.until(c.name+" is not denied by the removed clause: "+removed, func() bool {
				code, message = try(&c)
				return !strings.Contains(message, removed)
			})
			if code != http.StatusOK && code != http.StatusAccepted { // accepted is the answer to orphanDependents=false
				t.Errorf("%s = %d %.500s without the clause; want it allowed", c.name, code, message)
			}
		}
	})
}

// try makes a write with a token, in dry run, and returns the status code and the message.
func (r *rig) try(token string, c *policyCase) (int, string) {
	r.t.Helper()
	path := "/api/v1/namespaces/default/pods/" + c.pod
	pod := decode[struct {
		Metadata struct{ UID, ResourceVersion string }
	}](r.t, r.must("GET", path, ""))
	if c.method == http.MethodPatch {
		path += "/status"
	}
	body := strings.NewReplacer("UID", pod.Metadata.UID, `"RV"`, `"`+pod.Metadata.ResourceVersion+`"`).Replace(c.body)
	if c.method == http.MethodDelete { // the API server ignores the query if there is a body
		body = strings.Replace(body, "{", `{"dryRun":["All"],`, 1)
	}
	code, answer := r.as(token, c.method, path+"?dryRun=All", body)
	return code, decode[struct{ Message string }](r.t, answer).Message
}

// withoutClauses calls do with the message of each clause of a policy, after it has
// removed that clause.
func (r *rig) withoutClauses(name string, do func(message string)) {
	r.t.Helper()
	read := func() (policy map[string]any, clauses []any) {
		policy = decode[map[string]any](r.t, r.must("GET", policyPath(name), ""))
		return policy, policy["spec"].(map[string]any)["validations"].([]any)
	}
	_, all := read()
	for i := range all {
		policy, _ := read()
		policy["spec"].(map[string]any)["validations"] = slices.Delete(slices.Clone(all), i, i+1)
		body, err := json.Marshal(policy)
		if err != nil {
			r.t.Fatal(err)
		}
		r.must("PUT", policyPath(name), string(body))
		do(all[i].(map[string]any)["message"].(string))
	}
}

// TestPolicyTypes: the expressions of the policies have the types of the API server's objects.
func TestPolicyTypes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, doc := range renderOverlay(t, "enforce") {
		r.applyObject(doc)
	}
	findPrograms(t, controllerManager)
	r.check(r.StartControllers([]string{"validatingadmissionpolicy-status-controller"}))
	type policy struct {
		Metadata struct{ Generation int }
		Status   struct {
			ObservedGeneration int
			TypeChecking       struct{ ExpressionWarnings []map[string]string }
		}
	}
	for _, name := range []string{podPolicy, nodePolicy} {
		var p policy
		r.until("the type check of "+name, func() bool {
			p = decode[policy](t, r.must("GET", policyPath(name), ""))
			return p.Status.ObservedGeneration == p.Metadata.Generation
		})
		for _, w := range p.Status.TypeChecking.ExpressionWarnings {
			t.Errorf("%s: %s: %s", name, w["fieldRef"], w["warning"])
		}
	}
}

// TestFlowSchema: requests for pods and nodes have the priority level of the kubelets.
func TestFlowSchema(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, doc := range renderOverlay(t, "enforce") {
		r.applyObject(doc)
	}
	uid := func(path string) string {
		return decode[named](t, r.must("GET", "/apis/flowcontrol.apiserver.k8s.io/v1/"+path, "")).Metadata.UID
	}
	schema, level := uid("flowschemas/evictd-kube"), uid("prioritylevelconfigurations/system")
	token := r.tokenOfPod("")
	for _, path := range []string{"/api/v1/pods?limit=1", "/api/v1/namespaces/default/pods/none", "/api/v1/nodes/none", "/api/v1/nodes/none/status"} {
		r.until("the priority level of "+path, func() bool {
			_, header, _ := r.do(token, http.MethodGet, path, "", "")
			return header.Get("X-Kubernetes-Pf-Flowschema-Uid") == schema && header.Get("X-Kubernetes-Pf-Prioritylevel-Uid") == level
		})
	}
	_, header, _ := r.do(token, http.MethodPost, "/apis/events.k8s.io/v1/namespaces/default/events", "application/json", "{}")
	if header.Get("X-Kubernetes-Pf-Flowschema-Uid") == schema {
		t.Error("events have the priority level of the kubelets")
	}
}

// crowdedPod returns a pod with almost as many annotations as the API server allows, and with
// many labels and finalizers. The comparison with the old object must stay within the limits
// of the policy's cost.
func crowdedPod(name, node string) string {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyz"
	many := func(n int, format string) string {
		list := make([]string, n)
		for i := range list {
			key := []byte{digits[i/36/36/36%36], digits[i/36/36%36], digits[i/36%36], digits[i%36]}
			list[i] = fmt.Sprintf(format, key)
		}
		return strings.Join(list, ",")
	}
	return policyPod(name, node, `,"annotations":{`+many(60_000, `%q:""`)+`},"labels":{`+many(5_000, `%q:""`)+`},"finalizers":[`+many(5_000, `"a.b/%s"`)+`]`)
}
