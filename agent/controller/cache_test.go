package controller

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/evictd/evictd/agent/controller/affinity"
)

func TestStrippedNode(t *testing.T) {
	n := deadNode()
	n.Labels = map[string]string{corev1.LabelTopologyZone: "z1", labelControlPlane: "", "app": "x"}
	n.Annotations = map[string]string{annotationFence: fenceUID, "csi.volume.kubernetes.io/nodeid": "{}"}
	n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeDiskPressure})
	internal := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n1"}, internal, {Type: corev1.NodeExternalIP, Address: "198.51.100.1"}}
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"a"}}}
	want := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n1", UID: nodeUID,
			Labels:      map[string]string{corev1.LabelTopologyZone: "z1", labelControlPlane: ""},
			Annotations: map[string]string{annotationFence: fenceUID},
		},
		Status: corev1.NodeStatus{
			NodeInfo:   corev1.NodeSystemInfo{SystemUUID: machine},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}},
			Addresses:  []corev1.NodeAddress{internal},
		},
	}
	got, err := strip(stripNode)(n)
	if diff := cmp.Diff(any(want), got); diff != "" || err != nil {
		t.Errorf("strip: %v, difference (-want +got):\n%s", err, diff)
	}
	if _, err := strip(stripNode)(&corev1.Pod{}); err == nil {
		t.Error("strip of a pod as a Node = nil; want an error")
	}
	if got, err := strip(stripNode)(cache.DeletedFinalStateUnknown{Obj: n}); err != nil || got.(*corev1.Node).Name != "n1" {
		t.Errorf("strip of a deleted Node = %v, %v", got, err)
	}
}

// The cache has no value of a Secret, and the configuration is parsed with the keys.
func TestStrippedSecret(t *testing.T) {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "evictd", Name: "fence-method-template-bmc", UID: "1",
			Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: "hunter2"},
		},
		Data: map[string][]byte{"password": []byte("hunter2")},
	}
	got, err := strip(stripSecret)(s)
	if err != nil {
		t.Fatal(err)
	}
	text, err := got.(*corev1.Secret).Marshal()
	if err != nil || strings.Contains(string(text), "hunter2") {
		t.Errorf("strip left the value: %q, %v", text, err)
	}
	// The cache may call it again with its result.
	digests := maps.Clone(s.StringData)
	if _, err := strip(stripSecret)(s); err != nil || len(digests) != 1 || !maps.Equal(s.StringData, digests) {
		t.Errorf("digests %v, and %v after a second call (%v); want the same", digests, s.StringData, err)
	}
	o := objects(nil, []corev1.Secret{*s, {ObjectMeta: metav1.ObjectMeta{Name: "tls"}}})
	if len(o.Secrets) != 1 || o.Secrets[0].Name != s.Name {
		t.Fatalf("Secrets = %v; want %s", o.Secrets, s.Name)
	}
	if value, ok := o.Secrets[0].Data["password"]; !ok || value != "" {
		t.Errorf("password = %q, %t; want the key alone", value, ok)
	}
	if !maps.Equal(o.Secrets[0].Digests, digests) {
		t.Errorf("digests = %v; want %v", o.Secrets[0].Digests, digests)
	}
}

// Only ConfigMaps and Secrets of the controller's namespace are watched.
func TestWatchedNamespaces(t *testing.T) {
	for object, o := range cacheOptions(&Options{Namespace: "evictd", Affinity: affinity.Observe}).ByObject {
		_, own := o.Namespaces["evictd"]
		switch object.(type) {
		case *corev1.ConfigMap, *corev1.Secret:
			if len(o.Namespaces) != 1 || !own {
				t.Errorf("%T: namespaces %v; want evictd", object, o.Namespaces)
			}
		}
		if o.Transform == nil {
			t.Errorf("%T: objects are not stripped", object)
		}
	}
}

// With affinity, a Node keeps its labels and taints, and no more.
func TestStrippedNodeForAffinity(t *testing.T) {
	n := deadNode()
	n.Labels = map[string]string{"app": "x"}
	n.Spec.Taints, n.Spec.Unschedulable = []corev1.Taint{quarantine}, true
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"a"}}}
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "EvictdNodeShutdown", Status: corev1.ConditionTrue})
	want := n.DeepCopy()
	stripNode(want)
	want.Labels = map[string]string{"app": "x"}
	want.Spec = corev1.NodeSpec{Taints: []corev1.Taint{quarantine}, Unschedulable: true}
	want.Status.Conditions = append(want.Status.Conditions, corev1.NodeCondition{Type: "EvictdNodeShutdown", Status: corev1.ConditionTrue})
	stripNodeForAffinity(n)
	if diff := cmp.Diff(want, n); diff != "" {
		t.Errorf("stripNodeForAffinity: (-want +got):\n%s", diff)
	}
}

// The labels of Nodes are kept for pods that are watched, and for the extender.
func TestKeptLabels(t *testing.T) {
	for _, tt := range []struct {
		mode    affinity.Mode
		address string
		want    string
	}{
		{affinity.Off, "", ""}, {affinity.Off, "0", ""}, {affinity.Off, ":9443", "x"}, {affinity.Observe, "", "x"},
	} {
		for object, o := range cacheOptions(&Options{Affinity: tt.mode, WebhookAddress: tt.address}).ByObject {
			if _, node := object.(*corev1.Node); !node {
				continue
			}
			got, err := o.Transform(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "x"}}})
			if err != nil || got.(*corev1.Node).Labels["app"] != tt.want {
				t.Errorf("affinity %s, address %q: Node = %v, %v; want the label %q", tt.mode, tt.address, got, err, tt.want)
			}
		}
	}
}
