package fencing

import (
	"context"
	"errors"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/evictd/evictd/agent/fence/nodefence"
	"github.com/evictd/evictd/tests/controlplane"
)

const fencePath = "/apis/ha.k8s.io/v1/nodefences"

// Snapshot is a cluster as the API server shows it now.
type Snapshot struct {
	// Ready are the nodes that are ready, Taints the keys of each node's taints.
	Ready  map[string]bool
	Taints map[string][]string
	// PodNode is the node of the StatefulSet's pod, empty if that is not bound.
	PodNode string
	// PodUID is its UID, empty if there is none.
	PodUID                     string
	PodRunning, PodTerminating bool
	// Attached are the nodes that the volume is attached to.
	Attached []string
	// Fences are the NodeFences by node.
	Fences map[string]nodefence.NodeFence
}

// Snapshot reads the cluster.
func (c *Cluster) Snapshot(ctx context.Context) (*Snapshot, error) {
	s := &Snapshot{Ready: map[string]bool{}, Taints: map[string][]string{}, Fences: map[string]nodefence.NodeFence{}}
	var nodes corev1.NodeList
	if err := c.Admin.Get(ctx, nodePath, &nodes); err != nil {
		return nil, err
	}
	for _, n := range nodes.Items {
		s.Ready[n.Name] = slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		for _, t := range n.Spec.Taints {
			s.Taints[n.Name] = append(s.Taints[n.Name], t.Key)
		}
	}
	var pod corev1.Pod
	if err := c.getIfAny(ctx, podsPath+"/"+PodName, &pod); err != nil {
		return nil, err
	}
	s.PodNode, s.PodUID = pod.Spec.NodeName, string(pod.UID)
	s.PodRunning, s.PodTerminating = pod.Status.Phase == corev1.PodRunning, pod.DeletionTimestamp != nil
	var attachments storagev1.VolumeAttachmentList
	if err := c.Admin.Get(ctx, attachmentPath, &attachments); err != nil {
		return nil, err
	}
	for _, v := range attachments.Items {
		if v.Status.Attached {
			s.Attached = append(s.Attached, v.Spec.NodeName)
		}
	}
	var fences nodefence.NodeFenceList
	if err := c.getIfAny(ctx, fencePath, &fences); err != nil {
		return nil, err
	}
	for _, f := range fences.Items {
		s.Fences[f.Node] = f
	}
	return s, nil
}

// getIfAny is Get; out stays empty if there is no such object, or no such resource.
func (c *Cluster) getIfAny(ctx context.Context, path string, out any) error {
	err := c.Admin.Get(ctx, path, out)
	if e, ok := errors.AsType[*controlplane.StatusError](err); ok && e.Code == http.StatusNotFound {
		return nil
	}
	return err
}
