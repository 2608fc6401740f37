package affinity

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
)

// maxComparisons bounds the comparisons of requirements with other nodes in one call of Step. Requirements that many
// nodes match need few.
const maxComparisons = 100_000

// fit are the nodes that pods with equal requirements and tolerations can be placed on.
type fit struct {
	pods []*candidate
	// nodes are the first two that fit: one may be the pod's own.
	nodes []string
	// skipped says that the pods were not compared in this step, and are not known to fit no node.
	skipped bool
}

// elsewhere reports whether a node other than the pod's own fits.
func (f *fit) elsewhere(own string) bool {
	return slices.ContainsFunc(f.nodes, func(name string) bool { return name != own })
}

// drained reports whether the node is cordoned, drained or shut down.
func (n *Node) drained() bool { return n.ShuttingDown || n.Object.Spec.Unschedulable }

// takesPods reports whether the scheduler places pods on the node, taints aside.
func (n *Node) takesPods() bool { return n.Ready && !n.Stale && !n.Fenced && !n.drained() }

// compare finds the nodes that the candidates fit. Where the comparisons are more than maxComparisons, those go first
// whose last one is the longest ago. The others keep their result if it was that no node fits.
func (r *run) compare(open []*candidate) {
	if r.in.Config.EvictUnplaceable || len(open) == 0 {
		return
	}
	fits := groupFits(open)
	slices.SortStableFunc(fits, func(a, b *fit) int {
		return a.pods[0].v.Compared.Compare(b.pods[0].v.Compared)
	})
	nodes := make([]*Node, 0, len(r.nodes))
	for _, name := range slices.Sorted(maps.Keys(r.nodes)) {
		if r.nodes[name].takesPods() {
			nodes = append(nodes, r.nodes[name])
		}
	}
	left := maxComparisons
	for _, f := range fits {
		if left <= 0 {
			r.skip(f)
			continue
		}
		left -= f.find(nodes)
		for _, c := range f.pods {
			c.v.Compared = r.now
		}
	}
}

// fitMemory identifies requirement and tolerations in memory. Callers share them between the pods of a template.
type fitMemory struct {
	requirement *Requirement
	tolerations *corev1.Toleration
	count       int
}

func firstOf(list []corev1.Toleration) *corev1.Toleration {
	if len(list) == 0 {
		return nil
	}
	return &list[0]
}

// groupFits has pods with equal requirements and tolerations share a fit. The pod of a fit that was compared the
// longest ago is its first.
func groupFits(open []*candidate) []*fit {
	var fits []*fit
	byKey, byMemory := map[string]*fit{}, map[fitMemory]*fit{}
	var buf []byte
	for _, c := range open {
		memory := fitMemory{c.pod.Requirement, firstOf(c.pod.Tolerations), len(c.pod.Tolerations)}
		f := byMemory[memory]
		if f == nil {
			buf = appendFitKey(buf[:0], c.pod)
			if f = byKey[string(buf)]; f == nil {
				f = &fit{}
				byKey[string(buf)] = f
				fits = append(fits, f)
			}
			byMemory[memory] = f
		}
		c.fit = f
		f.pods = append(f.pods, c)
	}
	for _, f := range fits {
		oldest := slices.MinFunc(f.pods, func(a, b *candidate) int { return a.v.Compared.Compare(b.v.Compared) })
		i := slices.Index(f.pods, oldest)
		f.pods[0], f.pods[i] = f.pods[i], f.pods[0]
	}
	return fits
}

// skip leaves out the comparisons of a fit.
func (r *run) skip(f *fit) {
	unplaceable := true
	for _, c := range f.pods {
		unplaceable = unplaceable && c.v.Held == HoldNoNodeFits
	}
	f.skipped = !unplaceable
	r.wake(r.now.Add(soon))
}

// find compares until two nodes fit, and returns the number of comparisons.
func (f *fit) find(nodes []*Node) int {
	for i, n := range nodes {
		if f.pods[0].pod.fits(n) {
			if f.nodes = append(f.nodes, n.Object.Name); len(f.nodes) == 2 {
				return i + 1
			}
		}
	}
	return len(nodes)
}

// fits reports whether a node matches the whole requirement of a pod, and the pod tolerates its taints. Tolerations with
// the operators Lt and Gt do not count, as they are off by default in Kubernetes: a pod that needs them is kept.
func (p *Pod) fits(n *Node) bool {
	if !p.Requirement.Matches(n.Object) {
		return false
	}
	_, untolerated := schedulinghelpers.FindMatchingUntoleratedTaint(klog.Logger{}, n.Object.Spec.Taints, p.Tolerations,
		func(t *corev1.Taint) bool {
			return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
		}, false)
	return !untolerated
}

// appendFitKey appends what fits depends on, so that pods with equal keys fit the same nodes.
func appendFitKey(b []byte, p *Pod) []byte {
	b = binary.AppendUvarint(b, uint64(len(p.Tolerations)))
	for i := range p.Tolerations {
		t := &p.Tolerations[i]
		b = appendStrings(b, t.Key, string(t.Operator), t.Value, string(t.Effect))
	}
	if p.Requirement == nil {
		return b
	}
	pod := p.Requirement.Pod
	b = appendStrings(b, pod.Annotations[Annotation])
	b = binary.AppendUvarint(b, uint64(len(pod.Spec.NodeSelector)))
	if len(pod.Spec.NodeSelector) > 0 {
		for _, key := range slices.SortedFunc(maps.Keys(pod.Spec.NodeSelector), cmp.Compare) {
			b = appendStrings(b, key, pod.Spec.NodeSelector[key])
		}
	}
	selector := p.Requirement.ignored()
	if selector == nil {
		return b
	}
	b = binary.AppendUvarint(b, uint64(len(selector.NodeSelectorTerms)))
	for i := range selector.NodeSelectorTerms {
		b = appendRequirements(b, selector.NodeSelectorTerms[i].MatchExpressions)
		b = appendRequirements(b, selector.NodeSelectorTerms[i].MatchFields)
	}
	return b
}

func appendRequirements(b []byte, list []corev1.NodeSelectorRequirement) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for i := range list {
		b = appendStrings(b, list[i].Key, string(list[i].Operator))
		b = binary.AppendUvarint(b, uint64(len(list[i].Values)))
		b = appendStrings(b, list[i].Values...)
	}
	return b
}

// appendStrings appends strings with their lengths.
func appendStrings(b []byte, list ...string) []byte {
	for _, s := range list {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	return b
}
