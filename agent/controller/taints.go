package controller

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/evictd/evictd/agent/fence"
)

// patchOp is an operation of a JSON Patch.
type patchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// ownedTaint is a taint with the annotation that says that it is the controller's.
type ownedTaint struct {
	taint      corev1.Taint
	annotation string
	want       bool
}

// taintPatch returns the JSON Patch that gives a Node the taints of a fence, nil if it has them. Each operation is on
// one element, and the patch is refused if the Node has changed since it was read, so that foreign taints stay as they
// are. A taint that the controller did not set is never removed; one that it would set becomes its own.
func taintPatch(n *corev1.Node, want fence.Taints, uid string) ([]byte, error) {
	ops := []patchOp{{Op: "test", Path: "/metadata/resourceVersion", Value: n.ResourceVersion}}
	length, annotated := len(n.Spec.Taints), len(n.Annotations) > 0
	var removed []int
	for _, t := range ownedTaints(want) {
		at := taintIndex(n, &t.taint)
		owner, owned := n.Annotations[t.annotation]
		path := "/metadata/annotations/" + strings.ReplaceAll(t.annotation, "/", "~1")
		switch {
		case t.want && at < 0 && length == 0:
			ops = append(ops, patchOp{"add", "/spec/taints", []corev1.Taint{t.taint}})
			length++
		case t.want && at < 0:
			ops = append(ops, patchOp{"add", "/spec/taints/-", t.taint})
			length++
		case !t.want && at >= 0 && owned:
			removed = append(removed, at)
		}
		switch {
		case t.want && !annotated:
			ops = append(ops, patchOp{"add", "/metadata/annotations", map[string]string{t.annotation: uid}})
			annotated = true
		case t.want && owner != uid:
			ops = append(ops, patchOp{"add", path, uid})
		case !t.want && owned:
			ops = append(ops, patchOp{Op: "remove", Path: path})
		}
	}
	// An index is valid until an element before it is removed.
	slices.SortFunc(removed, func(a, b int) int { return cmp.Compare(b, a) })
	for _, at := range removed {
		ops = append(ops, patchOp{Op: "remove", Path: fmt.Sprintf("/spec/taints/%d", at)})
	}
	if len(ops) == 1 {
		return nil, nil
	}
	return json.Marshal(ops)
}

func ownedTaints(want fence.Taints) [2]ownedTaint {
	return [2]ownedTaint{
		{quarantine, annotationFence, want.Quarantine},
		{outOfService, annotationOutOfService, want.OutOfService},
	}
}

// taintIndex returns the index of a taint with the same key and effect, -1 if there is none.
func taintIndex(n *corev1.Node, taint *corev1.Taint) int {
	return slices.IndexFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(taint) })
}

// hasOwned reports whether a Node has a taint that the controller set.
func hasOwned(n *corev1.Node, taint *corev1.Taint, annotation string) bool {
	_, owned := n.Annotations[annotation]
	return owned && taintIndex(n, taint) >= 0
}

// marked reports whether a Node has an annotation of the controller's taints.
func marked(n *corev1.Node) bool {
	for _, t := range ownedTaints(fence.Taints{}) {
		if _, ok := n.Annotations[t.annotation]; ok {
			return true
		}
	}
	return false
}
