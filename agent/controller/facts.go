package controller

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/evictd/evictd/agent/fence"
)

// nodeFacts returns what a decision needs of a Node, which is nil if there is none.
func nodeFacts(n *corev1.Node) fence.Node {
	if n == nil {
		return fence.Node{}
	}
	f := fence.Node{
		Found: true, Name: n.Name, UID: string(n.UID),
		BootID: n.Status.NodeInfo.BootID, SystemUUID: n.Status.NodeInfo.SystemUUID,
		Zone: zone(n), ControlPlane: controlPlane(n), ConfirmOff: n.Annotations[annotationConfirmOff],
		Quarantined:  hasOwned(n, &quarantine, annotationFence),
		OutOfService: hasOwned(n, &outOfService, annotationOutOfService), Unschedulable: n.Spec.Unschedulable,
	}
	f.Ready, f.ReadySince = fence.ReadyUnknown, n.CreationTimestamp.Time
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			f.Ready, f.ReadySince = readiness(c.Status), c.LastTransitionTime.Time
		}
	}
	return f
}

func readiness(s corev1.ConditionStatus) fence.Ready {
	switch s {
	case corev1.ConditionTrue:
		return fence.ReadyTrue
	case corev1.ConditionFalse:
		return fence.ReadyFalse
	}
	return fence.ReadyUnknown
}

// zone returns region and zone of a Node, empty if it has neither.
func zone(n *corev1.Node) string {
	r, z := n.Labels[corev1.LabelTopologyRegion], n.Labels[corev1.LabelTopologyZone]
	if r == "" && z == "" {
		return ""
	}
	return r + "/" + z
}

func controlPlane(n *corev1.Node) bool {
	_, a := n.Labels[labelControlPlane]
	_, b := n.Labels[labelMaster]
	return a || b
}

// ready reports whether a Node is Ready.
func ready(n *corev1.Node) bool { return nodeFacts(n).Ready == fence.ReadyTrue }

// podFacts returns what a decision needs of a pod.
func podFacts(p *corev1.Pod) fence.Pod {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	f := fence.Pod{
		UID: string(p.UID), Namespace: p.Namespace, Name: p.Name,
		Tolerates: tolerates(p), Mirror: mirror, Terminating: p.DeletionTimestamp != nil,
	}
	if owner := metav1.GetControllerOf(p); owner != nil {
		f.DaemonSet, f.StatefulSet = owner.Kind == "DaemonSet", owner.Kind == "StatefulSet"
	}
	return f
}

// tolerates reports whether the out-of-service taint never evicts a pod. A toleration that ends does not count.
func tolerates(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
		return t.TolerationSeconds == nil && t.ToleratesTaint(klog.Background(), &outOfService, false)
	})
}

// keptClaims returns the PersistentVolumeClaims of the pods that tolerate the out-of-service taint.
func keptClaims(pods []corev1.Pod) map[types.NamespacedName]bool {
	kept := make(map[types.NamespacedName]bool)
	for i := range pods {
		p := &pods[i]
		if !tolerates(p) {
			continue
		}
		for _, claim := range claims(p) {
			kept[claim] = true
		}
	}
	return kept
}

// attachmentFacts returns what a decision needs of VolumeAttachments. A volume without a claim is kept by no pod.
func attachmentFacts(
	ctx context.Context, live liveReader, list []storagev1.VolumeAttachment, kept map[types.NamespacedName]bool,
) ([]fence.Attachment, error) {
	var facts []fence.Attachment
	for i := range list {
		a := &list[i]
		f := fence.Attachment{UID: string(a.UID), Name: a.Name}
		if volume := a.Spec.Source.PersistentVolumeName; volume != nil && len(kept) > 0 {
			claim, err := live.claim(ctx, *volume)
			if err != nil {
				return nil, err
			}
			f.KeptByPod = kept[claim]
		}
		facts = append(facts, f)
	}
	return facts, nil
}
