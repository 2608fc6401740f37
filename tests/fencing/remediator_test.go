package fencing

import (
	"os"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/fence"
)

const (
	remediationCRD = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: fenceagentsremediations.fence-agents-remediation.medik8s.io
spec:
  group: fence-agents-remediation.medik8s.io
  names: {kind: FenceAgentsRemediation, listKind: FenceAgentsRemediationList, plural: fenceagentsremediations, singular: fenceagentsremediation}
  scope: Namespaced
  versions:
    - name: v1alpha1
      served: true
      storage: true
      schema:
        openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
`
	// passes is longer than the time between two looks at a node with a fence.
	passes = 12 * time.Second

	remediatorLeases = "/apis/coordination.k8s.io/v1/namespaces/medik8s-leases/leases"
	remediationPath  = "/apis/fence-agents-remediation.medik8s.io/v1alpha1/namespaces/default/fenceagentsremediations"
)

// TestRemediatorObject: a fence waits for the Lease of another remediator. The CustomResourceDefinition of that is created
// meanwhile; the fence then waits for the rights to its objects, and for the object for its node. Until that is gone nothing
// is switched.
func TestRemediatorObject(t *testing.T) {
	t.Parallel()
	c, program := configured(t, Enforce)
	grant := func(manifest string) {
		t.Helper()
		rights, err := os.ReadFile("../../deploy/kubernetes/controller/medik8s/" + manifest)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Admin.Apply(t.Context(), rights); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Admin.Create(t.Context(), "/api/v1/namespaces", fields{"metadata": fields{"name": "medik8s-leases"}}); err != nil {
		t.Fatal(err)
	}
	grant("rbac.yaml")
	lease := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}, Spec: coordinationv1.LeaseSpec{
		HolderIdentity: new("node-healthcheck"), RenewTime: new(metav1.NowMicro()), LeaseDurationSeconds: new(int32(3600)),
	}}
	if err := c.Admin.Create(t.Context(), remediatorLeases, lease); err != nil {
		t.Fatal(err)
	}
	startController(t, c, program, "first")
	boot, uid := c.Machines["a"].BootID(), podUID(t, c)
	began := time.Now()
	c.Machines["a"].Isolate()
	awaitHold(t, c, "RemediatorLease", "node-healthcheck")
	if err := c.Admin.Apply(t.Context(), []byte(remediationCRD)); err != nil {
		t.Fatal(err)
	}
	remediation := fields{"apiVersion": "fence-agents-remediation.medik8s.io/v1alpha1", "kind": "FenceAgentsRemediation", "metadata": fields{
		"name": "a-x7", "annotations": fields{"remediation.medik8s.io/node-name": "a"},
	}}
	if err := c.poll(t.Context(), "the object of the remediator", func() (bool, error) {
		err := c.Admin.Create(t.Context(), remediationPath, remediation)
		return err == nil, err
	}); err != nil {
		t.Fatal(err)
	}
	awaitHold(t, c, "FencesUnknown", "apply deploy/kubernetes/controller/medik8s/objects")
	grant("objects/rbac.yaml")
	awaitHold(t, c, "RemediatorObject", "FenceAgentsRemediation default/a-x7 is for the node")
	if !c.Machines["a"].On() {
		t.Error("a was switched off while another remediator had an object for it")
	}
	wantKept(t, c, check(t, c, began), uid)
	if err := c.Admin.Delete(t.Context(), remediatorLeases+"/node-a", nil); err != nil {
		t.Fatal(err)
	}
	time.Sleep(passes) // the object holds without the Lease
	gone := time.Now()
	if err := c.Admin.Delete(t.Context(), remediationPath+"/a-x7", nil); err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitRecovery(t.Context(), "a", "b"); err != nil {
		t.Fatal(err)
	}
	wantRecovered(t, c, began, boot, uid)
	events, err := c.Timeline.Events()
	if err != nil {
		t.Fatal(err)
	}
	if off, found := Find(events, CommandOff); !found || off.At.Before(gone) {
		t.Errorf("switched off at %s; want after the object was gone, at %s", off.At, gone)
	}
}

// awaitHold waits until the fence of a is held with a reason and a text in the message.
func awaitHold(t *testing.T, c *Cluster, reason, text string) {
	t.Helper()
	awaitFence(t, c, "the fence to be held by "+reason, func(_ *fence.Progress, d *fence.Detail) bool {
		hold := meta.FindStatusCondition(d.Conditions, fence.ConditionStormHold)
		return hold != nil && hold.Status == metav1.ConditionTrue && hold.Reason == reason && strings.Contains(hold.Message, text)
	})
}
