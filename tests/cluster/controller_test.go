package cluster

import (
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// clusterRights are the rights of the account evictd-controller in all namespaces.
var clusterRights = []string{
	"apps/deployments/scale,replicasets/scale,statefulsets/scale get",
	"apps/replicasets get", "apps/replicasets list",
	"batch/jobs get",
	"cluster.x-k8s.io/machines list",
	"customized-user-remediation.medik8s.io/customizeduserremediations list",
	"events.k8s.io/events create", "events.k8s.io/events patch",
	"fence-agents-remediation.medik8s.io/fenceagentsremediations list",
	"ha.k8s.io/nodefences create", "ha.k8s.io/nodefences delete", "ha.k8s.io/nodefences get", "ha.k8s.io/nodefences list",
	"ha.k8s.io/nodefences update", "ha.k8s.io/nodefences watch",
	"infrastructure.cluster.x-k8s.io/metal3remediations list",
	"machine-deletion-remediation.medik8s.io/machinedeletionremediations list",
	"machine.openshift.io/machines list",
	"namespaces/medik8s-leases get",
	"nodemaintenance.medik8s.io/nodemaintenances list",
	"nodes get", "nodes list", "nodes patch", "nodes watch", "nodes/status patch",
	"persistentvolumeclaims get",
	"persistentvolumes get",
	"pods delete", "pods get", "pods list", "pods watch",
	"pods/eviction create",
	"policy/poddisruptionbudgets list",
	"replicationcontrollers/scale get",
	"self-node-remediation.medik8s.io/selfnoderemediations list",
	"storage-based-remediation.medik8s.io/storagebasedremediations list",
	"storage.k8s.io/volumeattachments delete", "storage.k8s.io/volumeattachments list",
}

// controllerRights are the other rights of the account, by namespace.
var controllerRights = map[string][]string{
	"evictd": {
		"batch/jobs create", "batch/jobs delete", "batch/jobs get",
		"configmaps get", "configmaps list", "configmaps watch", "configmaps/evictd-fence-drills patch",
		"coordination.k8s.io/leases create",
		"coordination.k8s.io/leases/evictd-controller get", "coordination.k8s.io/leases/evictd-controller update",
		"pods list",
		"secrets create", "secrets delete", "secrets get", "secrets list", "secrets watch",
	},
	"kube-node-lease": {"coordination.k8s.io/leases get", "coordination.k8s.io/leases list"},
	"medik8s-leases": {
		"coordination.k8s.io/leases create", "coordination.k8s.io/leases delete",
		"coordination.k8s.io/leases get", "coordination.k8s.io/leases update",
	},
	"kube-system": nil,
}

// TestController: the commands of the README install evictd-controller. The API server accepts its objects and those of
// the example, without a warning about a field. The account has the rights above and no others.
func TestController(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	docs := render(t, "controller")
	if slices.ContainsFunc(docs, func(doc string) bool {
		return strings.Contains(doc, "\nkind: ConfigMap\n") && strings.Contains(doc, "\ndata:")
	}) {
		t.Error("the manifests have a ConfigMap with data: to apply them again would overwrite what is there")
	}
	docs = append(docs, render(t, "controller/example")...)
	namespace, err := os.ReadFile("../../deploy/kubernetes/base/namespace.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// The API server warns about a pod that has more than the Pod Security Standard restricted allows.
	r.must("POST", "/api/v1/namespaces", `{"metadata":{"name":"evictd","labels":{"pod-security.kubernetes.io/warn":"restricted"}}}`)
	r.must("POST", "/api/v1/namespaces", `{"metadata":{"name":"medik8s-leases"}}`)
	for _, doc := range append(documents(namespace), docs...) {
		r.applyObject(doc)
	}
	t.Run("deployment", r.controllerDeployment)
	const readme, apply = "../../deploy/kubernetes/controller/README.md", "kubectl apply -k deploy/kubernetes/controller/"
	commands := slices.Concat(readmeCommands(t, readme, "kubectl apply -f", "kubectl apply -k"), readmeCommands(t, readme, apply+"medik8s", apply+"cluster-api"),
		readmeCommands(t, readme, "kubectl apply -k deploy/kubernetes/controller/jobs", "kubectl -n evictd patch deployment"))
	// Nothing pulls the image.
	r.shell("../..", slices.DeleteFunc(commands, func(c string) bool { return strings.Contains(c, "kustomize edit") }))

	d := decode[appsv1.Deployment](t, r.must("GET", "/apis/apps/v1/namespaces/evictd/deployments/evictd-controller", ""))
	if args := d.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--executor-image=REGISTRY/evictd-agents:TAG") {
		t.Errorf("arguments %q; want that of the image for Jobs", args)
	}
	token := r.accountToken("evictd-controller", "")
	for namespace, own := range controllerRights {
		want := slices.Concat(own, clusterRights)
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
	for _, q := range []accountRequest{
		{"", "GET", "/api/v1/namespaces/evictd/secrets", "", http.StatusOK},
		{"", "GET", "/api/v1/secrets", "", http.StatusForbidden},
		{"", "GET", "/api/v1/namespaces/default/configmaps", "", http.StatusForbidden},
		{"", "PATCH", "/api/v1/namespaces/evictd/configmaps/cluster-fence-config", "{}", http.StatusForbidden},
		{"", "DELETE", "/api/v1/nodes/n1", "", http.StatusForbidden},
		{"", "PUT", "/api/v1/nodes/n1/status", "{}", http.StatusForbidden},
		{"", "DELETE", "/apis/storage.k8s.io/v1/volumeattachments/a", "", http.StatusNotFound},
		{"", "DELETE", "/api/v1/namespaces/default/persistentvolumeclaims/a", "", http.StatusForbidden},
		{"", "PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1", "{}", http.StatusForbidden},
	} {
		if got, answer := r.as(token, q.method, q.path, q.body); got != q.want {
			t.Errorf("%s %s = %d %.300s; want %d", q.method, q.path, got, answer, q.want)
		}
	}
}

// controllerDeployment: two replicas on different nodes, which nothing of a node is mounted into.
func (r *rig) controllerDeployment(t *testing.T) {
	d := decode[appsv1.Deployment](t, r.must("GET", "/apis/apps/v1/namespaces/evictd/deployments/evictd-controller", ""))
	pod := &d.Spec.Template.Spec
	if *d.Spec.Replicas != 2 || len(pod.Tolerations) != 0 || len(pod.Volumes) != 0 ||
		pod.HostNetwork || pod.HostPID || pod.PriorityClassName != "system-cluster-critical" {
		t.Errorf("replicas %d, pod %+v; want 2, critical ones without tolerations and volumes", *d.Spec.Replicas, pod)
	}
	apart := pod.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	labels := d.Spec.Template.Labels
	if len(apart) != 1 || apart[0].TopologyKey != corev1.LabelHostname || !maps.Equal(apart[0].LabelSelector.MatchLabels, labels) {
		t.Errorf("anti-affinity %+v; want to other pods with the labels %v by the host name", apart, labels)
	}
}
