package affinity

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Requirement is what a pod requires of its node. It is made by [NewRequirement] or [NewSchedulingRequirement], is not
// changed afterwards, and can be used by several goroutines. A nil Requirement restricts nothing.
type Requirement struct {
	// Pod is the pod, of which only nodeSelector, affinity and annotations are used.
	Pod *corev1.Pod

	// nodeSelector and affinity are what Kubernetes enforces at scheduling, each by itself.
	nodeSelector, affinity nodeaffinity.RequiredNodeAffinity
	// annotation is the node selector of the annotation, nil without one, and execution its terms.
	annotation *corev1.NodeSelector
	execution  terms
}

// NewRequirement returns the requirement of a pod, nil if it has no [Annotation]. The error is an [*AnnotationError],
// which names the place in the annotation. A pod with such an error violates nothing.
func NewRequirement(pod *corev1.Pod) (*Requirement, error) {
	if _, ok := pod.Annotations[Annotation]; !ok {
		return nil, nil
	}
	return NewSchedulingRequirement(pod)
}

// NewSchedulingRequirement returns the requirement of a pod with or without [Annotation]: what [Config.EnforceIgnored]
// and the offline commands need. The errors are those of [NewRequirement].
func NewSchedulingRequirement(pod *corev1.Pod) (*Requirement, error) {
	r := &Requirement{
		Pod:          pod,
		nodeSelector: nodeaffinity.NewRequiredNodeAffinity(pod.Spec.NodeSelector, nil),
		affinity:     nodeaffinity.NewRequiredNodeAffinity(nil, pod.Spec.Affinity),
	}
	text, ok := pod.Annotations[Annotation]
	if !ok {
		return r, nil
	}
	var err error
	if r.annotation, r.execution, err = parseAnnotation(text); err != nil {
		return nil, err
	}
	return r, nil
}

// Annotation returns the node selector of the annotation, nil without one. It must not be changed.
func (r *Requirement) Annotation() *corev1.NodeSelector {
	if r == nil {
		return nil
	}
	return r.annotation
}

// Match compares the annotation, and what Kubernetes enforces at scheduling, with the labels and the name of a node. It
// says whether the pod can be placed there. Whether a pod that runs there is evicted is the question of
// [Requirement.Violates].
func (r *Requirement) Match(node *corev1.Node) Verdict {
	if r.Matches(node) {
		return Verdict{Match: true}
	}
	return r.verdict(node, func(string) bool { return true })
}

// Matches is Match without reasons.
func (r *Requirement) Matches(node *corev1.Node) bool {
	if r == nil {
		return true
	}
	// Match of nodeSelector has no errors. An error of the affinity means no match, as for the scheduler.
	if ok, _ := r.nodeSelector.Match(node); !ok {
		return false
	}
	if ok, _ := r.affinity.Match(node); !ok {
		return false
	}
	return r.MatchesExecution(node)
}

// MatchesExecution compares the annotation alone, without allocating: for the extender, which is asked about nodes that
// match the rest.
func (r *Requirement) MatchesExecution(node *corev1.Node) bool {
	return r == nil || r.annotation == nil || r.execution.match(node)
}

// MatchExecution is MatchesExecution with reasons.
func (r *Requirement) MatchExecution(node *corev1.Node) Verdict { return r.Violates(node, false) }

// Violates compares what is enforced during execution with a node: the annotation, and with enforceIgnored
// requiredDuringSchedulingIgnoredDuringExecution. Its verdict does not match if the pod violates. nodeSelector is never
// enforced during execution, and terms of the affinity that can't be read are no violation.
func (r *Requirement) Violates(node *corev1.Node, enforceIgnored bool) Verdict {
	annotation := !r.MatchesExecution(node)
	affinity := false
	if enforceIgnored && r != nil {
		ok, err := r.affinity.Match(node)
		affinity = !ok && err == nil
	}
	if !annotation && !affinity {
		return Verdict{Match: true}
	}
	return r.verdict(node, func(source string) bool {
		return source == SourceAnnotation && annotation || source == SourceAffinity && affinity
	})
}

// ignored returns requiredDuringSchedulingIgnoredDuringExecution, nil without it.
func (r *Requirement) ignored() *corev1.NodeSelector {
	if a := r.Pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}
