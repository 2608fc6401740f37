package controller

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
)

// Decisions and the last check before an act read the Node from the API server: the cache, which is late, still has the
// dead one.
func TestNodeIsReadLive(t *testing.T) {
	renewed := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
	for name, change := range map[string]func(*corev1.Node){
		"Ready again": func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue },
		"replaced":    func(n *corev1.Node) { n.UID = "another" },
		"excluded":    func(n *corev1.Node) { n.Labels = map[string]string{labelExclude: "true"} },
		"paused": func(n *corev1.Node) {
			n.Annotations[annotationPaused] = time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		},
	} {
		late := deadNode()
		late.Spec.Taints = []corev1.Taint{quarantine, outOfService}
		late.Annotations = map[string]string{annotationFence: fenceUID, annotationOutOfService: fenceUID}
		_, cache := testReconciler(t, nil, interceptor.Funcs{}, late.DeepCopy(), healthyNode("n2"), healthyNode("n3"))
		now := late.DeepCopy()
		change(now)
		r, api := testReconciler(t, nil, interceptor.Funcs{}, now, healthyNode("n2"), healthyNode("n3"), leaseOf("n1", renewed),
			pod("db-0", "StatefulSet", nil), runningFence(func(s *fence.State) {
				releasing(s, renewed)
				s.Intent = &fence.Intent{ID: "1"}
			}))
		r.cached = cache
		r.saved("n1").resourceVersion = getFence(t, api).ResourceVersion
		o := offOrder("1")
		o.lease = renewed
		if err := r.checkAct(t.Context(), o); err == nil {
			t.Errorf("%s: checkAct = nil; want an error", name)
		}
		if _, err := r.Reconcile(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		if taintIndex(getNode(t, api), &outOfService) >= 0 {
			t.Errorf("%s: the Node is still out of service", name)
		}
		if pods, err := r.observer.live.pods(t.Context(), "n1"); err != nil || len(pods) != 1 {
			t.Errorf("%s: pods %v, %v; want that it is not deleted", name, pods, err)
		}
	}
}

// Without a Lease there is no act, also if the decision was made without one.
func TestNoActWithoutLease(t *testing.T) {
	r, api := testReconciler(t, nil, interceptor.Funcs{}, deadNode(), runningFence(func(s *fence.State) { s.Intent = &fence.Intent{ID: "1"} }))
	r.saved("n1").resourceVersion = getFence(t, api).ResourceVersion
	if err := r.checkAct(t.Context(), offOrder("1")); err == nil || !strings.Contains(err.Error(), "has no Lease") {
		t.Errorf("checkAct = %v; want that there is no Lease", err)
	}
}

// Each patch of a Node is refused by the API server if the Node has changed since it was read.
func TestPatchesTestVersion(t *testing.T) {
	n := deadNode()
	n.ResourceVersion = "17"
	taints, err := taintPatch(n, fence.Taints{Quarantine: true, OutOfService: true}, fenceUID)
	if err != nil {
		t.Fatal(err)
	}
	cordon, err := cordonPatch(n, true, fenceUID)
	if err != nil {
		t.Fatal(err)
	}
	for name, patch := range map[string][]byte{"taints": taints, "cordon": cordon} {
		var ops []patchOp
		if err := json.Unmarshal(patch, &ops); err != nil {
			t.Fatal(err)
		}
		if len(ops) < 2 || ops[0] != (patchOp{"test", "/metadata/resourceVersion", "17"}) {
			t.Errorf("%s: patch %s; want the test of resourceVersion first", name, patch)
		}
		for _, op := range ops[1:] {
			if op.Op == "replace" {
				t.Errorf("%s: patch %s replaces a value of others", name, patch)
			}
		}
	}
}

// The act and each reading open the device of their own, so that a reading has another session than the act.
func TestEachUseOpens(t *testing.T) {
	var opened []string
	d := &faultyDevice{uuid: machine}
	e := testExecutor(t.Context(), d)
	e.open = func(_ context.Context, u *use) (device.Device, error) {
		opened = append(opened, u.id)
		return d, nil
	}
	e.pending("n1", fenceUID)
	if kind, message := e.carryOut(offOrder("1")); kind != fence.Succeeded {
		t.Fatalf("carryOut = %s, %s", kind, message)
	}
	m := offMethod()
	for range 2 {
		if r := e.reading("n1", fenceUID, &m); r.Power != fence.PowerOff {
			t.Errorf("reading = %+v; want off", r)
		}
	}
	if len(opened) != 3 || opened[0] != "1" || opened[1] == opened[2] {
		t.Errorf("opened for %q; want the act and two readings, each of its own", opened)
	}
}
