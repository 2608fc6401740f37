package affinity

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Implies reports whether each term of a selector has all requirements of a term of another one, in any order.
// Then a node that matches the selector matches the other, too, and [And] of both would add nothing. The reverse does
// not hold: a selector can imply another one without that. It is false, too, for selectors that are too large for And.
func Implies(existing, other *corev1.NodeSelector) bool {
	if other == nil {
		return true
	}
	if existing == nil {
		return false
	}
	left, right := restricting(existing.NodeSelectorTerms), restricting(other.NodeSelectorTerms)
	if len(left) > MaxTerms || requirements(left) > maxRequirements {
		return false
	}
	for _, a := range left {
		implied := func(b corev1.NodeSelectorTerm) bool {
			return hasAll(a.MatchExpressions, b.MatchExpressions) && hasAll(a.MatchFields, b.MatchFields)
		}
		if !slices.ContainsFunc(right, implied) {
			return false
		}
	}
	return true
}

func hasAll(list, wanted []corev1.NodeSelectorRequirement) bool {
	for i := range wanted {
		if !slices.ContainsFunc(list, func(q corev1.NodeSelectorRequirement) bool { return sameRequirement(&q, &wanted[i]) }) {
			return false
		}
	}
	return true
}

// sameRequirement reports whether two requirements are written alike.
func sameRequirement(a, b *corev1.NodeSelectorRequirement) bool {
	return a.Key == b.Key && a.Operator == b.Operator && slices.Equal(a.Values, b.Values)
}
