package cluster

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/evictd/evictd/agent/affinity"
	"github.com/evictd/evictd/agent/controller/serving"
)

// webhookRights are the further rights of the account with the webhook: everywhere, and in the namespace evictd.
var (
	webhookRights = []string{
		"admissionregistration.k8s.io/mutatingwebhookconfigurations/evictd-controller get",
		"admissionregistration.k8s.io/mutatingwebhookconfigurations/evictd-controller list",
		"admissionregistration.k8s.io/mutatingwebhookconfigurations/evictd-controller patch",
		"admissionregistration.k8s.io/mutatingwebhookconfigurations/evictd-controller watch",
	}
	webhookSecretRights = []string{"secrets create", "secrets/evictd-controller-webhook update"}
)

// TestControllerWebhook: the API server accepts the manifests of the webhook without a warning about a field. They add
// the rights above to those of evictd-controller, and the names in them are those that the program uses.
func TestControllerWebhook(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.must("POST", "/api/v1/namespaces", `{"metadata":{"name":"evictd","labels":{"pod-security.kubernetes.io/warn":"restricted"}}}`)
	plain, with := render(t, "controller"), render(t, "controller-webhook")
	if serving := render(t, "controller-serving"); len(serving) != len(with)-1 || len(with) <= len(plain) {
		t.Errorf("%d objects of controller, %d of controller-serving, %d of controller-webhook; want one more in the last",
			len(plain), len(serving), len(with))
	}
	optional := slices.Concat(render(t, "controller/jobs"), render(t, "controller/medik8s/objects"), render(t, "controller/cluster-api"))
	for _, doc := range append(with, optional...) {
		r.applyObject(doc)
	}

	d := decode[appsv1.Deployment](t, r.must("GET", "/apis/apps/v1/namespaces/evictd/deployments/evictd-controller", ""))
	container := &d.Spec.Template.Spec.Containers[0]
	port := slices.IndexFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.Name == "webhook" && p.ContainerPort == 9443 })
	if !slices.Equal(container.Args, []string{"--probe-address=:9190", "--webhook-address=:9443"}) || port < 0 ||
		container.Lifecycle == nil || container.Lifecycle.PreStop == nil {
		t.Errorf("container has %v, %+v, %+v; want the flag, the port and a preStop hook", container.Args, container.Ports, container.Lifecycle)
	}
	service := decode[corev1.Service](t, r.must("GET", "/api/v1/namespaces/evictd/services/"+serving.SecretName, ""))
	for key, value := range service.Spec.Selector {
		if d.Spec.Template.Labels[key] != value {
			t.Errorf("the Service selects %v; want labels of the pods", service.Spec.Selector)
		}
	}
	o := decode[admissionregistrationv1.MutatingWebhookConfiguration](t,
		r.must("GET", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/"+serving.ConfigurationName, ""))
	if len(o.Webhooks) != 1 || o.Webhooks[0].Name != serving.WebhookName || o.Webhooks[0].ClientConfig.Service.Name != service.Name ||
		!strings.Contains(o.Webhooks[0].MatchConditions[0].Expression, "'"+affinity.Annotation+"'") {
		t.Errorf("webhooks %+v; want %s at the Service, for the annotation", o.Webhooks, serving.WebhookName)
	}

	token := r.accountToken("evictd-controller", "")
	for namespace, own := range map[string][]string{"evictd": slices.Concat(controllerRights["evictd"], webhookSecretRights), "default": nil} {
		want := slices.Concat(own, clusterRights, webhookRights)
		slices.Sort(want)
		var got []string
		r.until("the rights in "+namespace, func() bool {
			got = r.rightsIn(namespace, token)
			return len(got) >= len(want)
		})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("rights in the namespace %s (-want +got):\n%s", namespace, diff)
		}
	}
	const path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
	for _, q := range []accountRequest{
		{"", "GET", path + "?fieldSelector=metadata.name%3Devictd-controller", "", http.StatusOK},
		{"", "GET", path, "", http.StatusForbidden},
		{"", "PATCH", path + "/another", "[]", http.StatusForbidden},
		{"", "DELETE", path + "/evictd-controller", "", http.StatusForbidden},
		{"", "PUT", "/api/v1/namespaces/evictd/secrets/another", "{}", http.StatusForbidden},
		{"", "POST", "/api/v1/namespaces/default/secrets", "{}", http.StatusForbidden},
	} {
		if got, answer := r.as(token, q.method, q.path, q.body); got != q.want {
			t.Errorf("%s %s = %d %.300s; want %d", q.method, q.path, got, answer, q.want)
		}
	}
}
