package affinity

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// And returns a selector that matches a node exactly when both selectors do: what a webhook writes into
// requiredDuringSchedulingIgnoredDuringExecution. Lists of terms are ORed, so the result has each term of the one with
// each term of the other, at most [MaxTerms]. A nil selector restricts nothing; two of them are nil.
//
// Null and empty terms match no node, so they are left out. Where none is left, the result has one empty term: it
// matches no node either, and the API server accepts it. An existing selector without any term stays as it is, for the
// API server to refuse. The result shares nothing with the arguments.
func And(existing, annotation *corev1.NodeSelector) (*corev1.NodeSelector, error) {
	switch {
	case annotation == nil:
		return existing.DeepCopy(), nil
	case existing == nil:
		return annotation.DeepCopy(), nil
	case len(existing.NodeSelectorTerms) == 0:
		return &corev1.NodeSelector{}, nil
	}
	left, right := restricting(existing.NodeSelectorTerms), restricting(annotation.NodeSelectorTerms)
	if len(left)*len(right) > MaxTerms {
		return nil, fmt.Errorf("add annotation %s to the pod's node affinity: %d terms with %d terms make %d, more than %d; "+
			"use fewer terms", Annotation, len(left), len(right), len(left)*len(right), MaxTerms)
	}
	if n := len(right)*requirements(left) + len(left)*requirements(right); n > maxRequirements {
		return nil, fmt.Errorf("add annotation %s to the pod's node affinity: the result has %d requirements, more than %d; "+
			"use fewer terms or requirements", Annotation, n, maxRequirements)
	}
	out := &corev1.NodeSelector{}
	for _, a := range left {
		for _, b := range right {
			out.NodeSelectorTerms = append(out.NodeSelectorTerms, corev1.NodeSelectorTerm{
				MatchExpressions: both(a.MatchExpressions, b.MatchExpressions),
				MatchFields:      both(a.MatchFields, b.MatchFields),
			})
		}
	}
	if len(out.NodeSelectorTerms) == 0 {
		out.NodeSelectorTerms = []corev1.NodeSelectorTerm{{}}
	}
	return out, nil
}

// maxRequirements bounds the length of the result: each requirement of the one selector is repeated for each term of
// the other.
const maxRequirements = 8192

// requirements counts those of all terms.
func requirements(terms []corev1.NodeSelectorTerm) int {
	n := 0
	for _, t := range terms {
		n += len(t.MatchExpressions) + len(t.MatchFields)
	}
	return n
}

// restricting returns the terms that are not empty.
func restricting(terms []corev1.NodeSelectorTerm) []corev1.NodeSelectorTerm {
	var out []corev1.NodeSelectorTerm
	for _, t := range terms {
		if len(t.MatchExpressions)+len(t.MatchFields) > 0 {
			out = append(out, t)
		}
	}
	return out
}

// both returns the requirements of two terms, without those of b that a has. Two different requirements of one key stay
// two: a node matches if it matches both.
func both(a, b []corev1.NodeSelectorRequirement) []corev1.NodeSelectorRequirement {
	var out []corev1.NodeSelectorRequirement
	for _, q := range a {
		out = append(out, *q.DeepCopy())
	}
	for _, q := range b {
		if !slices.ContainsFunc(a, func(o corev1.NodeSelectorRequirement) bool { return sameRequirement(&o, &q) }) {
			out = append(out, *q.DeepCopy())
		}
	}
	return out
}
