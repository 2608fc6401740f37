package controller

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/plan"
)

func TestNodeFacts(t *testing.T) {
	since := metav1.NewTime(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC))
	n := deadNode()
	n.Labels = map[string]string{corev1.LabelTopologyRegion: "r", corev1.LabelTopologyZone: "z", labelMaster: ""}
	n.Annotations = map[string]string{annotationConfirmOff: fenceUID, annotationFence: fenceUID}
	n.Spec.Taints = []corev1.Taint{quarantine, outOfService} // the second is not the controller's
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, LastTransitionTime: since}}
	want := fence.Node{
		Found: true, Name: "n1", UID: nodeUID, Ready: fence.ReadyFalse, ReadySince: since.Time, BootID: "boot1", SystemUUID: machine,
		Zone: "r/z", ControlPlane: true, ConfirmOff: fenceUID, Quarantined: true,
	}
	if diff := cmp.Diff(want, nodeFacts(n)); diff != "" {
		t.Errorf("nodeFacts (-want +got):\n%s", diff)
	}
	if got := nodeFacts(nil); got.Found {
		t.Errorf("nodeFacts(nil) = %+v; want not found", got)
	}
	n.Status.Conditions = nil
	if got := nodeFacts(n).Ready; got != fence.ReadyUnknown {
		t.Errorf("without a condition Ready = %s; want Unknown", got)
	}
}

func TestTolerates(t *testing.T) {
	seconds := new(int64(300))
	for _, tt := range []struct {
		toleration corev1.Toleration
		want       bool
	}{
		{corev1.Toleration{Operator: corev1.TolerationOpExists}, true},
		{corev1.Toleration{Key: outOfService.Key, Operator: corev1.TolerationOpExists}, true},
		{corev1.Toleration{Key: outOfService.Key, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}, true},
		{corev1.Toleration{Key: outOfService.Key, Value: "other"}, false},
		{corev1.Toleration{Key: outOfService.Key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}, false},
		{corev1.Toleration{Key: "node.kubernetes.io/unreachable", Operator: corev1.TolerationOpExists}, false},
		{corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds}, false},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Tolerations: []corev1.Toleration{tt.toleration}}}
		if got := tolerates(p); got != tt.want {
			t.Errorf("tolerates(%+v) = %t; want %t", tt.toleration, got, tt.want)
		}
	}
}

func pod(name, owner string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-of-" + name)},
		Spec:       corev1.PodSpec{NodeName: "n1"},
	}
	if owner != "" {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: owner, Name: "o", Controller: new(true)}}
	}
	if change != nil {
		change(p)
	}
	return p
}

func volume(name, claim string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: claim}},
	}
}

func attachment(name, node, volume string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{
			NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
		},
	}
}

func TestLoad(t *testing.T) {
	tolerating := pod("agent", "DaemonSet", func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		p.Spec.Volumes = []corev1.Volume{
			{Name: "cache", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		}
	})
	mirror := pod("static", "Node", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "1"} })
	elsewhere := pod("elsewhere", "", func(p *corev1.Pod) { p.Spec.NodeName = "n2" })
	r, _ := testReconciler(t, nil, interceptor.Funcs{}, tolerating, mirror, elsewhere, pod("db-0", "StatefulSet", nil),
		volume("pv1", "data-db-0"), volume("pv2", "agent-cache"),
		attachment("a1", "n1", "pv1"), attachment("a2", "n1", "pv2"), attachment("a3", "n2", "pv1"), attachment("a4", "n1", "gone"))
	want := fence.Load{
		PodsKnown: true, AttachmentsKnown: true,
		Pods: []fence.Pod{
			{UID: "uid-of-agent", Namespace: "default", Name: "agent", Tolerates: true, DaemonSet: true},
			{UID: "uid-of-db-0", Namespace: "default", Name: "db-0", StatefulSet: true},
			{UID: "uid-of-static", Namespace: "default", Name: "static", Mirror: true},
		},
		Attachments: []fence.Attachment{{Name: "a1"}, {Name: "a2", KeptByPod: true}, {Name: "a4"}},
	}
	if diff := cmp.Diff(want, r.observer.load(t.Context(), "n1")); diff != "" {
		t.Errorf("load (-want +got):\n%s", diff)
	}
}

// The Secrets of a method are read when its device is opened; the later ones override the former.
func TestSecrets(t *testing.T) {
	secret := func(name string, data map[string][]byte) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "evictd", Name: name}, Data: data}
	}
	r, api := testReconciler(t, nil, interceptor.Funcs{},
		secret("fence-method-template-bmc", map[string][]byte{"username": []byte("admin"), "password": []byte("first")}),
		secret("fence-method-bmc-off-n1", map[string][]byte{"password": []byte("second\n")}))
	m := offMethod()
	m.Parameters = map[string]string{"ip": "192.0.2.1"}
	m.Secrets = []string{"fence-method-template-bmc", "fence-method-bmc-off-n1"}
	read := func(s plan.Source) (plan.Data, error) { return r.observer.live.source(t.Context(), s) }
	want := map[string]string{"ip": "192.0.2.1", "username": "admin", "password": "second"}
	got, err := plan.Resolve(m, read)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("parameters: %v, difference (-want +got):\n%s", err, diff)
	}
	if _, err := r.observer.live.open(context.Background(), &m); err != nil {
		t.Errorf("open = %v; want a device", err)
	}
	if err := api.Delete(t.Context(), secret("fence-method-bmc-off-n1", nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.observer.live.open(context.Background(), &m); err == nil {
		t.Error("open without one of the Secrets = nil; want an error")
	}
}
