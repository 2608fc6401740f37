package affinity

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// in returns one requirement.
func in(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: operator, Values: values}
}

// expressions returns a term with expressions.
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
	{"JSON with escaped slashes", `{"nodeSelectorTerms":[{"matchExpressions":[{"key":"example.com\/a","operator":"In","values":["\u0062"]}]}]}`,
		selector(expressions(in("example.com/a", "In", "b")))},
	{"JSON with a line break before a colon", "{\"nodeSelectorTerms\"\n:[{\"matchExpressions\":[{\"key\":\"a\",\"operator\":\"Exists\"}]}]}",
		selector(expressions(in("a", "Exists")))},
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
	{"empty", "", []string{
		"is empty; write a NodeSelector with nodeSelectorTerms, or remove the annotation",
	}},
	{"blank", " \n\n", []string{
		"is empty; write a NodeSelector with nodeSelectorTerms, or remove the annotation",
	}},
	{"comment only", "# nothing\n", []string{
		"is empty; write a NodeSelector with nodeSelectorTerms, or remove the annotation",
	}},
	{"null", "null", []string{
		"is empty or null; write a NodeSelector with nodeSelectorTerms, or remove the annotation",
	}},
	{"tilde", "~", []string{
		"is empty or null; write a NodeSelector with nodeSelectorTerms, or remove the annotation",
	}},
	{"text", "disk=ssd", []string{
		`line 1, column 1: is the string "disk=ssd"; write a map with nodeSelectorTerms`,
	}},
	{"list", "[]", []string{
		"line 1, column 1: is a list; write a map with nodeSelectorTerms",
	}},
	{"not YAML", "nodeSelectorTerms:\n- matchExpressions: [{key: a\n", []string{
		"line 2: is neither JSON nor YAML: did not find expected ',' or '}'; correct it",
	}},
	{"bad indentation", "nodeSelectorTerms:\n- matchExpressions:\n   - key: a\n  - key: b\n", []string{
		"line 2: is neither JSON nor YAML: did not find expected key; correct it",
	}},
	{"not UTF-8", "nodeSelectorTerms: \xff", []string{
		"is not UTF-8; write it in UTF-8",
	}},
	{"control character", "nodeSelectorTerms: \x01", []string{
		"line 1: is neither JSON nor YAML: control characters are not allowed; correct it",
	}},
	{"JSON with trailing text", `{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Exists"}]}]} x`, []string{
		"line 1: is neither JSON nor YAML: did not find expected <document start>; correct it",
	}},
	{"JSON with trailing brace", `{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Exists"}]}]}}`, []string{
		"line 1: is neither JSON nor YAML: did not find expected <document start>; correct it",
	}},
	{"two JSON values", `{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Exists"}]}]}` + "\n{}", []string{
		"line 2: is neither JSON nor YAML: did not find expected <document start>; correct it",
	}},
	{"two documents", one("key: a, operator: Exists") + "\n---\n" + one("key: a, operator: Exists"), []string{
		"line 3, column 1: has a second document; write one",
	}},
	{"broken second document", one("key: a, operator: Exists") + "\n---\n[", []string{
		"line 3: is neither JSON nor YAML: did not find expected node content; correct it",
	}},
	{"16 KiB and 1", one("key: a, operator: Exists") + strings.Repeat("\n", 16<<10+1-len(one("key: a, operator: Exists"))), []string{
		"has 16385 bytes, more than 16384; shorten it",
	}},
	{"257 terms", "nodeSelectorTerms:\n" + strings.Repeat("- matchExpressions: [{key: a, operator: Exists}]\n", 257), []string{
		"line 2, column 1: nodeSelectorTerms: has 257 terms, more than 256; write fewer",
	}},
	{"no terms field", "{}", []string{
		"line 1, column 1: nodeSelectorTerms: is missing; write at least one term",
	}},
	{"null terms", "nodeSelectorTerms:", []string{
		"line 1, column 19: nodeSelectorTerms: is an empty list, which matches no node; write at least one term",
	}},
	{"empty list of terms", "nodeSelectorTerms: []", []string{
		"line 1, column 20: nodeSelectorTerms: is an empty list, which matches no node; write at least one term",
	}},
	{"terms as a map", "nodeSelectorTerms: {matchExpressions: []}", []string{
		"line 1, column 20: nodeSelectorTerms: is a map; write a list",
	}},
	{"null term", "nodeSelectorTerms: [null, {matchExpressions: [{key: a, operator: Exists}]}]", []string{
		"line 1, column 21: nodeSelectorTerms[0]: is null, which matches no node; write matchExpressions or matchFields, or remove the term",
	}},
	{"empty term", "nodeSelectorTerms:\n- {}\n- {matchExpressions: [], matchFields: null}", []string{
		"line 2, column 3: nodeSelectorTerms[0]: is empty, which matches no node; write matchExpressions or matchFields, or remove the term",
		"line 3, column 3: nodeSelectorTerms[1]: is empty, which matches no node; write matchExpressions or matchFields, or remove the term",
	}},
	{"null requirement", "nodeSelectorTerms: [{matchExpressions: [null]}]", []string{
		"line 1, column 41: nodeSelectorTerms[0].matchExpressions[0]: is null; write a map with key, operator, values",
	}},
	{"empty requirement", one(""), []string{
		"line 1, column 41: nodeSelectorTerms[0].matchExpressions[0].key: is missing; write the key of a label",
		"line 1, column 41: nodeSelectorTerms[0].matchExpressions[0].operator: is missing; write one of In, NotIn, Exists, DoesNotExist, Gt, Lt",
	}},
	{"unknown fields", "matchExpressions: []\nNodeSelectorTerms: []\nnodeSelectorTerms: [{matchLabels: {a: b}, matchExpressions: [{key: a, operator: Exists, value: b}]}]", []string{
		"line 1, column 1: matchExpressions: is no field; remove it; the fields here are nodeSelectorTerms",
		"line 2, column 1: NodeSelectorTerms: is no field; write nodeSelectorTerms",
		"line 3, column 22: nodeSelectorTerms[0].matchLabels: is no field; remove it; the fields here are matchExpressions, matchFields",
		"line 3, column 89: nodeSelectorTerms[0].matchExpressions[0].value: is no field; remove it; the fields here are key, operator, values",
	}},
	{"duplicate keys", "nodeSelectorTerms: []\nnodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists, key: b}]}]", []string{
		"line 1, column 20: nodeSelectorTerms: is an empty list, which matches no node; write at least one term",
		"line 2, column 1: nodeSelectorTerms: is there twice, first in line 1; remove one",
	}},
	{"duplicate keys below", "nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists, key: b}]}]", []string{
		"line 1, column 68: nodeSelectorTerms[0].matchExpressions[0].key: is there twice, first in line 1; remove one",
	}},
	{"key as an alias", one("key: &k key, *k : a, operator: Exists"), []string{
		"line 1, column 47: has the anchor &k; write the value itself",
		"line 1, column 55: has the alias *k; write the value itself",
	}},
	{"alias and anchor", "nodeSelectorTerms: [&t {matchExpressions: [{key: &k a, operator: In, values: [*k]}]}, *t]", []string{
		"line 1, column 21: has the anchor &t; write the value itself",
		"line 1, column 50: has the anchor &k; write the value itself",
		"line 1, column 79: has the alias *k; write the value itself",
		"line 1, column 87: has the alias *t; write the value itself",
	}},
	{"alias without anchor", "nodeSelectorTerms: *t", []string{
		"line 1: is neither JSON nor YAML: unknown anchor 't' referenced; correct it",
	}},
	{"merge key", "nodeSelectorTerms:\n- &t {matchExpressions: [{key: a, operator: Exists}]}\n- <<: *t\n", []string{
		"line 2, column 3: has the anchor &t; write the value itself",
		"line 3, column 3: has a merge key; write the fields themselves",
		"line 3, column 7: has the alias *t; write the value itself",
	}},
	{"merge key of a map", one("<<: {key: a}, operator: Exists"), []string{
		"line 1, column 42: has a merge key; write the fields themselves",
	}},
	{"tags", "nodeSelectorTerms: [{matchExpressions: [{key: !!str a, operator: !x Exists}]}]", []string{
		"line 1, column 47: has the tag !!str; write the value itself",
		"line 1, column 66: has the tag !x; write the value itself",
	}},
	{"wrong operator", one("key: a, operator: Equals, values: [b]"), []string{
		`line 1, column 60: nodeSelectorTerms[0].matchExpressions[0].operator: is "Equals"; write one of In, NotIn, Exists, DoesNotExist, Gt, Lt`,
	}},
	{"operator in lower case", one("key: a, operator: in, values: [b]"), []string{
		`line 1, column 60: nodeSelectorTerms[0].matchExpressions[0].operator: is "in"; write In`,
	}},
	{"operator null", one("key: a, operator: null, values: [b]"), []string{
		"line 1, column 60: nodeSelectorTerms[0].matchExpressions[0].operator: is null; write a string",
	}},
	{"In without values", one("key: a, operator: In"), []string{
		"line 1, column 41: nodeSelectorTerms[0].matchExpressions[0].values: is empty, but the operator is In; write at least one value",
	}},
	{"NotIn with an empty list", one("key: a, operator: NotIn, values: []"), []string{
		"line 1, column 75: nodeSelectorTerms[0].matchExpressions[0].values: is empty, but the operator is NotIn; write at least one value",
	}},
	{"Exists with values", one("key: a, operator: Exists, values: [b]"), []string{
		"line 1, column 76: nodeSelectorTerms[0].matchExpressions[0].values: has values, but the operator is Exists; remove them",
	}},
	{"DoesNotExist with an empty value", one("key: a, operator: DoesNotExist, values: ['']"), []string{
		"line 1, column 82: nodeSelectorTerms[0].matchExpressions[0].values: has values, but the operator is DoesNotExist; remove them",
	}},
	{"Gt with two values", one(`key: a, operator: Gt, values: ["1", "2"]`), []string{
		"line 1, column 72: nodeSelectorTerms[0].matchExpressions[0].values: has 2 values, but the operator is Gt; write one integer in quotes",
	}},
	{"Gt without values", one("key: a, operator: Gt"), []string{
		"line 1, column 41: nodeSelectorTerms[0].matchExpressions[0].values: has 0 values, but the operator is Gt; write one integer in quotes",
	}},
	{"Lt without an integer", one("key: a, operator: Lt, values: ['1.5']"), []string{
		`line 1, column 73: nodeSelectorTerms[0].matchExpressions[0].values[0]: is "1.5", not an integer of 64 bits; write one`,
	}},
	{"Gt beyond 64 bits", one("key: a, operator: Gt, values: ['9223372036854775808']"), []string{
		`line 1, column 73: nodeSelectorTerms[0].matchExpressions[0].values[0]: is "9223372036854775808", not an integer of 64 bits; write one`,
	}},
	{"Gt negative", one("key: a, operator: Gt, values: ['-1']"), []string{
		`line 1, column 73: nodeSelectorTerms[0].matchExpressions[0].values[0]: is "-1", not the value of a label; write at most 63 letters, digits, -, _ and ., first and last a letter or digit`,
	}},
	{"values without quotes", one("key: a, operator: In, values: [5, true, 2026-01-01, 1.5, null, yes, {}, []]"), []string{
		"line 1, column 73: nodeSelectorTerms[0].matchExpressions[0].values[0]: is the number 5 and not a string; put it in quotes",
		"line 1, column 76: nodeSelectorTerms[0].matchExpressions[0].values[1]: is the boolean true and not a string; put it in quotes",
		"line 1, column 82: nodeSelectorTerms[0].matchExpressions[0].values[2]: is the date 2026-01-01 and not a string; put it in quotes",
		"line 1, column 94: nodeSelectorTerms[0].matchExpressions[0].values[3]: is the number 1.5 and not a string; put it in quotes",
		"line 1, column 99: nodeSelectorTerms[0].matchExpressions[0].values[4]: is null; write a string",
		"line 1, column 105: nodeSelectorTerms[0].matchExpressions[0].values[5]: is the boolean yes and not a string; put it in quotes",
		"line 1, column 110: nodeSelectorTerms[0].matchExpressions[0].values[6]: is a map; write a string",
		"line 1, column 114: nodeSelectorTerms[0].matchExpressions[0].values[7]: is a list; write a string",
	}},
	{"values as a string", one("key: a, operator: In, values: b"), []string{
		`line 1, column 72: nodeSelectorTerms[0].matchExpressions[0].values: is the string "b"; write a list`,
	}},
	{"invalid key", one(`key: "a b", operator: Exists`), []string{
		`line 1, column 47: nodeSelectorTerms[0].matchExpressions[0].key: is "a b", not the key of a label; write at most 63 letters, digits, -, _ and ., first and last a letter or digit, after a DNS name and / or without`,
	}},
	{"empty key", one(`key: "", operator: Exists`), []string{
		`line 1, column 47: nodeSelectorTerms[0].matchExpressions[0].key: is "", not the key of a label; write at most 63 letters, digits, -, _ and ., first and last a letter or digit, after a DNS name and / or without`,
	}},
	{"key as a number", one(`key: 5, operator: Exists`), []string{
		"line 1, column 47: nodeSelectorTerms[0].matchExpressions[0].key: is the number 5 and not a string; put it in quotes",
	}},
	{"invalid value", one(`key: a, operator: In, values: [b, "c d\n", ` + strings.Repeat("x", 64) + `]`), []string{
		`line 1, column 76: nodeSelectorTerms[0].matchExpressions[0].values[1]: is "c d\n", not the value of a label; write at most 63 letters, digits, -, _ and ., first and last a letter or digit`,
		`line 1, column 85: nodeSelectorTerms[0].matchExpressions[0].values[2]: is "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", not the value of a label; write at most 63 letters, digits, -, _ and ., first and last a letter or digit`,
	}},
	{"number as a key", "5: a\nnodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]", []string{
		"line 1, column 1: has a key that is the number 5; the fields are nodeSelectorTerms",
	}},
	{"field", "nodeSelectorTerms: [{matchFields: [{key: metadata.uid, operator: In, values: [a]}]}]", []string{
		`line 1, column 42: nodeSelectorTerms[0].matchFields[0].key: is "metadata.uid"; write metadata.name, or use matchExpressions for labels`,
	}},
	{"field's operator", "nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: Exists}]}]", []string{
		`line 1, column 67: nodeSelectorTerms[0].matchFields[0].operator: is "Exists"; write one of In, NotIn`,
	}},
	{"field with two values", "nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [a, b]}]}]", []string{
		"line 1, column 79: nodeSelectorTerms[0].matchFields[0].values: has 2 values; write one name",
	}},
	{"field with an invalid value", "nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [A_]}]}]", []string{
		`line 1, column 80: nodeSelectorTerms[0].matchFields[0].values[0]: is "A_", not the name of a node; write the name of a Node`,
	}},
	{"many problems", "nodeSelectorTerms:\n- {}\n- {}\n- {}\n- {}\n- {}\n", []string{
		"line 2, column 3: nodeSelectorTerms[0]: is empty, which matches no node; write matchExpressions or matchFields, or remove the term",
		"line 3, column 3: nodeSelectorTerms[1]: is empty, which matches no node; write matchExpressions or matchFields, or remove the term",
		"line 4, column 3: nodeSelectorTerms[2]: is empty, which matches no node; write matchExpressions or matchFields, or remove the term",
		"line 5, column 3: nodeSelectorTerms[3]: is empty, which matches no node; write matchExpressions or matchFields, or remove the term",
		"line 6, column 3: nodeSelectorTerms[4]: is empty, which matches no node; write matchExpressions or matchFields, or remove the term",
	}},
	{"long texts", one("key: " + strings.Repeat("k", 4000) + ", operator: " + strings.Repeat("o", 4000) + ", values: [" + strings.Repeat("v", 4000) + "]"), []string{
		`line 1, column 47: nodeSelectorTerms[0].matchExpressions[0].key: is "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk\u2026", not the key of a label; write at most 63 letters, digits, -, _ and ., first and last a letter or digit, after a DNS name and / or without`,
		`line 1, column 4059: nodeSelectorTerms[0].matchExpressions[0].operator: is "ooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooo\u2026"; write one of In, NotIn, Exists, DoesNotExist, Gt, Lt`,
		`line 1, column 8070: nodeSelectorTerms[0].matchExpressions[0].values[0]: is "vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv\u2026", not the value of a label; write at most 63 letters, digits, -, _ and ., first and last a letter or digit`,
	}},
	{"deep", strings.Repeat("[", 16<<10), []string{
		"line 1: is neither JSON nor YAML: exceeded max depth of 10000; correct it",
	}},
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

// FuzzParseAnnotation: the parser does not panic, what it accepts is bounded and valid for Kubernetes' own parser, and an
// error has problems in one line each.
func FuzzParseAnnotation(f *testing.F) {
	for _, tt := range annotations {
		f.Add(tt.text)
	}
	for _, tt := range badAnnotations {
		f.Add(tt.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := ParseAnnotation(text); err != nil {
			wantProblems(t, s, err)
		} else {
			wantValid(t, text, s)
		}
	})
}

// wantProblems checks an error of ParseAnnotation.
func wantProblems(t *testing.T, s *corev1.NodeSelector, err error) {
	t.Helper()
	var problems *AnnotationError
	if s != nil || !errors.As(err, &problems) || len(problems.Problems) == 0 {
		t.Fatalf("ParseAnnotation = %v, %v; want an AnnotationError with problems", s, err)
	}
	for _, p := range append(problems.Problems, Problem{Message: err.Error()}) {
		if strings.ContainsFunc(p.String(), func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("problem %q is not one line of text", p)
		}
		if strings.Contains(p.String(), laterRule) {
			t.Errorf("problem %q was found by Kubernetes' parser only", p)
		}
	}
	if len(err.Error()) > 1000 {
		t.Errorf("Error() has %d bytes; want at most 1000", len(err.Error()))
	}
}

// wantValid checks a selector that ParseAnnotation returned for a text.
func wantValid(t *testing.T, text string, s *corev1.NodeSelector) {
	t.Helper()
	if _, err := nodeaffinity.NewNodeSelector(s); err != nil {
		t.Errorf("Kubernetes' parser: %v", err)
	}
	if len(text) > MaxAnnotation || len(s.NodeSelectorTerms) == 0 || len(s.NodeSelectorTerms) > MaxTerms {
		t.Errorf("%d bytes and %d terms were accepted", len(text), len(s.NodeSelectorTerms))
	}
	for i, term := range s.NodeSelectorTerms {
		if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
			t.Errorf("term %d is empty", i)
		}
	}
	// What is accepted is accepted in the spelling of the API too, with the same meaning.
	js, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if len(js) > MaxAnnotation {
		return
	}
	again, err := ParseAnnotation(string(js))
	if err != nil {
		t.Fatalf("as JSON: %v", err)
	}
	if diff := cmp.Diff(s, again); diff != "" {
		t.Errorf("as JSON (-want +got):\n%s", diff)
	}
}
