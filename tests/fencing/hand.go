package fencing

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/evictd/evictd/tests/controlplane"
)

// PowerByHand switches a machine on or off as a person does, with ipmitool.
func (c *Cluster) PowerByHand(ctx context.Context, name string, on bool) error {
	action := "off"
	if on {
		action = "on"
	}
	_, err := c.BMCs[name].Ipmitool(ctx, "chassis", "power", action)
	return err
}

// TaintByHand adds or removes the out-of-service taint as a person does, with kubectl
// (kubernetes.io/docs/concepts/cluster-administration/node-shutdown, "Non-graceful node shutdown handling").
func (c *Cluster) TaintByHand(ctx context.Context, name string, add bool) error {
	return c.poll(ctx, "a change of the taints of "+name, func() (bool, error) {
		var n corev1.Node
		if err := c.Admin.Get(ctx, nodePath+"/"+name, &n); err != nil {
			return false, err
		}
		taints := slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == outOfServiceTaint })
		if add {
			taints = append(taints, corev1.Taint{Key: outOfServiceTaint, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute})
		}
		// The list is replaced: with another resourceVersion the API server refuses that.
		err := c.Admin.Patch(ctx, nodePath+"/"+name, controlplane.MergePatch, fields{
			"metadata": fields{"resourceVersion": n.ResourceVersion}, "spec": fields{"taints": taints},
		})
		return err == nil, err
	})
}

// RecoverByHand does what a person does about a lost machine once that is known to be not ready, and returns when the
// machine is back. It is what evictd is compared with: the time that the person takes comes on top.
func (c *Cluster) RecoverByHand(ctx context.Context, lost, other string) error {
	if err := c.Await(ctx, lost+" to be not ready", func(s *Snapshot) bool { return !s.Ready[lost] }); err != nil {
		return err
	}
	if err := c.PowerByHand(ctx, lost, false); err != nil {
		return fmt.Errorf("switch %s off: %w", lost, err)
	}
	if err := c.Await(ctx, lost+" to be off", func(*Snapshot) bool { return !c.Machines[lost].On() }); err != nil {
		return err
	}
	if err := c.TaintByHand(ctx, lost, true); err != nil {
		return err
	}
	if err := c.Await(ctx, "the pod to run on "+other, func(s *Snapshot) bool {
		return s.PodNode == other && s.PodRunning && len(s.Attached) == 1 && s.Attached[0] == other
	}); err != nil {
		return err
	}
	if err := c.TaintByHand(ctx, lost, false); err != nil {
		return err
	}
	if err := c.PowerByHand(ctx, lost, true); err != nil {
		return fmt.Errorf("switch %s on: %w", lost, err)
	}
	return c.Await(ctx, lost+" to be ready", func(s *Snapshot) bool { return s.Ready[lost] && len(s.Taints[lost]) == 0 })
}
