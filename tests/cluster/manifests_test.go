package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestManifests: the API server accepts each overlay of deploy/kubernetes as kustomize
// renders it, without a warning about a field, also in place of another overlay. The account
// has the rights of the overlay and no others.
func TestManifests(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.must("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`)
	r.must("POST", "/api/v1/namespaces/default/pods", policyPod("a", "n1", ""))

	reads := []string{"/nodes: get", "/pods: list,watch"}
	writes := []string{"/nodes: get", "/pods/status: patch", "/pods: list,watch,get,delete", "events.k8s.io/events: create"}
	const event = `{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"a.1","namespace":"default"},
		"regarding":{"kind":"Pod","namespace":"default","name":"a"},"reason":"Evicted","type":"Warning","action":"Evict",
		"reportingController":"evictd.io/evictd","reportingInstance":"n1","eventTime":"2026-01-01T00:00:00.000000Z"}`
	const remove = `{"dryRun":["All"],"gracePeriodSeconds":1,"preconditions":{"uid":"%s"}}`
	uid := decode[named](t, r.must("GET", "/api/v1/namespaces/default/pods/a", "")).Metadata.UID
	for _, step := range []struct {
		overlay string
		rights  []string
	}{{"dry-run", reads}, {"enforce", writes}, {"mixed", writes}, {"dry-run", reads}} {
		for _, doc := range renderOverlay(t, step.overlay) {
			r.applyObject(doc)
		}
		enforces := len(step.rights) > 2
		r.agent("agent-n1", "n1")
		token := r.tokenOfPod("agent-n1")
		r.until("the rights of "+step.overlay, func() bool { return slices.Equal(step.rights, r.rights(token)) })
		for _, tt := range []struct {
			method, path, body string
			want               int
			onlyIfEnforced     bool
		}{
			{"GET", "/api/v1/nodes/n1", "", 200, false},
			{"GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", "", 200, false},
			{"GET", "/api/v1/pods?watch=true&timeoutSeconds=1&fieldSelector=spec.nodeName%3Dn1", "", 200, false},
			{"GET", "/api/v1/namespaces/default/pods/a", "", 200, true},
			{"PATCH", "/api/v1/namespaces/default/pods/a/status?dryRun=All", reportPatch(uid, "Evicted"), 200, true},
			{"DELETE", "/api/v1/namespaces/default/pods/a", fmt.Sprintf(remove, uid), 200, true},
			{"POST", "/apis/events.k8s.io/v1/namespaces/default/events?dryRun=All", event, 201, true},

			{"GET", "/api/v1/nodes", "", 403, false},
			{"PATCH", "/api/v1/nodes/n1", `{"metadata":{"labels":{"a":"b"}}}`, 403, false},
			{"PATCH", "/api/v1/nodes/n1/status", `{"metadata":{"labels":{"a":"b"}}}`, 403, false},
			{"GET", "/api/v1/nodes/n1/proxy/configz", "", 403, false},
			{"GET", "/api/v1/namespaces/default/pods/a/status", "", 403, false},
			{"PATCH", "/api/v1/namespaces/default/pods/a", `{"metadata":{"labels":{"a":"b"}}}`, 403, false},
			{"PUT", "/api/v1/namespaces/default/pods/a/status", "{}", 403, false},
			{"DELETE", "/api/v1/namespaces/default/pods", "", 403, false},
			{"POST", "/api/v1/namespaces/default/pods", "{}", 403, false},
			{"POST", "/api/v1/namespaces/default/pods/a/eviction", "{}", 403, false},
			{"POST", "/api/v1/namespaces/default/events", "{}", 403, false},
			{"PATCH", "/apis/events.k8s.io/v1/namespaces/default/events/a.1", `{"series":{"count":2}}`, 403, false},
			{"GET", "/api/v1/secrets", "", 403, false},
		} {
			want := tt.want
			if tt.onlyIfEnforced && !enforces {
				want = 403
			}
			if got, answer := r.as(token, tt.method, tt.path, tt.body); got != want {
				t.Errorf("%s: %s %s = %d %.300s; want %d", step.overlay, tt.method, tt.path, got, answer, want)
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

// rights returns what an account may do with resources, sorted: all that the API server
// grants, except what it grants every account, which is to ask for its own rights.
func (r *rig) rights(token string) (list []string) {
	r.t.Helper()
	code, answer := r.as(token, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
		`{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectRulesReview","spec":{"namespace":"kube-system"}}`)
	review := decode[struct {
		Status struct {
			Incomplete    bool
			ResourceRules []struct{ Verbs, APIGroups, Resources, ResourceNames []string }
		}
	}](r.t, answer)
	if code != http.StatusCreated || review.Status.Incomplete {
		r.t.Fatalf("rules = %d: %s", code, answer)
	}
	for _, rule := range review.Status.ResourceRules {
		what := strings.Join(append([]string{strings.Join(rule.APIGroups, ","), strings.Join(rule.Resources, ",")}, rule.ResourceNames...), "/")
		if strings.HasPrefix(what, "authorization.k8s.io/selfsubject") || what == "authentication.k8s.io/selfsubjectreviews" {
			continue
		}
		list = append(list, what+": "+strings.Join(rule.Verbs, ","))
	}
	slices.Sort(list)
	return list
}
