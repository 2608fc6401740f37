package evict

// templateGeneration is a label that the DaemonSet controller sets on its pods
// (pkg/apis/apps/types.go: DeprecatedTemplateGeneration). The author of any other pod can set it, too.
const templateGeneration = "pod-template-generation"

// OwnedByDaemonSet reports whether a DaemonSet owns the pod, according to its source or to
// the label of the DaemonSet controller, which the container runtime reports too.
func (p *Pod) OwnedByDaemonSet() bool {
	_, labelled := p.Labels[templateGeneration]
	_, byRuntime := p.RuntimeLabels[templateGeneration]
	return p.DaemonSet || labelled || byRuntime
}
