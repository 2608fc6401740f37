package affinity

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// in returns one requirement.
func in(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: operator, Values: values}
}

// labels returns a term with expressions.
func expressions(q ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: q}
}

func selector(terms ...corev1.NodeSelectorTerm) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: terms}
}

var annotations = []struct {
	name, text string
	want       *corev1.NodeSelector
}{
	{"YAML", "nodeSelectorTerms:\n- matchExpressions:\n  - {key: example.com/licence, operator: In, values: [valid]}\n",
		selector(expressions(in("example.com/licence", "In", "valid")))},
	{"JSON", `{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"NotIn","values":["b","c"]}]}]}`,
		selector(expressions(in("a", "NotIn", "b", "c")))},
	{"JSON with tabs", "{\n\t\"nodeSelectorTerms\": [\n\t\t{\"matchExpressions\": [{\"key\": \"a\", \"operator\": \"Exists\"}]}\n\t]\n}\n",
		selector(expressions(in("a", "Exists")))},
	{"all operators", `nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In, values: [""]}, {key: b, operator: NotIn, values: ["yes"]},
  {key: c, operator: Exists, values: []}, {key: d, operator: DoesNotExist, values: null}, {key: e, operator: Gt, values: ["5"]}, {key: f, operator: Lt, values: ['007']}]}]`,
		selector(expressions(in("a", "In", ""), in("b", "NotIn", "yes"), in("c", "Exists"), in("d", "DoesNotExist"), in("e", "Gt", "5"), in("f", "Lt", "007")))},
	{"fields", "nodeSelectorTerms:\n- matchFields: [{key: metadata.name, operator: NotIn, values: [host-1.example.com]}]\n  matchExpressions: null\n",
		selector(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{in("metadata.name", "NotIn", "host-1.example.com")}})},
	{"two terms, document marks and a comment", "--- # one\nnodeSelectorTerms:\n- matchExpressions: [{key: a, operator: Exists}]\n- matchExpressions: [{key: b, operator: Exists}]\n...\n",
		selector(expressions(in("a", "Exists")), expressions(in("b", "Exists")))},
	{"256 terms", "nodeSelectorTerms:\n" + strings.Repeat("- matchExpressions: [{key: a, operator: Exists}]\n", 256),
		selector(repeat(256, expressions(in("a", "Exists")))...)},
}

func repeat(n int, term corev1.NodeSelectorTerm) []corev1.NodeSelectorTerm {
	var out []corev1.NodeSelectorTerm
	for range n {
		out = append(out, term)
	}
	return out
}

func TestParseAnnotation(t *testing.T) {
	for _, tt := range annotations {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseAnnotation(tt.text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// one returns an annotation with one expression in flow style.
func one(expression string) string {
	return "nodeSelectorTerms: [{matchExpressions: [{" + expression + "}]}]"
}

var badAnnotations = []struct {
	name, text string
	want       []string // the problems
}{
	{"empty", "", []string{"is empty; write a NodeSelector with nodeSelectorTerms, or remove the annotation"}},
}

func TestParseAnnotationProblems(t *testing.T) {
	for _, tt := range badAnnotations {
		t.Run(tt.name, func(t *testing.T) {
			s, err := ParseAnnotation(tt.text)
			var problems *AnnotationError
			if s != nil || !errors.As(err, &problems) {
				t.Fatalf("ParseAnnotation = %v, %v; want an AnnotationError", s, err)
			}
			var got []string
			for _, p := range problems.Problems {
				got = append(got, p.String())
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if text := err.Error(); len(text) > 1000 || strings.ContainsAny(text, "\n\r") {
				t.Errorf("Error() = %q, %d bytes; want one line of at most 1000 bytes", text, len(text))
			}
		})
	}
}

var _ = fmt.Sprint
var _ = nodeaffinity.NewNodeSelector
