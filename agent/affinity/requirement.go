package affinity

import (
	corev1 "k8s.io/api/core/v1"
)

// Requirement is what a pod requires of its node.
type Requirement struct {
	// Pod is the pod, of which only nodeSelector, affinity and annotations are used.
	Pod *corev1.Pod
}

// NewRequirement returns the requirement of a pod, nil if it has no [Annotation]. The error names the place in the
// annotation.
func NewRequirement(pod *corev1.Pod) (*Requirement, error) {
	return &Requirement{Pod: pod}, nil
}

// Verdict is the comparison of a requirement with a node.
type Verdict struct {
	Match bool
	// Reasons are what did not match, in the order nodeSelector, affinity, annotation.
	Reasons []Reason
}

// Reason is a part of a requirement that a node does not match.
type Reason struct {
	// Source is nodeSelector, affinity or annotation.
	Source string
	// Key is the label's key, Value its value on the node, and Present whether the node has it.
	Key, Value string
	Present    bool
	// Message names requirement and label in one line.
	Message string
}

// Match compares the annotation, and what Kubernetes enforces at scheduling, with the labels and the name of a node.
func (r *Requirement) Match(node *corev1.Node) Verdict {
	return Verdict{}
}
