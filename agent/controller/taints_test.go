package controller

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
)

func TestTaintPatch(t *testing.T) {
	foreign := corev1.Taint{Key: "node.kubernetes.io/unreachable", Effect: corev1.TaintEffectNoExecute}
	other := corev1.Taint{Key: "example.com/disk", Value: "slow", Effect: corev1.TaintEffectNoSchedule}
	ours := map[string]string{annotationFence: fenceUID, annotationOutOfService: fenceUID}
	for name, tt := range map[string]struct {
		taints      []corev1.Taint
		annotations map[string]string
		want        fence.Taints
		after       []corev1.Taint
		owned       []string
		unchanged   bool
	}{
		"none":              {unchanged: true},
		"foreign":           {taints: []corev1.Taint{foreign}, after: []corev1.Taint{foreign}, unchanged: true},
		"quarantine":        {want: fence.Taints{Quarantine: true}, after: []corev1.Taint{quarantine}, owned: []string{annotationFence}},
		"quarantine beside": {taints: []corev1.Taint{foreign}, annotations: map[string]string{"a": "b"}, want: fence.Taints{Quarantine: true}, after: []corev1.Taint{foreign, quarantine}, owned: []string{annotationFence}},
		"both":              {want: fence.Taints{Quarantine: true, OutOfService: true}, after: []corev1.Taint{quarantine, outOfService}, owned: []string{annotationFence, annotationOutOfService}},
		"release": {
			taints: []corev1.Taint{quarantine, foreign}, annotations: map[string]string{annotationFence: fenceUID},
			want:  fence.Taints{Quarantine: true, OutOfService: true},
			after: []corev1.Taint{quarantine, foreign, outOfService}, owned: []string{annotationFence, annotationOutOfService},
		},
		"set already": {
			taints: []corev1.Taint{quarantine}, annotations: map[string]string{annotationFence: fenceUID},
			want: fence.Taints{Quarantine: true}, after: []corev1.Taint{quarantine}, owned: []string{annotationFence}, unchanged: true,
		},
		"of an earlier fence": {
			taints: []corev1.Taint{quarantine}, annotations: map[string]string{annotationFence: "earlier"},
			want: fence.Taints{Quarantine: true}, after: []corev1.Taint{quarantine}, owned: []string{annotationFence},
		},
		"untaint": {
			taints: []corev1.Taint{outOfService, foreign, quarantine}, annotations: ours,
			want: fence.Taints{Quarantine: true}, after: []corev1.Taint{foreign, quarantine}, owned: []string{annotationFence},
		},
		"end": {
			taints: []corev1.Taint{outOfService, foreign, quarantine, other}, annotations: ours, after: []corev1.Taint{foreign, other},
		},
		"a person's": {
			taints: []corev1.Taint{outOfService, quarantine}, annotations: map[string]string{annotationFence: fenceUID},
			want: fence.Taints{Quarantine: true}, after: []corev1.Taint{outOfService, quarantine}, owned: []string{annotationFence}, unchanged: true,
		},
		"a person's becomes ours": {
			taints: []corev1.Taint{outOfService}, want: fence.Taints{OutOfService: true},
			after: []corev1.Taint{outOfService}, owned: []string{annotationOutOfService},
		},
	} {
		n := deadNode()
		n.Spec.Taints, n.Annotations = tt.taints, tt.annotations
		_, api := testReconciler(t, nil, interceptor.Funcs{}, n)
		key := types.NamespacedName{Name: "n1"}
		if err := api.Get(t.Context(), key, n); err != nil {
			t.Fatal(err)
		}
		patch, err := taintPatch(n, tt.want, fenceUID)
		if err != nil || (patch == nil) != tt.unchanged {
			t.Fatalf("%s: patch = %s, %v; want nil %t", name, patch, err, tt.unchanged)
		}
		if patch != nil {
			if err := api.Patch(t.Context(), n, client.RawPatch(types.JSONPatchType, patch)); err != nil {
				t.Fatalf("%s: patch %s: %v", name, patch, err)
			}
		}
		if !slices.Equal(n.Spec.Taints, tt.after) {
			t.Errorf("%s: taints = %v; want %v", name, n.Spec.Taints, tt.after)
		}
		for _, annotation := range []string{annotationFence, annotationOutOfService} {
			want := ""
			if slices.Contains(tt.owned, annotation) {
				want = fenceUID
			}
			if got := n.Annotations[annotation]; got != want {
				t.Errorf("%s: annotation %s = %q; want %q", name, annotation, got, want)
			}
		}
		if again, err := taintPatch(n, tt.want, fenceUID); again != nil || err != nil {
			t.Errorf("%s: the next patch = %s, %v; want none", name, again, err)
		}
	}
}

// A Node that has changed since it was read is not patched.
func TestTaintConflict(t *testing.T) {
	r, api := testReconciler(t, nil, interceptor.Funcs{Patch: refusePatch}, deadNode())
	p := &pass{reconciler: r, name: "n1", node: deadNode()}
	if err := p.setTaints(t.Context(), fence.Taints{Quarantine: true}, fenceUID); !apierrors.IsConflict(err) {
		t.Errorf("setTaints = %v; want a conflict", err)
	}
	n := &corev1.Node{}
	if err := api.Get(t.Context(), types.NamespacedName{Name: "n1"}, n); err != nil || len(n.Spec.Taints) > 0 {
		t.Errorf("taints = %v, %v; want none", n.Spec.Taints, err)
	}
}
