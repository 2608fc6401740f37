package affinity

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/affinity"
)

// TestNodeFacts: what a decision depends on is found in a Node as it is stored in the cache.
func TestNodeFacts(t *testing.T) {
	taint := func(key string) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}}
		}
	}
	for name, tt := range map[string]struct {
		change func(*corev1.Node)
		fenced bool
		// want is a part of what unfit returns.
		want string
	}{
		"ready":       {func(*corev1.Node) {}, false, ""},
		"fence":       {func(*corev1.Node) {}, true, "being fenced"},
		"quarantine":  {taint("evictd.io/fencing"), false, "being fenced"},
		"not Ready":   {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }, false, "not Ready"},
		"unknown":     {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, false, "not Ready"},
		"no status":   {func(n *corev1.Node) { n.Status.Conditions = nil }, false, "not Ready"},
		"cordoned":    {func(n *corev1.Node) { n.Spec.Unschedulable = true }, false, "cordoned"},
		"karpenter":   {taint("karpenter.sh/disrupted"), false, "emptied"},
		"out of use":  {taint(corev1.TaintNodeOutOfService), false, "emptied"},
		"other taint": {taint("example.com/gpu"), false, ""},
		"deleted":     {func(n *corev1.Node) { n.DeletionTimestamp = new(metav1.Now()) }, false, "shuts down"},
		"shutdown": {func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: affinity.ShutdownCondition, Status: corev1.ConditionTrue})
		}, false, "shuts down"},
		"no shutdown": {func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: affinity.ShutdownCondition, Status: corev1.ConditionFalse})
		}, false, ""},
	} {
		n := testNode("a", "valid")
		tt.change(n)
		// As the cache of the controller, which keeps Ready by itself.
		kept := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, DeletionTimestamp: n.DeletionTimestamp}}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				kept.Status.Conditions = append(kept.Status.Conditions, c)
			}
		}
		KeepOfNode(kept, n)
		for source, object := range map[string]*corev1.Node{"whole": n, "kept": kept} {
			if got := unfit(affinity.NodeOf(object, tt.fenced)); !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
				t.Errorf("%s, %s: unfit() = %q; want %q", name, source, got, tt.want)
			}
			if object.Labels["licence"] != "valid" {
				t.Errorf("%s, %s: the labels are not kept", name, source)
			}
		}
	}
}
