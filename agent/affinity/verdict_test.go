package affinity

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestMatchSmoke(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{Annotation: one("key: a, operator: In, values: [b]")}}}
	pod.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	r, err := NewRequirement(pod)
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "c"}}}
	v := r.Match(node)
	for _, r := range v.Reasons {
		t.Log(r.Message)
	}
	if v.Match || len(v.Reasons) != 2 {
		t.Errorf("Match = %+v", v)
	}
	if v := r.Violates(node, true); v.Match || len(v.Reasons) != 1 || v.Reasons[0].Source != SourceAnnotation {
		t.Errorf("Violates = %+v", v)
	}
}
