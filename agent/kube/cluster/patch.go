package cluster

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evictd/evictd/agent/kube"
)

// statusPatch is a strategic merge patch of a pod's status. The API server refuses it if the
// UID is not that of the pod. The conditions are merged by their types.
type statusPatch struct {
	Metadata struct {
		UID             string            `json:"uid"`
		ResourceVersion string            `json:"resourceVersion,omitempty"`
		Annotations     map[string]string `json:"annotations,omitempty"`
	} `json:"metadata"`
	Status struct {
		Phase      corev1.PodPhase    `json:"phase,omitempty"`
		Reason     string             `json:"reason,omitempty"`
		Message    string             `json:"message,omitempty"`
		Conditions []disruptionTarget `json:"conditions,omitempty"`
	} `json:"status"`
}

// disruptionTarget is the condition as the kubelet writes it at an eviction
// (pkg/kubelet/eviction/eviction_manager.go), without its probe time.
type disruptionTarget struct {
	Type               corev1.PodConditionType `json:"type"`
	Status             corev1.ConditionStatus  `json:"status"`
	ObservedGeneration int64                   `json:"observedGeneration,omitempty"`
	Reason             string                  `json:"reason"`
	Message            string                  `json:"message"`
	LastTransitionTime metav1.Time             `json:"lastTransitionTime"`
}

// patchOf returns the patch with the condition DisruptionTarget, and with the phase if write is
// not 0; plain is one without the annotation. The same write of an order is always the same patch:
// repeated, it changes nothing.
func patchOf(o *kube.Order, generation int64, write int, plain bool) ([]byte, error) {
	var p statusPatch
	p.Metadata.UID = o.UID
	p.Status.Conditions = []disruptionTarget{{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: generation,
		Reason: reasonDisrupted, Message: o.Message, LastTransitionTime: metav1.NewTime(o.Decided),
	}}
	if write > 0 {
		if !plain {
			p.Metadata.Annotations = map[string]string{annotationEvicted: markOf(o, write)}
		}
		p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, o.Reason, o.Message
	}
	return json.Marshal(&p)
}

// deletionOf returns the options of a deletion of the order's pod and no other.
func deletionOf(o *kube.Order, grace int64) ([]byte, error) {
	uid := types.UID(o.UID)
	return json.Marshal(&metav1.DeleteOptions{
		TypeMeta:           metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		GracePeriodSeconds: &grace, Preconditions: &metav1.Preconditions{UID: &uid},
	})
}
