package cluster

import (
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/evictd/evictd/tests/controlplane"
)

// named is what the tests read of any object.
type named struct {
	Kind     string
	Metadata struct{ Name, Namespace, UID string }
}

// renderOverlay returns the objects of an overlay of deploy/kubernetes, in the order in which
// kubectl applies them.
func renderOverlay(t *testing.T, overlay string) []string {
	t.Helper()
	return render(t, filepath.Join("overlays", overlay))
}

// render returns the objects of a directory of deploy/kubernetes.
func render(t *testing.T, dir string) []string {
	t.Helper()
	readManifests(t)
	cmd := exec.Command(filepath.Join(findPrograms(t, kustomize), kustomize), "build", filepath.Join("../../deploy/kubernetes", dir))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kustomize build %s: %v", dir, err)
	}
	return documents(out)
}

// readManifests reads all files of deploy/kubernetes: go test notices only changes of files that
// the test itself has opened.
func readManifests(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir("../../deploy/kubernetes", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		_, err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// applyObject applies an object as kubectl apply --server-side does, and fails with a warning
// of the API server.
func (r *rig) applyObject(doc string) {
	r.t.Helper()
	r.patchObject(doc, "dryRun=All")
	r.patchObject(doc, "")
}

// patchObject sends an object to the API server, which does not accept unknown fields. It fails
// with a warning of the API server.
func (r *rig) patchObject(doc, parameter string) {
	r.t.Helper()
	object, err := controlplane.ObjectPath([]byte(doc))
	if err != nil {
		r.t.Fatal(err)
	}
	var o named
	if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
		r.t.Fatal(err)
	}
	path := object + "?fieldManager=kubectl&fieldValidation=Strict&" + parameter
	code, header, answer := r.do(adminToken, http.MethodPatch, path, "application/apply-patch+yaml", doc)
	if code >= 300 || header.Get("Warning") != "" {
		r.t.Fatalf("apply %s %s = %d: %s %s", o.Kind, o.Metadata.Name, code, header.Get("Warning"), answer)
	}
}

// agent creates a pod of the account evictd-kube on a node, if there is none.
func (r *rig) agent(name, node string) {
	r.t.Helper()
	_, _ = r.request(http.MethodPost, "/api/v1/namespaces/evictd/pods", "application/json", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"`+name+`"},
		"spec":{"nodeName":"`+node+`","serviceAccountName":"evictd-kube","containers":[{"name":"main","image":"x"}]}}`) // it may exist
}

// tokenOfPod returns a token as the kubelet requests it for a pod of evictd-kube. An empty
// name is a token that is not bound to a pod.
func (r *rig) tokenOfPod(pod string) string {
	r.t.Helper()
	bound := ""
	if pod != "" {
		uid := decode[named](r.t, r.must("GET", "/api/v1/namespaces/evictd/pods/"+pod, "")).Metadata.UID
		bound = `,"boundObjectRef":{"apiVersion":"v1","kind":"Pod","name":"` + pod + `","uid":"` + uid + `"}`
	}
	return r.accountToken("evictd-kube", bound)
}

// accountToken requests a token of a service account of the namespace evictd. More of the request's spec can be added.
func (r *rig) accountToken(account, spec string) string {
	r.t.Helper()
	answer := r.must("POST", "/api/v1/namespaces/evictd/serviceaccounts/"+account+"/token",
		`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":3600`+spec+`}}`)
	return decode[struct{ Status struct{ Token string } }](r.t, answer).Status.Token
}
