package cluster

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestManifests: the API server accepts each object of deploy/kubernetes, which has no
// unknown field, the kustomization has all files, and the account may do what
// evictd-kube does and nothing else.
func TestManifests(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const base = "../../deploy/kubernetes/base"
	kustomization, err := os.ReadFile(filepath.Join(base, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(filepath.Join(base, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, path := range paths {
		if name := filepath.Base(path); name != "kustomization.yaml" {
			files = append(files, name)
			if !strings.Contains(string(kustomization), "  - "+name+"\n") {
				t.Errorf("kustomization.yaml does not have %s", name)
			}
		}
	}
	r.apply("namespace.yaml", "rbac.yaml")
	for _, file := range slices.DeleteFunc(files, func(f string) bool { return f == "namespace.yaml" || f == "rbac.yaml" }) {
		content, err := os.ReadFile(filepath.Join(base, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range documents(content) {
			path, err := resource(doc)
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if _, err := r.request(http.MethodPost, path+"?dryRun=All&fieldValidation=Strict", "application/yaml", doc); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}

	r.must("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`)
	token := r.token(time.Hour)
	if diff := cmp.Diff([]string{"/nodes: get", "/pods: list,watch"}, r.rights(token)); diff != "" {
		t.Errorf("rights of the account (-want +got):\n%s", diff)
	}
	const patch = `{"metadata":{"annotations":{"a":"b"}}}`
	for _, tt := range []struct {
		method, path, body string
		want               int
	}{
		{"GET", "/api/v1/nodes/n1", "", 200},
		{"GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", "", 200},
		{"GET", "/api/v1/pods?watch=true&timeoutSeconds=1&fieldSelector=spec.nodeName%3Dn1", "", 200},
		{"GET", "/api/v1/nodes", "", 403},
		{"PATCH", "/api/v1/nodes/n1", patch, 403},
		{"PATCH", "/api/v1/nodes/n1/status", patch, 403},
		{"DELETE", "/api/v1/namespaces/default/pods/a", "", 403},
		{"PATCH", "/api/v1/namespaces/default/pods/a/status", patch, 403},
		{"POST", "/api/v1/namespaces/default/pods", "{}", 403},
		{"GET", "/api/v1/secrets", "", 403},
		{"GET", "/api/v1/nodes/n1/proxy/configz", "", 403},
	} {
		if got, _ := r.as(token, tt.method, tt.path, tt.body); got != tt.want {
			t.Errorf("%s %s = %d; want %d", tt.method, tt.path, got, tt.want)
		}
	}
}

// as makes a request with a token, and returns the status code and the body.
func (r *rig) as(token, method, path, body string) (int, []byte) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, "https://"+r.address+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", map[string]string{"PATCH": "application/merge-patch+json", "POST": "application/json"}[method])
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, answer
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
