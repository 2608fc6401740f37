package affinity

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/affinity"
	"github.com/evictd/evictd/tests/controlplane"
	"github.com/evictd/evictd/tests/node"
)

const (
	secretPath  = "/api/v1/namespaces/" + namespace + "/secrets/evictd-controller-webhook"
	webhookPath = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
)

// hostAddress returns an address of this host that is not loopback, which an EndpointSlice can't have.
func hostAddress(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	t.Skip("needs an IPv4 address that is not loopback")
	return ""
}

// installWebhook applies the manifests of the webhook but for the Deployment.
func (c *cluster) installWebhook() {
	c.t.Helper()
	for _, name := range []string{
		"controller-serving/rbac.yaml", "controller-serving/service.yaml", "controller-webhook/mutatingwebhookconfiguration.yaml",
	} {
		manifest, err := os.ReadFile(filepath.Join("../../deploy/kubernetes", name))
		if err != nil {
			c.t.Fatal(err)
		}
		if err := c.Admin.Apply(c.t.Context(), manifest); err != nil {
			c.t.Fatalf("%s: %v", name, err)
		}
	}
}

// startReplica starts an evictd-controller with a webhook, waits until it is ready, and makes it an endpoint of the
// Service.
func (c *cluster) startReplica(program, host string) (stop func()) {
	c.t.Helper()
	address, err := controlplane.FreeAddress()
	if err != nil {
		c.t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		c.t.Fatal(err)
	}
	probes, err := controlplane.FreeAddress()
	if err != nil {
		c.t.Fatal(err)
	}
	stop = c.startController(program, "observe", "--webhook-address", net.JoinHostPort(host, port), "--probe-address", probes, "--identity", "replica-"+port)
	c.awaitReady(probes)
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		c.t.Fatal(err)
	}
	c.create("/apis/discovery.k8s.io/v1/namespaces/"+namespace+"/endpointslices", discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "replica-" + port, Labels: map[string]string{discoveryv1.LabelServiceName: "evictd-controller-webhook"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{host}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
		Ports:       []discoveryv1.EndpointPort{{Name: new("webhook"), Port: new(int32(number)), Protocol: new(corev1.ProtocolTCP)}},
	})
	return stop
}

// annotatedPod returns a pod that requires the label of an app by its annotation, and prefers node a.
func annotatedPod(name, app string) corev1.Pod {
	d := deployment(app, 1)
	p := corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
	p.Name = name
	p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = nil
	return p
}

// tryPod creates a pod, by a dry run if that is set, and returns what was stored and what the API server warned of.
func (c *cluster) tryPod(p corev1.Pod, dryRun bool) (out corev1.Pod, warnings string, err error) {
	c.t.Helper()
	body, err := json.Marshal(p)
	if err != nil {
		c.t.Fatal(err)
	}
	path := "https://" + c.Address + podsPath
	if dryRun {
		path += "?dryRun=All"
	}
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, path, strings.NewReader(string(body)))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+controlplane.AdminToken)
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Admin.HTTP.Do(req)
	if err != nil {
		return out, "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		var s metav1.Status
		if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
			return out, "", err
		}
		return out, "", fmt.Errorf("%d %s", resp.StatusCode, s.Message)
	}
	return out, strings.Join(resp.Header.Values("Warning"), "\n"), json.NewDecoder(resp.Body).Decode(&out)
}

// required returns the terms that a pod requires of its node.
func required(p *corev1.Pod) []corev1.NodeSelectorTerm {
	if p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil || p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

// restricted reports whether a pod requires the label of an app, and nothing else.
func restricted(p *corev1.Pod, app string) bool {
	want := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: prefix + app, Operator: corev1.NodeSelectorOpIn, Values: []string{"valid"}},
	}}}
	return reflect.DeepEqual(required(p), want)
}

// bundle returns the caBundle of the webhook.
func (c *cluster) bundle() (string, error) {
	var o admissionregistrationv1.MutatingWebhookConfiguration
	if err := c.Admin.Get(c.t.Context(), webhookPath+"/evictd-controller", &o); err != nil {
		return "", err
	}
	return string(o.Webhooks[0].ClientConfig.CABundle), nil
}

// awaitWebhook waits until the webhook has the authority of the Secret, and changes a pod.
func (c *cluster) awaitWebhook() (secret corev1.Secret) {
	c.t.Helper()
	c.await("the webhook to answer", func() (bool, error) {
		bundle, err := c.bundle()
		if err != nil {
			return false, err
		}
		if err := c.Admin.Get(c.t.Context(), secretPath, &secret); err != nil || bundle != string(secret.Data["ca.crt"]) {
			return false, errors.Join(err, errors.New("the webhook has not the authority of the Secret"))
		}
		p, _, err := c.tryPod(annotatedPod("try", "web"), true)
		return restricted(&p, "web"), err
	})
	return secret
}

// TestWebhook: the manifests of the webhook make the annotation of new pods a node affinity that the scheduler follows,
// with a certificate that two replicas share and that is replaced while they run.
func TestWebhook(t *testing.T) {
	needPrograms(t)
	host := hostAddress(t)
	built, err := node.Program("../..", t.TempDir(), "evictd-controller")
	if err != nil {
		t.Fatal(err)
	}
	c := startCluster(t, []string{"web"}, "a", "b")
	c.install("")
	c.installWebhook()
	stops := []func(){c.startReplica(built, host), c.startReplica(built, host)}
	c.awaitWebhook()

	t.Run("pods", func(t *testing.T) { c.webhookPods(t) })
	t.Run("called again", func(t *testing.T) { c.webhookCalledAgain(t) })
	t.Run("certificate", func(t *testing.T) { c.webhookCertificate(t) })
	t.Run("scheduled", func(t *testing.T) {
		c.takeLabel("a", "web")
		d := deployment("web", 2)
		d.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = nil
		c.create("/apis/apps/v1/namespaces/default/deployments", d)
		for uid, name := range c.awaitRunning("web", 2) {
			if name != "b" {
				t.Errorf("pod %s runs on %s; want b", uid, name)
			}
		}
		pods, err := c.pods("web")
		if err != nil {
			t.Fatal(err)
		}
		for i := range pods {
			if !restricted(&pods[i], "web") {
				t.Errorf("stored pod requires %+v; want its annotation", required(&pods[i]))
			}
		}
	})
	t.Run("down", func(t *testing.T) {
		for _, stop := range stops {
			stop()
		}
		p, _, err := c.tryPod(annotatedPod("down", "web"), false)
		if err != nil || required(&p) != nil {
			t.Errorf("without evictd-controller: %v, the pod requires %+v; want a pod without requirement", err, required(&p))
		}
	})
}

// webhookPods checks single pods. All but the last are dry runs.
func (c *cluster) webhookPods(t *testing.T) {
	for _, tt := range []struct {
		name       string
		change     func(*corev1.Pod)
		restricted bool
		warning    string
		err        string
	}{
		{"annotation", func(*corev1.Pod) {}, true, "", ""},
		{"no annotation", func(p *corev1.Pod) { p.Annotations = nil }, false, "", ""},
		{"another annotation", func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }, false, "", ""},
		{"invalid", func(p *corev1.Pod) { p.Annotations[affinity.Annotation] = "nodeSelectorTerms: []" }, false, "is an empty list, which matches no node", ""},
		{"of a DaemonSet", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", UID: "u", Controller: new(true)}}
		}, false, "", ""},
		{"too many terms", func(p *corev1.Pod) {
			terms := make([]corev1.NodeSelectorTerm, 257)
			for i := range terms {
				terms[i].MatchExpressions = []corev1.NodeSelectorRequirement{{Key: fmt.Sprint("k", i), Operator: corev1.NodeSelectorOpExists}}
			}
			p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: terms}
		}, false, "", `422 admission webhook "node-affinity.evictd.io" denied the request: add annotation evictd.io/required-during-execution ` +
			`to the pod's node affinity: 257 terms with 1 terms make 257, more than 256; use fewer terms`},
	} {
		p := annotatedPod("pod", "web")
		tt.change(&p)
		got, warnings, err := c.tryPod(p, true)
		if text := fmt.Sprint(err); tt.err != "" && text != tt.err || tt.err == "" && err != nil {
			t.Errorf("%s: %v; want %s", tt.name, err, tt.err)
		}
		if restricted(&got, "web") != tt.restricted || !tt.restricted && required(&got) != nil || !strings.Contains(warnings, tt.warning) {
			t.Errorf("%s: the pod requires %+v, warning %q; want its annotation: %t, warning %q", tt.name, required(&got), warnings, tt.restricted, tt.warning)
		}
	}
	if pods, err := c.pods("web"); err != nil || len(pods) > 0 {
		t.Errorf("%d pods after dry runs, %v; want none", len(pods), err)
	}
}

// webhookCalledAgain has another webhook change each pod after evictd's, which the API server then calls again.
func (c *cluster) webhookCalledAgain(t *testing.T) {
	another := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
			return
		}
		kind := admissionv1.PatchTypeJSONPatch
		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Allowed: true, PatchType: &kind,
			Patch: []byte(`[{"op":"add","path":"/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchExpressions/-",` +
				`"value":{"key":"another","operator":"Exists"}}]`),
		}
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	defer another.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: another.Certificate().Raw})
	c.create(webhookPath, fields{
		"metadata": fields{"name": "later"}, "webhooks": []fields{{
			"name": "another.example.com", "admissionReviewVersions": []string{"v1"}, "sideEffects": "None",
			"clientConfig": fields{"url": another.URL, "caBundle": base64.StdEncoding.EncodeToString(authority)},
			"rules":        []fields{{"apiGroups": []string{""}, "apiVersions": []string{"v1"}, "resources": []string{"pods"}, "operations": []string{"CREATE"}}},
		}},
	})
	c.await("both webhooks to be called", func() (bool, error) {
		p, _, err := c.tryPod(annotatedPod("pod", "web"), true)
		terms := required(&p)
		return len(terms) == 1 && len(terms[0].MatchExpressions) == 2, fmt.Errorf("the pod requires %+v: %w", terms, err)
	})
	if err := c.Admin.Delete(t.Context(), webhookPath+"/later", fields{}); err != nil {
		t.Fatal(err)
	}
	c.awaitWebhook()
}

// webhookCertificate replaces the certificate while the replicas run: a new one of the same authority without any pod
// that the webhook misses, and then one of a new authority.
func (c *cluster) webhookCertificate(t *testing.T) {
	before := c.awaitWebhook()
	patch := fields{"data": fields{"tls.crt": ""}}
	if err := c.Admin.Patch(t.Context(), secretPath, controlplane.MergePatch, patch); err != nil {
		t.Fatal(err)
	}
	var after corev1.Secret
	c.await("another certificate", func() (bool, error) {
		p, _, err := c.tryPod(annotatedPod("pod", "web"), true)
		if !restricted(&p, "web") {
			t.Errorf("a pod that was created while the certificate was renewed requires %+v: %v", required(&p), err)
		}
		err = c.Admin.Get(t.Context(), secretPath, &after)
		return len(after.Data["tls.crt"]) > 0, err
	})
	if string(after.Data["tls.crt"]) == string(before.Data["tls.crt"]) || string(after.Data["ca.crt"]) != string(before.Data["ca.crt"]) {
		t.Error("want another certificate of the same authority")
	}
	if err := c.Admin.Delete(t.Context(), secretPath, fields{}); err != nil {
		t.Fatal(err)
	}
	c.await("another authority", func() (bool, error) {
		err := c.Admin.Get(t.Context(), secretPath, &after)
		return err == nil && string(after.Data["ca.crt"]) != string(before.Data["ca.crt"]), err
	})
	c.awaitWebhook()
}
