package evict

// templateGeneration is the label that the DaemonSet controller, and no other, sets on
// its pods (pkg/apis/apps/types.go: DeprecatedTemplateGeneration).
const templateGeneration = "pod-template-generation"

// OwnedByDaemonSet reports whether a DaemonSet owns the pod, according to its source or to
// the label of the DaemonSet controller, which the container runtime also has.
func (p *Pod) OwnedByDaemonSet() bool {
	_, labelled := p.Labels[templateGeneration]
	return p.DaemonSet || labelled
}
