package cluster

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
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
		req, err := http.NewRequestWithContext(context.Background(), tt.method, "https://"+r.address+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", map[string]string{"PATCH": "application/merge-patch+json", "POST": "application/json"}[tt.method])
		resp, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != tt.want {
			t.Errorf("%s %s = %d; want %d", tt.method, tt.path, resp.StatusCode, tt.want)
		}
	}
}
