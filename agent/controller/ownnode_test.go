package controller

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// replica returns a ready pod of the controller.
func replica(node string) *corev1.Pod {
	p := pod("evictd-controller-2", "ReplicaSet", nil)
	p.Namespace, p.Spec.NodeName = "evictd", node
	p.Labels = map[string]string{labelName: programName}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return p
}

// The leader gives the leadership up if its node is not Ready for a while, and another replica is there.
func TestOwnNode(t *testing.T) {
	notReady := replica("n2")
	notReady.Status.Conditions[0].Status = corev1.ConditionFalse
	ending := replica("n2")
	ending.DeletionTimestamp, ending.Finalizers = new(metav1.Now()), []string{"a/b"}
	other := replica("n2")
	other.Labels = nil
	for name, tt := range map[string]struct {
		node    *corev1.Node
		replica *corev1.Pod
		name    string // of the controller's node
		down    bool   // the API server
		stepped bool
		warned  int
	}{
		"Ready":                {node: healthyNode("n1"), replica: replica("n2"), name: "n1"},
		"not Ready":            {node: deadNode(), replica: replica("n2"), name: "n1", stepped: true},
		"no replica":           {node: deadNode(), replica: pod("other", "", nil), name: "n1", warned: 1},
		"replica on the node":  {node: deadNode(), replica: replica("n1"), name: "n1", warned: 1},
		"replica not ready":    {node: deadNode(), replica: notReady, name: "n1", warned: 1},
		"replica ends":         {node: deadNode(), replica: ending, name: "n1", warned: 1},
		"pod of another":       {node: deadNode(), replica: other, name: "n1", warned: 1},
		"no node, no election": {node: deadNode(), replica: replica("n2")},
		"node gone":            {node: deadNode(), replica: replica("n2"), name: "gone"},
		"API server away":      {node: deadNode(), replica: replica("n2"), name: "n1", down: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, api := testReconciler(t, nil, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
					if tt.down {
						return unavailable()
					}
					return c.Get(ctx, key, o, options...)
				},
			}, tt.node, tt.replica)
			warned := 0
			own := &ownNode{name: tt.name, live: r.observer.live, warn: func() { warned++ }}
			look := func(what string, want bool) {
				t.Helper()
				if err := own.check(t.Context()); (err != nil) != want {
					t.Errorf("%s, %s: check() = %v; want an error: %t", name, what, err, want)
				}
			}
			look("first", false)
			time.Sleep(ownNodeGrace - time.Nanosecond)
			look("early", false)
			time.Sleep(time.Nanosecond)
			look("late", tt.stepped)
			look("again", tt.stepped)
			if warned != tt.warned {
				t.Errorf("%s: %d warnings; want %d", name, warned, tt.warned)
			}
			if tt.down || tt.name != "n1" {
				return
			}
			setReady(t, api, corev1.ConditionTrue)
			look("Ready again", false)
			setReady(t, api, corev1.ConditionFalse)
			look("not Ready again", false)
		})
	}
}

// Without leader election no other replica can take over.
func TestOwnNodeElection(t *testing.T) {
	for elect, want := range map[bool]string{true: "n1", false: ""} {
		if got := newOwnNode(&Options{LeaderElect: elect, NodeName: "n1"}, liveReader{}).name; got != want {
			t.Errorf("leader election %t: node %q; want %q", elect, got, want)
		}
	}
}
