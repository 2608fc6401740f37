package controller

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
)

const san = "san.example.com"

// claimed returns a claim and its volume of the SAN, of which a case changes something.
func claimed(name string, change func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume)) []client.Object {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-of-" + name)},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name},
	}
	v := volume("pv-"+name, name)
	v.Spec.ClaimRef.UID, v.Spec.StorageClassName = c.UID, "fast"
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: san}
	if change != nil {
		change(c, v)
	}
	return []client.Object{c, v}
}

// using returns a pod with volumes.
func using(name string, sources ...corev1.VolumeSource) *corev1.Pod {
	return pod(name, "StatefulSet", func(p *corev1.Pod) {
		for i, s := range sources {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: string(rune('a' + i)), VolumeSource: s})
		}
	})
}

func ofClaim(name string) corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
}

func attached(name, volume, attacher string) *storagev1.VolumeAttachment {
	a := attachment(name, "n1", volume)
	a.UID, a.Spec.Attacher = types.UID("uid-of-"+name), attacher
	return a
}

func TestPodVolumes(t *testing.T) {
	shared, unknown := fence.Volume{Driver: san, Class: "fast"}, fence.Volume{}
	var none []fence.Volume
	ephemeral := corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
	for _, tt := range []struct {
		name    string
		sources []corev1.VolumeSource
		objects []client.Object
		want    []fence.Volume
	}{
		{"node-local", []corev1.VolumeSource{
			{EmptyDir: &corev1.EmptyDirVolumeSource{}}, {ConfigMap: &corev1.ConfigMapVolumeSource{}}, {Secret: &corev1.SecretVolumeSource{}},
			{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}, {Projected: &corev1.ProjectedVolumeSource{}}, {Image: &corev1.ImageVolumeSource{}},
		}, nil, none},
		{"claim", []corev1.VolumeSource{ofClaim("data")}, claimed("data", nil), []fence.Volume{shared}},
		{"two", []corev1.VolumeSource{ofClaim("data"), {NFS: &corev1.NFSVolumeSource{}}}, claimed("data", nil), []fence.Volume{shared, unknown}},
		{"inline CSI", []corev1.VolumeSource{{CSI: &corev1.CSIVolumeSource{Driver: san}}}, nil, []fence.Volume{{Driver: san}}},
		{"host path", []corev1.VolumeSource{{HostPath: &corev1.HostPathVolumeSource{Path: "/mnt"}}}, nil, []fence.Volume{unknown}},
		{"in-tree, inline", []corev1.VolumeSource{{RBD: &corev1.RBDVolumeSource{}}}, nil, []fence.Volume{unknown}},
		{"no claim", []corev1.VolumeSource{ofClaim("data")}, nil, []fence.Volume{unknown}},
		{"unbound", []corev1.VolumeSource{ofClaim("data")}, claimed("data", func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.Spec.VolumeName = ""
		}), []fence.Volume{unknown}},
		{"no volume", []corev1.VolumeSource{ofClaim("data")}, claimed("data", nil)[:1], []fence.Volume{unknown}},
		{"volume of an earlier claim", []corev1.VolumeSource{ofClaim("data")}, claimed("data", func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.UID = "newer"
		}), []fence.Volume{unknown}},
		{"volume without a claim", []corev1.VolumeSource{ofClaim("data")}, claimed("data", func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) {
			v.Spec.ClaimRef = nil
		}), []fence.Volume{unknown}},
		{"migrated", []corev1.VolumeSource{ofClaim("data")}, claimed("data", func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) {
			v.Annotations = map[string]string{"pv.kubernetes.io/migrated-to": san}
			v.Spec.CSI, v.Spec.GCEPersistentDisk = nil, &corev1.GCEPersistentDiskVolumeSource{}
		}), []fence.Volume{unknown}},
		{"ephemeral", []corev1.VolumeSource{ephemeral}, claimed("db-0-a", func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "db-0", UID: "uid-of-db-0", Controller: new(true)}}
		}), []fence.Volume{shared}},
		{"claim of another, named like an ephemeral one", []corev1.VolumeSource{ephemeral}, claimed("db-0-a", nil), []fence.Volume{unknown}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, _ := testReconciler(t, nil, interceptor.Funcs{}, append(tt.objects, using("db-0", tt.sources...))...)
			l := r.observer.loadAs(t.Context(), "n1", true)
			if len(l.Pods) != 1 {
				t.Fatalf("load = %+v; want one pod", l)
			}
			if diff := cmp.Diff(tt.want, l.Pods[0].Volumes); diff != "" {
				t.Errorf("volumes (-want +got):\n%s", diff)
			}
			if l := r.observer.load(t.Context(), "n1"); len(l.Pods[0].Volumes) > 0 {
				t.Errorf("volumes of a load without them = %+v", l.Pods[0].Volumes)
			}
		})
	}
}

func TestAttachmentVolumes(t *testing.T) {
	objects := append(claimed("data", nil), claimed("other", nil)...)
	objects = append(objects, claimed("intree", func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) { v.Spec.CSI = nil })...)
	inline := attached("a6", "", san)
	inline.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: san}},
	}}
	objects = append(objects, using("db-0", ofClaim("data")), using("db-1", ofClaim("data")),
		attached("a1", "pv-data", san), attached("a2", "pv-other", san), attached("a3", "pv-intree", san),
		attached("a4", "pv-data", "other.example.com"), attached("a5", "gone", san), inline)
	r, _ := testReconciler(t, nil, interceptor.Funcs{}, objects...)
	shared := fence.Volume{Driver: san, Class: "fast"}
	users := []string{"uid-of-db-0", "uid-of-db-1"}
	want := []fence.Attachment{
		{UID: "uid-of-a1", Name: "a1", Volume: shared, Pods: users},
		{UID: "uid-of-a2", Name: "a2", Volume: shared},
		{UID: "uid-of-a3", Name: "a3"},
		{UID: "uid-of-a4", Name: "a4", Pods: users},
		{UID: "uid-of-a5", Name: "a5"},
		{UID: "uid-of-a6", Name: "a6"},
	}
	if diff := cmp.Diff(want, r.observer.loadAs(t.Context(), "n1", true).Attachments); diff != "" {
		t.Errorf("attachments (-want +got):\n%s", diff)
	}
}

// A claim that can't be read leaves all volumes unknown, and the rest of the load known.
func TestVolumesUnreadable(t *testing.T) {
	objects := append(claimed("data", nil), using("db-0", ofClaim("data")), attached("a1", "pv-data", san))
	r, _ := testReconciler(t, nil, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if _, ok := o.(*corev1.PersistentVolume); ok {
				return apierrors.NewForbidden(corev1.Resource("persistentvolumes"), key.Name, errors.New("no right"))
			}
			return c.Get(ctx, key, o, options...)
		},
	}, objects...)
	want := fence.Load{
		PodsKnown: true, AttachmentsKnown: true, Pods: []fence.Pod{{UID: "uid-of-db-0", Namespace: "default", Name: "db-0", StatefulSet: true}},
		Attachments: []fence.Attachment{{UID: "uid-of-a1", Name: "a1"}},
	}
	if diff := cmp.Diff(want, r.observer.loadAs(t.Context(), "n1", true)); diff != "" {
		t.Errorf("load (-want +got):\n%s", diff)
	}
}

// The controller checks again that the node is cut off, whatever was ordered.
func TestStorageOrders(t *testing.T) {
	now := metav1.NowMicro()
	proven := &fence.StorageFence{Proven: now, Released: now}
	isolated := func(change func(*fence.State)) func(*fence.State) {
		return func(s *fence.State) {
			s.Step, s.Status, s.Storage = fence.Isolation, fence.Done, proven
			change(s)
		}
	}
	for name, tt := range map[string]struct {
		change  func(*fence.State)
		node    string
		release bool
	}{
		"proven":       {isolated(func(*fence.State) {}), nodeUID, true},
		"not proven":   {isolated(func(s *fence.State) { s.Storage = &fence.StorageFence{Released: now} }), nodeUID, false},
		"not saved":    {isolated(func(s *fence.State) { s.Storage = &fence.StorageFence{Proven: now} }), nodeUID, false},
		"no storage":   {isolated(func(s *fence.State) { s.Storage = nil }), nodeUID, false},
		"running":      {isolated(func(s *fence.State) { s.Status = fence.Running }), nodeUID, false},
		"other step":   {isolated(func(s *fence.State) { s.Step = fence.PowerManagement }), nodeUID, false},
		"dry run":      {isolated(func(s *fence.State) { s.DryRun = true }), nodeUID, false},
		"another Node": {isolated(func(*fence.State) {}), "other", false},
	} {
		n := deadNode()
		n.UID = types.UID(tt.node)
		r, api := testReconciler(t, nil, interceptor.Funcs{}, n, pod("db-0", "StatefulSet", nil), attached("a1", "pv", san))
		nf := runningFence(tt.change)
		state := stateOf(nf)
		p := &pass{reconciler: r, name: "n1", node: getNode(t, api)}
		orders := fence.Orders{
			Taints: fence.Taints{Quarantine: true}, Delete: []fence.Pod{{UID: "uid-of-db-0", Namespace: "default", Name: "db-0"}},
			Detach: []fence.Attachment{{UID: "uid-of-a1", Name: "a1"}},
		}
		if err := p.carryOut(t.Context(), nf, &state, &orders, time.Time{}); err != nil {
			t.Errorf("%s: carryOut = %v", name, err)
		}
		podErr := api.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "db-0"}, &corev1.Pod{})
		attachmentErr := api.Get(t.Context(), types.NamespacedName{Name: "a1"}, &storagev1.VolumeAttachment{})
		if apierrors.IsNotFound(podErr) != tt.release || apierrors.IsNotFound(attachmentErr) != tt.release {
			t.Errorf("%s: pod %v, attachment %v; want released: %t", name, podErr, attachmentErr, tt.release)
		}
		if taintIndex(getNode(t, api), &outOfService) >= 0 {
			t.Errorf("%s: the out-of-service taint was set", name)
		}
	}
}

// A VolumeAttachment is deleted by its UID.
func TestDeleteAttachments(t *testing.T) {
	for code, want := range map[int]string{http.StatusConflict: "", http.StatusNotFound: "", http.StatusForbidden: "delete VolumeAttachment a1 of Node n1"} {
		var options client.DeleteOptions
		r, _ := testReconciler(t, nil, interceptor.Funcs{
			Delete: func(_ context.Context, _ client.WithWatch, _ client.Object, o ...client.DeleteOption) error {
				options.ApplyOptions(o)
				return apierrors.NewGenericServerResponse(code, "delete", storagev1.Resource("volumeattachments"), "a1", "", 0, false)
			},
		})
		p := &pass{reconciler: r, name: "n1"}
		err := p.deleteAttachments(t.Context(), []fence.Attachment{{UID: "u", Name: "a1"}})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("code %d: deleteAttachments = %v; want %q", code, err, want)
		}
		if options.Preconditions == nil || *options.Preconditions.UID != "u" {
			t.Errorf("options = %+v; want the UID", options)
		}
	}
}
