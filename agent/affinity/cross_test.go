package affinity

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

func TestAnd(t *testing.T) {
	a, b, c, d := in("a", "Exists"), in("b", "Exists"), in("c", "Exists"), in("d", "Exists")
	for _, tt := range []struct {
		name                       string
		existing, annotation, want *corev1.NodeSelector
		err                        string
	}{
		{"neither", nil, nil, nil, ""},
		{"annotation only", nil, selector(expressions(a)), selector(expressions(a)), ""},
		{"affinity only", selector(expressions(a)), nil, selector(expressions(a)), ""},
		{"one with one", selector(expressions(a)), selector(expressions(b)), selector(expressions(a, b)), ""},
		{"two with two", selector(expressions(a), expressions(b)), selector(expressions(c), expressions(d)),
			selector(expressions(a, c), expressions(a, d), expressions(b, c), expressions(b, d)), ""},
		{"equal requirements once", selector(expressions(a, b)), selector(expressions(b)), selector(expressions(a, b)), ""},
		{"two names stay two", selector(nodeField("In", "host1")), selector(nodeField("In", "host2")),
			selector(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
				in("metadata.name", "In", "host1"), in("metadata.name", "In", "host2")}}), ""},
		{"empty term among others", selector(corev1.NodeSelectorTerm{}, expressions(a)), selector(expressions(b)), selector(expressions(a, b)), ""},
		{"only empty terms match no node", selector(corev1.NodeSelectorTerm{}), selector(expressions(b)), selector(corev1.NodeSelectorTerm{}), ""},
		{"an empty list is refused by the API server", selector(), selector(expressions(b)), selector(), ""},
		{"256", selector(repeat(16, expressions(a))...), selector(repeat(16, expressions(b))...), selector(repeat(256, expressions(a, b))...), ""},
		{"257", selector(repeat(257, expressions(a))...), selector(expressions(b)), nil,
			"add annotation evictd.io/required-during-execution to the pod's node affinity: 257 terms with 1 terms make 257, more than 256; use fewer terms"},
		{"too long", selector(expressions(slices.Repeat([]corev1.NodeSelectorRequirement{a}, 32)...)), selector(repeat(256, expressions(b))...), nil,
			"add annotation evictd.io/required-during-execution to the pod's node affinity: the result has 8448 requirements, more than 8192; use fewer terms or requirements"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			existing, annotation := tt.existing.DeepCopy(), tt.annotation.DeepCopy()
			got, err := And(existing, annotation)
			if tt.err != "" {
				if err == nil || err.Error() != tt.err || got != nil {
					t.Fatalf("And = %v, %v; want %s", got, err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got != nil {
				for _, term := range got.NodeSelectorTerms {
					for i := range term.MatchExpressions {
						term.MatchExpressions[i].Key = "changed"
					}
				}
			}
			if diff := cmp.Diff([]*corev1.NodeSelector{tt.existing, tt.annotation}, []*corev1.NodeSelector{existing, annotation}); diff != "" {
				t.Errorf("the result shares memory with the arguments (-want +got):\n%s", diff)
			}
		})
	}
}

// The keys and values of random selectors and nodes: few, so that a good part of them match.
var (
	someKeys   = []string{"a", "b", "example.com/c"}
	someValues = []string{"1", "2", "10", "x", ""}
	someNames  = []string{"host1", "host2", "host3"}
)

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func randomNode(r *rand.Rand) *corev1.Node {
	n := newNode(pick(r, someNames))
	for _, key := range someKeys {
		if r.IntN(3) > 0 {
			n.Labels[key] = pick(r, someValues)
		}
	}
	return n
}

// randomSelector returns a selector of one to three terms; unless it is valid, with empty terms and with requirements
// that can't be read.
func randomSelector(r *rand.Rand, valid bool) *corev1.NodeSelector {
	s := &corev1.NodeSelector{}
	for range 1 + r.IntN(3) {
		var t corev1.NodeSelectorTerm
		for range r.IntN(3) {
			t.MatchExpressions = append(t.MatchExpressions, randomRequirement(r, valid))
		}
		for range r.IntN(5) / 3 {
			t.MatchFields = append(t.MatchFields, in("metadata.name", pick(r, []corev1.NodeSelectorOperator{"In", "NotIn"}), pick(r, someNames)))
		}
		if valid && len(t.MatchExpressions)+len(t.MatchFields) == 0 {
			t.MatchExpressions = []corev1.NodeSelectorRequirement{randomRequirement(r, valid)}
		}
		s.NodeSelectorTerms = append(s.NodeSelectorTerms, t)
	}
	return s
}

func randomRequirement(r *rand.Rand, valid bool) corev1.NodeSelectorRequirement {
	key := pick(r, someKeys)
	if !valid && r.IntN(8) == 0 {
		return in(key, "Gt", "x")
	}
	switch op := pick(r, []corev1.NodeSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"}); op {
	case "In", "NotIn":
		q := in(key, op)
		for range 1 + r.IntN(3) {
			q.Values = append(q.Values, pick(r, someValues))
		}
		return q
	case "Gt", "Lt":
		return in(key, op, pick(r, []string{"1", "2", "9"}))
	default:
		return in(key, op)
	}
}

// oracle is what Kubernetes says about a selector.
func oracle(s *corev1.NodeSelector, node *corev1.Node) bool {
	ok, _ := nodeaffinity.NewLazyErrorNodeSelector(s).Match(node)
	return ok
}

// TestAndProperty: the result matches a node exactly when both selectors do.
func TestAndProperty(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	matches := 0
	for range 3000 {
		existing, annotation := randomSelector(r, false), randomSelector(r, true)
		product, err := And(existing, annotation)
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			node := randomNode(r)
			want := oracle(existing, node) && oracle(annotation, node)
			if got := oracle(product, node); got != want {
				t.Fatalf("And(%+v, %+v) = %+v matches %s %v = %t; want %t", existing, annotation, product, node.Name, node.Labels, got, want)
			}
			if want {
				matches++
			}
		}
	}
	if matches < 1000 || matches > 29000 {
		t.Errorf("%d of 30000 match: the test has lost its meaning", matches)
	}
}

// TestOrderProperty: the order of terms, requirements and values does not change a verdict, and Match, Matches and
// Violates agree with Kubernetes.
func TestOrderProperty(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		affinity, annotation := randomSelector(r, false), randomSelector(r, true)
		one := newRequirement(t, newPod(t, nil, affinity, annotation))
		other := newRequirement(t, newPod(t, nil, shuffled(r, affinity), shuffled(r, annotation)))
		for range 5 {
			node := randomNode(r)
			want := oracle(affinity, node) && oracle(annotation, node)
			a, b := one.Match(node), other.Match(node)
			if a.Match != want || b.Match != want || one.Matches(node) != want {
				t.Fatalf("%+v and %+v on %v: Match = %t, shuffled %t; want %t", affinity, annotation, node.Labels, a.Match, b.Match, want)
			}
			if len(a.Reasons) != len(b.Reasons) || want != (len(a.Reasons) == 0) {
				t.Fatalf("%d reasons, shuffled %d, for a match of %t", len(a.Reasons), len(b.Reasons), want)
			}
			if diff := cmp.Diff(withoutPlaces(a.Reasons), withoutPlaces(b.Reasons)); diff != "" {
				t.Fatalf("the reasons depend on the order:\n%s", diff)
			}
			nameless := randomNode(r)
			nameless.Name = ""
			if got, want := one.MatchesExecution(nameless), oracle(annotation, nameless); got != want {
				t.Fatalf("%+v on a node without a name, %v: MatchesExecution = %t; want %t", annotation, nameless.Labels, got, want)
			}
			v := one.Violates(node, false)
			if v.Match != oracle(annotation, node) || v.Match != (len(v.Reasons) == 0) {
				t.Fatalf("%+v on %v: Violates = %+v", annotation, node.Labels, v)
			}
		}
	}
}

func shuffled(r *rand.Rand, s *corev1.NodeSelector) *corev1.NodeSelector {
	s = s.DeepCopy()
	shuffle(r, s.NodeSelectorTerms)
	for _, t := range s.NodeSelectorTerms {
		shuffle(r, t.MatchExpressions)
		shuffle(r, t.MatchFields)
		for _, q := range t.MatchExpressions {
			shuffle(r, q.Values)
		}
	}
	return s
}

func shuffle[T any](r *rand.Rand, s []T) {
	r.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
}

// withoutPlaces returns what the reasons say about the node, sorted.
func withoutPlaces(reasons []Reason) []string {
	var out []string
	for _, r := range reasons {
		slices.Sort(r.Values)
		out = append(out, strings.Join([]string{r.Source, r.Key, string(r.Operator), strings.Join(r.Values, ","), r.Value}, " "))
	}
	slices.Sort(out)
	return out
}
