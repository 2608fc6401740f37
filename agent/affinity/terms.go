package affinity

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// terms are those of a valid node selector, ORed. They match exactly as nodeaffinity.NodeSelector does, but without its
// allocation of a map for each node: the extender compares each pod with all nodes.
type terms []term

// term is a term that is not empty.
type term struct {
	labels labels.Selector
	fields fields.Selector
	// expressions are the requirements of labels, in their order.
	expressions []labels.Requirement
}

// selections are the operators in the spelling of the labels package.
var selections = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
	corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

// newTerms returns the terms of a selector that nodeaffinity.NewNodeSelector accepts.
func newTerms(s *corev1.NodeSelector) (terms, error) {
	out := make(terms, 0, len(s.NodeSelectorTerms))
	for i, from := range s.NodeSelectorTerms {
		var t term
		for j, q := range from.MatchExpressions {
			r, err := labels.NewRequirement(q.Key, selections[q.Operator], q.Values)
			if err != nil {
				return nil, fmt.Errorf("%s[%d].%s[%d]: %w", termsField, i, expressionsField, j, err)
			}
			t.expressions = append(t.expressions, *r)
		}
		t.labels = labels.NewSelector().Add(t.expressions...)
		var selectors []fields.Selector
		for _, q := range from.MatchFields {
			one := fields.OneTermEqualSelector
			if q.Operator == corev1.NodeSelectorOpNotIn {
				one = fields.OneTermNotEqualSelector
			}
			selectors = append(selectors, one(q.Key, q.Values[0]))
		}
		t.fields = fields.AndSelectors(selectors...)
		out = append(out, t)
	}
	return out, nil
}

// match compares the terms with a node.
func (t terms) match(node *corev1.Node) bool {
	for i := range t {
		// Kubernetes does not compare the fields of a Node without a name.
		if t[i].labels.Matches(labels.Set(node.Labels)) && (node.Name == "" || t[i].fields.Matches((*nodeFields)(node))) {
			return true
		}
	}
	return false
}

// nodeFields are the fields of a node that matchFields supports.
type nodeFields corev1.Node

// Has implements fields.Fields.
func (n *nodeFields) Has(field string) bool { return field == fieldName }

// Get implements fields.Fields.
func (n *nodeFields) Get(field string) string {
	if field == fieldName {
		return n.Name
	}
	return ""
}
