package cluster

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// accountRequest is a request of the account evictd-kube. right is the right that it needs. It
// is empty if no overlay grants it, the answer is 403 then.
type accountRequest struct {
	right, method, path, body string
	want                      int
}

// accountRequests returns a request for each right of the overlay enforce, and some that need
// other rights. The UID is that of the pod default/a.
func accountRequests(uid string) []accountRequest {
	const event = `{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"a.1","namespace":"default"},
		"regarding":{"kind":"Pod","namespace":"default","name":"a"},"reason":"Evicted","type":"Warning","action":"Evict",
		"reportingController":"evictd.io/evictd","reportingInstance":"n1","eventTime":"2026-01-01T00:00:00.000000Z"}`
	condition := `{"status":{"conditions":[` + conditionJSON("EvictdPIDPressure", "False", "EvictdHasSufficientPID", "") + `]}}`
	return []accountRequest{
		{"nodes get", "GET", "/api/v1/nodes/n1", "", 200},
		{"pods list", "GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", "", 200},
		{"pods watch", "GET", "/api/v1/pods?watch=true&timeoutSeconds=1&fieldSelector=spec.nodeName%3Dn1", "", 200},
		// The kubelet has this resource, and the API server not.
		{"nodes/configz get", "GET", "/api/v1/nodes/n1/configz", "", 404},
		{"pods get", "GET", "/api/v1/namespaces/default/pods/a", "", 200},
		{"pods/status patch", "PATCH", "/api/v1/namespaces/default/pods/a/status?dryRun=All", reportPatch(uid, "Evicted"), 200},
		{"pods delete", "DELETE", "/api/v1/namespaces/default/pods/a", `{"dryRun":["All"],"gracePeriodSeconds":1,"preconditions":{"uid":"` + uid + `"}}`, 200},
		{"nodes patch", "PATCH", "/api/v1/nodes/n1?dryRun=All", `{"spec":{"taints":[` + taintJSON("evictd.io/pid-pressure", "NoSchedule") + `]}}`, 200},
		{"nodes/status patch", "PATCH", "/api/v1/nodes/n1/status?dryRun=All", condition, 200},
		{"events.k8s.io/events create", "POST", "/apis/events.k8s.io/v1/namespaces/default/events?dryRun=All", event, 201},

		{"", "GET", "/api/v1/nodes", "", 403},
		{"", "PUT", "/api/v1/nodes/n1", "{}", 403},
		{"", "PUT", "/api/v1/nodes/n1/status", "{}", 403},
		{"", "DELETE", "/api/v1/nodes/n1", "", 403},
		{"", "GET", "/api/v1/nodes/n1/proxy/configz", "", 403},
		{"", "GET", "/api/v1/namespaces/default/pods/a/status", "", 403},
		{"", "PATCH", "/api/v1/namespaces/default/pods/a", `{"metadata":{"labels":{"a":"b"}}}`, 403},
		{"", "PUT", "/api/v1/namespaces/default/pods/a/status", "{}", 403},
		{"", "DELETE", "/api/v1/namespaces/default/pods", "", 403},
		{"", "POST", "/api/v1/namespaces/default/pods", "{}", 403},
		{"", "POST", "/api/v1/namespaces/default/pods/a/eviction", "{}", 403},
		{"", "POST", "/api/v1/namespaces/default/events", "{}", 403},
		{"", "PATCH", "/apis/events.k8s.io/v1/namespaces/default/events/a.1", `{"series":{"count":2}}`, 403},
		{"", "GET", "/api/v1/secrets", "", 403},
	}
}

// account creates the node n1 and the pod default/a there, and returns the requests.
func (r *rig) account() []accountRequest {
	r.t.Helper()
	r.must("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`)
	r.withoutTaints("n1")
	r.must("POST", "/api/v1/namespaces/default/pods", policyPod("a", "n1", ""))
	return accountRequests(decode[named](r.t, r.must("GET", "/api/v1/namespaces/default/pods/a", "")).Metadata.UID)
}

// TestManifests: the API server accepts each overlay of deploy/kubernetes as kustomize
// renders it, without a warning about a field, also in place of another overlay. The account
// has the rights of the overlay and no others.
func TestManifests(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	requests := r.account()
	var all []string
	for _, q := range requests {
		if q.right != "" {
			all = append(all, q.right)
		}
	}
	slices.Sort(all)
	reads := []string{"nodes get", "nodes/configz get", "pods list", "pods watch"}
	for _, step := range []struct {
		overlay string
		rights  []string
	}{{"dry-run", reads}, {"enforce", all}, {"mixed", all}, {"dry-run", reads}} {
		for _, doc := range renderOverlay(t, step.overlay) {
			r.applyObject(doc)
		}
		r.agent("agent-n1", "n1")
		token := r.tokenOfPod("agent-n1")
		r.until("the rights of "+step.overlay, func() bool { return slices.Equal(step.rights, r.rights(token)) })
		for _, q := range requests {
			want := q.want
			if !slices.Contains(step.rights, q.right) {
				want = http.StatusForbidden
			}
			if got, answer := r.as(token, q.method, q.path, q.body); got != want {
				t.Errorf("%s: %s %s = %d %.300s; want %d", step.overlay, q.method, q.path, got, answer, want)
			}
		}
	}
}

// TestLeastRights: without one of its rights the account is refused what needs that right, and
// nothing else.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	requests := r.account()
	for _, doc := range renderOverlay(t, "enforce") {
		r.applyObject(doc)
	}
	r.agent("agent-n1", "n1")
	token := r.tokenOfPod("agent-n1")
	type clusterRole struct {
		Rules []policyRule `json:"rules"`
	}
	const path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/evictd-kube"
	rules := decode[clusterRole](t, r.must("GET", path, "")).Rules
	for i, rule := range rules {
		for _, verb := range rule.Verbs {
			less := slices.Clone(rules)
			less[i].Verbs = slices.DeleteFunc(slices.Clone(rule.Verbs), func(v string) bool { return v == verb })
			if len(less[i].Verbs) == 0 {
				less = slices.Delete(less, i, i+1)
			}
			body, err := json.Marshal(clusterRole{less})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.request(http.MethodPatch, path, "application/merge-patch+json", string(body)); err != nil {
				t.Fatal(err)
			}
			right := rule.resource() + " " + verb
			r.until("the removal of "+right, func() bool { return !slices.Contains(r.rights(token), right) })
			for _, q := range requests {
				want := q.want
				if q.right == right {
					want = http.StatusForbidden
				}
				if got, answer := r.as(token, q.method, q.path, q.body); got != want {
					t.Errorf("without %s: %s %s = %d %.300s; want %d", right, q.method, q.path, got, answer, want)
				}
			}
			if !slices.ContainsFunc(requests, func(q accountRequest) bool { return q.right == right }) {
				t.Errorf("no request needs %s", right)
			}
		}
	}
}

// as makes a request with a token, and returns the status code and the body.
func (r *rig) as(token, method, path, body string) (int, []byte) {
	r.t.Helper()
	code, _, answer := r.do(token, method, path, map[string]string{
		"PATCH": "application/strategic-merge-patch+json", "POST": "application/json", "PUT": "application/json", "DELETE": "application/json",
	}[method], body)
	return code, answer
}

// do makes a request, and returns the status code, the header and the body.
func (r *rig) do(token, method, path, contentType, body string) (int, http.Header, []byte) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, "https://"+r.address+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", contentType)
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, answer
}

// policyRule is a rule of a role. The overlays' rules have one resource each.
type policyRule struct {
	APIGroups     []string `json:"apiGroups"`
	Resources     []string `json:"resources"`
	ResourceNames []string `json:"resourceNames,omitempty"`
	Verbs         []string `json:"verbs"`
}

// resource returns the resource of a rule, with its group unless that is the core's.
func (p *policyRule) resource() string {
	return strings.TrimPrefix(strings.Join(append([]string{strings.Join(p.APIGroups, ","), strings.Join(p.Resources, ",")}, p.ResourceNames...), "/"), "/")
}

// rights returns what an account may do with resources, sorted: all that the API server
// grants, except what it grants every account, which is to ask for its own rights.
func (r *rig) rights(token string) (list []string) {
	r.t.Helper()
	return r.rightsIn("kube-system", token)
}

// rightsIn is rights in a namespace, those in all namespaces included.
func (r *rig) rightsIn(namespace, token string) (list []string) {
	r.t.Helper()
	code, answer := r.as(token, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
		`{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectRulesReview","spec":{"namespace":"`+namespace+`"}}`)
	review := decode[struct {
		Status struct {
			Incomplete    bool
			ResourceRules []policyRule
		}
	}](r.t, answer)
	if code != http.StatusCreated || review.Status.Incomplete {
		r.t.Fatalf("rules = %d: %s", code, answer)
	}
	for _, rule := range review.Status.ResourceRules {
		what := rule.resource()
		if strings.HasPrefix(what, "authorization.k8s.io/selfsubject") || what == "authentication.k8s.io/selfsubjectreviews" {
			continue
		}
		for _, verb := range rule.Verbs {
			list = append(list, what+" "+verb)
		}
	}
	slices.Sort(list)
	return list
}
