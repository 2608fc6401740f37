package evict

// templateGeneration is the label that the DaemonSet controller puts on its
// pods (pkg/apis/apps/types.go: DeprecatedTemplateGeneration); no other does.
const templateGeneration = "pod-template-generation"

// OfDaemonSet reports whether a DaemonSet owns the pod: because its source says
// so, or by the label of its controller, which a runtime knows, too.
func (p *Pod) OfDaemonSet() bool {
	_, labelled := p.Labels[templateGeneration]
	return p.DaemonSet || labelled
}
