package affinity

import (
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestImplies(t *testing.T) {
	a, b, c := in("a", "Exists"), in("b", "Exists"), in("c", "Exists")
	for _, tt := range []struct {
		name            string
		existing, other *corev1.NodeSelector
		want            bool
	}{
		{"nothing required", nil, nil, true},
		{"no annotation", selector(expressions(a)), nil, true},
		{"no affinity", nil, selector(expressions(a)), false},
		{"equal", selector(expressions(a)), selector(expressions(a)), true},
		{"more requirements, another order", selector(expressions(b, c, a)), selector(expressions(a, b)), true},
		{"fewer requirements", selector(expressions(a)), selector(expressions(a, b)), false},
		{"each term one of them", selector(expressions(a, c), expressions(b)), selector(expressions(a), expressions(b)), true},
		{"a term without", selector(expressions(a), expressions(c)), selector(expressions(a)), false},
		{"an empty term matches no node", selector(expressions(a), corev1.NodeSelectorTerm{}), selector(expressions(a)), true},
		{"another value", selector(expressions(in("a", "In", "x"))), selector(expressions(in("a", "In", "y"))), false},
		{"another operator", selector(expressions(in("a", "In", "x"))), selector(expressions(in("a", "NotIn", "x"))), false},
		{"fields", selector(nodeField("In", "host1")), selector(nodeField("In", "host1")), true},
		{"a label for a field", selector(expressions(in("metadata.name", "In", "host1"))), selector(nodeField("In", "host1")), false},
		{"too many terms", selector(repeat(257, expressions(a))...), selector(expressions(a)), false},
		{"too many requirements", selector(expressions(slices.Repeat([]corev1.NodeSelectorRequirement{a}, 8193)...)), selector(expressions(a)), false},
	} {
		if got := Implies(tt.existing, tt.other); got != tt.want {
			t.Errorf("%s: Implies = %t; want %t", tt.name, got, tt.want)
		}
	}
}

// TestImpliesProperty: a node that matches a selector matches what the selector implies, and what And returns implies
// both.
func TestImpliesProperty(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	implied := 0
	for range 5000 {
		existing, other := randomSelector(r, false), randomSelector(r, true)
		if Implies(existing, other) {
			implied++
			for range 10 {
				if node := randomNode(r); oracle(existing, node) && !oracle(other, node) {
					t.Fatalf("%+v implies %+v, but node %v matches the first only", existing, other, node.Labels)
				}
			}
		}
		product, err := And(existing, other)
		if err != nil {
			t.Fatal(err)
		}
		if !Implies(product, other) || !Implies(product, existing) {
			t.Fatalf("And(%+v, %+v) = %+v does not imply both", existing, other, product)
		}
	}
	if implied < 50 {
		t.Errorf("%d of 5000 imply: the test has lost its meaning", implied)
	}
}
