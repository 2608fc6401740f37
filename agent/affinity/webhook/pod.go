package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/affinity"
)

// pod is what is read of a pod. What this version does not know stays in the object, since a patch names only what it
// changes.
type pod struct {
	Metadata struct {
		Annotations     map[string]string       `json:"annotations"`
		OwnerReferences []metav1.OwnerReference `json:"ownerReferences"`
	} `json:"metadata"`
	Spec struct {
		Affinity *struct {
			NodeAffinity *struct {
				Required json.RawMessage `json:"requiredDuringSchedulingIgnoredDuringExecution"`
			} `json:"nodeAffinity"`
		} `json:"affinity"`
	} `json:"spec"`
}

// exempt reports whether the pod's node is not chosen by its requirement. The pod of a DaemonSet would stay Pending for
// ever, and the kubelet runs a static pod, whatever its mirror pod says.
func (p *pod) exempt() bool {
	if _, mirror := p.Metadata.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return true
	}
	for i := range p.Metadata.OwnerReferences {
		o := &p.Metadata.OwnerReferences[i]
		if o.Controller != nil && *o.Controller && (o.Kind == "DaemonSet" || o.Kind == "Node") {
			return true
		}
	}
	return false
}

// required returns the selector of the pod's node affinity, nil if there is none. A field that this version does not
// know is an error: it would be lost.
func (p *pod) required() (*corev1.NodeSelector, error) {
	if p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil || len(p.Spec.Affinity.NodeAffinity.Required) == 0 {
		return nil, nil
	}
	var s *corev1.NodeSelector
	d := json.NewDecoder(bytes.NewReader(p.Spec.Affinity.NodeAffinity.Required))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return nil, fmt.Errorf("read the pod's node affinity: %w", err)
	}
	return s, nil
}

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// patch returns the JSON patch that sets the selector of the pod's node affinity.
func (p *pod) patch(selector *corev1.NodeSelector) ([]byte, error) {
	node := corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: selector}
	o := operation{"add", "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution", selector}
	switch {
	case p.Spec.Affinity == nil:
		o.Path, o.Value = "/spec/affinity", corev1.Affinity{NodeAffinity: &node}
	case p.Spec.Affinity.NodeAffinity == nil:
		o.Path, o.Value = "/spec/affinity/nodeAffinity", node
	}
	return json.Marshal([]operation{o})
}

// decide answers a request. A dry run is answered as any other, and there are no side effects.
func decide(r *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, result) {
	allowed := &admissionv1.AdmissionResponse{Allowed: true}
	if r.Operation != admissionv1.Create || r.Kind != (metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}) || r.SubResource != "" {
		return allowed, unchanged
	}
	var p pod
	if err := json.Unmarshal(r.Object.Raw, &p); err != nil {
		return warned(fmt.Errorf("read the pod: %w", err))
	}
	text, annotated := p.Metadata.Annotations[affinity.Annotation]
	if !annotated || p.exempt() {
		return allowed, unchanged
	}
	annotation, err := affinity.ParseAnnotation(text)
	if err != nil {
		return warned(err)
	}
	existing, err := p.required()
	if err != nil {
		return warned(err)
	}
	if affinity.Implies(existing, annotation) {
		return allowed, unchanged
	}
	selector, err := affinity.And(existing, annotation)
	if err != nil {
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: err.Error(),
		}}, denied
	}
	patch, err := p.patch(selector)
	if err != nil {
		return warned(fmt.Errorf("encode the patch: %w", err))
	}
	kind := admissionv1.PatchTypeJSONPatch
	allowed.Patch, allowed.PatchType = patch, &kind
	return allowed, restricted
}

// warned lets a pod pass as it is, with a warning to the client that creates it.
func warned(err error) (*admissionv1.AdmissionResponse, result) {
	return &admissionv1.AdmissionResponse{
		Allowed: true, Warnings: []string{err.Error() + "; the pod is scheduled without this requirement"},
	}, invalid
}
