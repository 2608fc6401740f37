package affinity

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// MaxScore is the highest score after normalization.
const MaxScore = 100

// Preferred are the terms of preferredDuringSchedulingIgnoredDuringExecution of a pod.
type Preferred struct {
	terms  []corev1.PreferredSchedulingTerm
	scorer *nodeaffinity.PreferredSchedulingTerms
}

// preferredPath is the path of the preferred terms in a pod.
var preferredPath = field.NewPath("spec", "affinity", "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution")

// NewPreferred returns the preferred terms of a pod. One term that is not valid makes all of them invalid, as for the
// scheduler; the error names the terms.
func NewPreferred(pod *corev1.Pod) (*Preferred, error) {
	p := &Preferred{}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		p.terms = a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}
	for i, t := range p.terms {
		if t.Weight < 1 || t.Weight > 100 {
			return nil, fmt.Errorf("%s.weight: is %d; write 1 to 100", preferredPath.Index(i), t.Weight)
		}
	}
	var err error
	if p.scorer, err = nodeaffinity.NewPreferredSchedulingTerms(p.terms, field.WithPath(preferredPath)); err != nil {
		return nil, fmt.Errorf("%s; correct it", cut(oneLine(err.Error()), maxMessage))
	}
	return p, nil
}

// Score is the preference for a node.
type Score struct {
	Node string
	// Sum is the sum of the weights of the terms that match.
	Sum int64
	// Score is Sum on the scale of 0 to 100 among all nodes, as the scheduler's plugin computes it.
	Score int64
}

// Scores compares the nodes, in their order. They are those that match what the pod requires.
func (p *Preferred) Scores(nodes []*corev1.Node) []Score {
	out := make([]Score, 0, len(nodes))
	var highest int64
	for _, n := range nodes {
		s := Score{Node: n.Name, Sum: p.scorer.Score(n)}
		highest = max(highest, s.Sum)
		out = append(out, s)
	}
	for i := range out {
		if highest > 0 {
			out[i].Score = out[i].Sum * MaxScore / highest
		}
	}
	return out
}

// PreferredCheck is a preferred term, compared with a node.
type PreferredCheck struct {
	Weight int32
	// Match says that the node matches, and gets the weight. An empty term matches none.
	Match bool
	// Requirements are those of the term.
	Requirements []string
}

// Explain compares each term with a node.
func (p *Preferred) Explain(node *corev1.Node) []PreferredCheck {
	var out []PreferredCheck
	for _, t := range p.terms {
		c := PreferredCheck{Weight: t.Weight}
		for _, q := range t.Preference.MatchExpressions {
			c.Requirements = append(c.Requirements, requirementText(q))
		}
		for _, q := range t.Preference.MatchFields {
			c.Requirements = append(c.Requirements, requirementText(q))
		}
		// The whole list is valid, and so is one term of it.
		if one, err := nodeaffinity.NewPreferredSchedulingTerms([]corev1.PreferredSchedulingTerm{t}); err == nil {
			c.Match = one.Score(node) > 0
		}
		out = append(out, c)
	}
	return out
}
