package affinity

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// newNode returns a node with labels in pairs.
func newNode(name string, labels ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for i := 0; i < len(labels); i += 2 {
		n.Labels[labels[i]] = labels[i+1]
	}
	return n
}

// newPod returns a pod; a nil selector is none.
func newPod(t testing.TB, nodeSelector map[string]string, affinity, annotation *corev1.NodeSelector) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{}
	p.Spec.NodeSelector = nodeSelector
	if affinity != nil {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: affinity}}
	}
	if annotation != nil {
		text, err := json.Marshal(annotation)
		if err != nil {
			t.Fatal(err)
		}
		p.Annotations = map[string]string{Annotation: string(text)}
	}
	return p
}

func newRequirement(t testing.TB, pod *corev1.Pod) *Requirement {
	t.Helper()
	r, err := NewSchedulingRequirement(pod)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// nodeField returns a term with one field.
func nodeField(operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{in("metadata.name", operator, values...)}}
}

// TestOneRequirement is the truth table of one requirement. Each row is put to the annotation, to the affinity and to
// Kubernetes.
func TestOneRequirement(t *testing.T) {
	with := func(value string) *corev1.Node { return newNode("host1", "k", value) }
	without := newNode("host1", "other", "a")
	for _, tt := range []struct {
		term    corev1.NodeSelectorTerm
		node    *corev1.Node
		want    bool
		message string
	}{
		{expressions(in("k", "In", "a", "b")), with("b"), true, ""},
		{expressions(in("k", "In", "a", "b")), with("c"), false, `requires k In [a, b]; the node's label is "c"`},
		{expressions(in("k", "In", "a")), without, false, "requires k In [a]; the node has no such label"},
		{expressions(in("k", "In", "")), with(""), true, ""},
		{expressions(in("k", "In", "")), without, false, `requires k In [""]; the node has no such label`},
		{expressions(in("k", "In", "A")), with("a"), false, `requires k In [A]; the node's label is "a"`},
		{expressions(in("k", "NotIn", "a", "b")), with("b"), false, `requires k NotIn [a, b]; the node's label is "b"`},
		{expressions(in("k", "NotIn", "a")), with("c"), true, ""},
		{expressions(in("k", "NotIn", "a")), without, true, ""},
		{expressions(in("k", "Exists")), with(""), true, ""},
		{expressions(in("k", "Exists")), without, false, "requires k Exists; the node has no such label"},
		{expressions(in("k", "DoesNotExist")), with(""), false, `requires k DoesNotExist; the node's label is ""`},
		{expressions(in("k", "DoesNotExist")), without, true, ""},
		{expressions(in("k", "Gt", "5")), with("6"), true, ""},
		{expressions(in("k", "Gt", "5")), with("5"), false, `requires k Gt [5]; the node's label is "5"`},
		{expressions(in("k", "Gt", "5")), with("10"), true, ""},
		{expressions(in("k", "Gt", "5")), with("ten"), false, `requires k Gt [5]; the node's label is "ten"`},
		{expressions(in("k", "Gt", "5")), without, false, "requires k Gt [5]; the node has no such label"},
		{expressions(in("k", "Gt", "5")), with("9223372036854775808"), false, `requires k Gt [5]; the node's label is "9223372036854775808"`},
		{expressions(in("k", "Lt", "5")), with("4"), true, ""},
		{expressions(in("k", "Lt", "5")), with("5"), false, `requires k Lt [5]; the node's label is "5"`},
		{expressions(in("k", "Lt", "5")), without, false, "requires k Lt [5]; the node has no such label"},
		{nodeField("In", "host1"), without, true, ""},
		{nodeField("In", "host2"), without, false, `requires metadata.name In [host2]; the node's field is "host1"`},
		{nodeField("NotIn", "host1"), without, false, `requires metadata.name NotIn [host1]; the node's field is "host1"`},
		{nodeField("NotIn", "host2"), without, true, ""},
	} {
		s := selector(tt.term)
		oracle, err := nodeaffinity.NewNodeSelector(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := oracle.Match(tt.node); got != tt.want {
			t.Errorf("%v on %v: Kubernetes says %t; want %t", tt.term, tt.node.Labels, got, tt.want)
		}
		for source, pod := range map[string]*corev1.Pod{SourceAnnotation: newPod(t, nil, nil, s), SourceAffinity: newPod(t, nil, s, nil)} {
			r := newRequirement(t, pod)
			want := Verdict{Match: tt.want}
			if !tt.want {
				q := slices.Concat(tt.term.MatchExpressions, tt.term.MatchFields)[0]
				reason := Reason{Source: source, Key: q.Key, Field: len(tt.term.MatchFields) > 0, Operator: q.Operator, Values: q.Values, terms: 1}
				if got := r.Match(tt.node); len(got.Reasons) == 1 && got.Reasons[0].Message() != source+" "+tt.message {
					t.Errorf("%v on %v: message %q; want %q", tt.term, tt.node.Labels, got.Reasons[0].Message(), source+" "+tt.message)
				}
				if reason.Value, reason.Present = tt.node.Labels["k"]; reason.Field {
					reason.Value, reason.Present = "host1", true
				}
				want.Reasons = []Reason{reason}
			}
			if diff := cmp.Diff(want, r.Match(tt.node), cmp.AllowUnexported(Reason{})); diff != "" {
				t.Errorf("%s %v on %v: Match (-want +got):\n%s", source, tt.term, tt.node.Labels, diff)
			}
			if got := r.Matches(tt.node); got != tt.want {
				t.Errorf("%s %v on %v: Matches = %t; want %t", source, tt.term, tt.node.Labels, got, tt.want)
			}
		}
	}
}

// TestMatch is about how the parts of a requirement are combined. A row's want is "" for a match, else the messages of
// Match, and those of Violates without and with the affinity.
func TestMatch(t *testing.T) {
	node := newNode("host1", "disk", "ssd", "zone", "a", "count", "5")
	yes, no := expressions(in("disk", "In", "ssd")), expressions(in("disk", "In", "hdd"))
	invalid := expressions(in("count", "Gt", "x"))
	const noDisk = `disk In [hdd]; the node's label is "ssd"`
	const notValid = `affinity requires count Gt [x], which is not valid and matches no node: ` +
		`nodeSelectorTerms[0].matchExpressions[0].values[0]: Invalid value: "x": for 'Gt', 'Lt' operators, the value must be an integer`
	for _, tt := range []struct {
		name                   string
		nodeSelector           map[string]string
		affinity, annotation   *corev1.NodeSelector
		match, execution, both string
	}{
		{"nothing", nil, nil, nil, "", "", ""},
		{"nodeSelector", map[string]string{"disk": "ssd", "zone": "a"}, nil, nil, "", "", ""},
		{"nodeSelector is never enforced during execution", map[string]string{"disk": "hdd", "zone": "a", "arch": "x"}, nil, nil,
			"nodeSelector requires arch In [x]; the node has no such label\nnodeSelector requires " + noDisk, "", ""},
		{"affinity", nil, selector(no), nil, "affinity requires " + noDisk, "", "affinity requires " + noDisk},
		{"annotation", nil, nil, selector(no), "annotation requires " + noDisk, "annotation requires " + noDisk, "annotation requires " + noDisk},
		{"all", map[string]string{"disk": "hdd"}, selector(no), selector(no),
			"nodeSelector requires " + noDisk + "\naffinity requires " + noDisk + "\nannotation requires " + noDisk,
			"annotation requires " + noDisk, "affinity requires " + noDisk + "\nannotation requires " + noDisk},
		{"affinity matches, annotation does not", nil, selector(yes), selector(no),
			"annotation requires " + noDisk, "annotation requires " + noDisk, "annotation requires " + noDisk},
		{"annotation matches, affinity does not", nil, selector(no), selector(yes), "affinity requires " + noDisk, "", "affinity requires " + noDisk},
		{"terms are ORed", nil, selector(no, yes), selector(yes, no), "", "", ""},
		{"of two lists only that which does not match has reasons", nil, selector(no, yes), selector(no),
			"annotation requires " + noDisk, "annotation requires " + noDisk, "annotation requires " + noDisk},
		{"no term matches", nil, nil, selector(no, nodeField("NotIn", "host1")),
			"annotation term 1 requires " + noDisk + "\nannotation term 2 requires metadata.name NotIn [host1]; the node's field is \"host1\"",
			"annotation term 1 requires " + noDisk + "\nannotation term 2 requires metadata.name NotIn [host1]; the node's field is \"host1\"",
			"annotation term 1 requires " + noDisk + "\nannotation term 2 requires metadata.name NotIn [host1]; the node's field is \"host1\""},
		{"requirements are ANDed", nil, selector(expressions(in("disk", "In", "ssd"), in("zone", "In", "b"))), nil,
			`affinity requires zone In [b]; the node's label is "a"`, "", `affinity requires zone In [b]; the node's label is "a"`},
		{"fields and labels are ANDed", nil, selector(corev1.NodeSelectorTerm{
			MatchExpressions: yes.MatchExpressions, MatchFields: nodeField("In", "host2").MatchFields}), nil,
			`affinity requires metadata.name In [host2]; the node's field is "host1"`, "", `affinity requires metadata.name In [host2]; the node's field is "host1"`},
		{"empty list", nil, selector(), nil, "affinity has no terms and matches no node", "", "affinity has no terms and matches no node"},
		{"empty term", nil, selector(corev1.NodeSelectorTerm{}), nil, "affinity term 1 is empty and matches no node", "", "affinity term 1 is empty and matches no node"},
		{"empty term among others", nil, selector(corev1.NodeSelectorTerm{}, yes), nil, "", "", ""},
		{"a term that can't be read is no violation", nil, selector(invalid), nil, notValid, "", ""},
		{"a term that can't be read beside one that does not match", nil, selector(invalid, no), nil,
			strings.Replace(notValid, "affinity", "affinity term 1", 1) + "\naffinity term 2 requires " + noDisk, "", ""},
		{"a term that can't be read beside one that matches", nil, selector(invalid, yes), nil, "", "", ""},
		{"unknown operator", nil, selector(expressions(in("disk", "in", "ssd"))), nil,
			`affinity requires disk in [ssd], which is not valid and matches no node: nodeSelectorTerms[0].matchExpressions[0].operator: ` +
				`Unsupported value: "in": supported values: "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"`, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := newPod(t, tt.nodeSelector, tt.affinity, tt.annotation)
			r := newRequirement(t, pod)
			for _, m := range []struct {
				name string
				got  Verdict
				want string
			}{
				{"Match", r.Match(node), tt.match}, {"MatchExecution", r.MatchExecution(node), tt.execution},
				{"Violates", r.Violates(node, false), tt.execution}, {"Violates with the affinity", r.Violates(node, true), tt.both},
			} {
				var messages []string
				for _, reason := range m.got.Reasons {
					messages = append(messages, reason.Message())
				}
				if diff := cmp.Diff(m.want, strings.Join(messages, "\n")); diff != "" || m.got.Match != (m.want == "") {
					t.Errorf("%s = %t (-want +got):\n%s", m.name, m.got.Match, diff)
				}
			}
			oracle, _ := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
			if tt.annotation != nil && oracle {
				execution, err := nodeaffinity.NewNodeSelector(tt.annotation)
				if err != nil {
					t.Fatal(err)
				}
				oracle = execution.Match(node)
			}
			if got := r.Matches(node); got != oracle || got != (tt.match == "") {
				t.Errorf("Matches = %t; Kubernetes says %t", got, oracle)
			}
			if got, want := r.MatchesExecution(node), tt.execution == ""; got != want {
				t.Errorf("MatchesExecution = %t; want %t", got, want)
			}
		})
	}
}

func TestNewRequirement(t *testing.T) {
	if r, err := NewRequirement(newPod(t, map[string]string{"a": "b"}, selector(), nil)); r != nil || err != nil {
		t.Errorf("without annotation: NewRequirement = %v, %v; want nil, nil", r, err)
	}
	pod := newPod(t, nil, nil, selector(expressions(in("a", "Exists"))))
	r, err := NewRequirement(pod)
	if err != nil || r.Pod != pod || r.Annotation() == nil {
		t.Errorf("NewRequirement = %v, %v", r, err)
	}
	for _, text := range []string{"", "null", "{}"} {
		pod.Annotations[Annotation] = text
		if r, err := NewRequirement(pod); r != nil || err == nil {
			t.Errorf("annotation %q: NewRequirement = %v, %v; want an error: it is not absent", text, r, err)
		}
	}
	var none *Requirement
	node := newNode("host1")
	if !none.Match(node).Match || !none.Matches(node) || !none.Violates(node, true).Match || none.Annotation() != nil || none.Explain(node) != nil {
		t.Error("a nil requirement restricts")
	}
}

// TestReasonsAreBounded: a hostile affinity makes neither many reasons nor long or broken lines.
func TestReasonsAreBounded(t *testing.T) {
	long := strings.Repeat("é\n", 5000)
	affinity := selector(repeat(40, expressions(in(long, corev1.NodeSelectorOperator(long), long, long)))...)
	affinity.NodeSelectorTerms[0].MatchExpressions[0] = in("k", "In", slices.Repeat([]string{strings.Repeat("v", 60)}, 1000)...)
	pod := newPod(t, nil, affinity, selector(repeat(200, expressions(in("k", "In", "b")))...))
	v := newRequirement(t, pod).Match(newNode("host1", "k", long))
	if len(v.Reasons) != 2*maxReasons {
		t.Errorf("%d reasons; want %d", len(v.Reasons), 2*maxReasons)
	}
	if !strings.Contains(v.Reasons[0].Message(), ", and ") {
		t.Errorf("message %q does not count the other values", v.Reasons[0].Message())
	}
	for _, r := range v.Reasons {
		if len(r.Message()) > maxMessage || strings.ContainsFunc(r.Message(), func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("message %q of %d bytes; want one line of at most %d", r.Message(), len(r.Message()), maxMessage)
		}
	}
	if last := v.Reasons[len(v.Reasons)-1]; last.Source != SourceAnnotation {
		t.Errorf("last reason is of %s; want the annotation's not to be displaced", last.Source)
	}
}

// TestMatchesExecutionAllocates: a filter of 5,000 nodes makes no garbage.
func TestMatchesExecutionAllocates(t *testing.T) {
	s := selector(expressions(in("a", "In", "b"), in("k", "NotIn", "c")), nodeField("In", "host2"), expressions(in("k", "Gt", "5")))
	r := newRequirement(t, newPod(t, nil, nil, s))
	node := newNode("host1", "k", "4")
	if n := testing.AllocsPerRun(100, func() { r.MatchesExecution(node) }); n != 0 {
		t.Errorf("MatchesExecution allocates %g times; want 0", n)
	}
}

func BenchmarkMatches(b *testing.B) {
	nodes := make([]*corev1.Node, 5000)
	for i := range nodes {
		nodes[i] = newNode(fmt.Sprintf("host%d", i), "zone", fmt.Sprint(i%3), "kubernetes.io/arch", "amd64", "example.com/licence", "valid")
	}
	s := selector(expressions(in("zone", "In", "0", "1"), in("kubernetes.io/arch", "Exists")), nodeField("In", "host4999"))
	r := newRequirement(b, newPod(b, map[string]string{"example.com/licence": "valid"}, s, s))
	for _, bench := range []struct {
		name  string
		match func(*corev1.Node) bool
	}{{"all", r.Matches}, {"annotation", r.MatchesExecution}} {
		b.Run(fmt.Sprintf("%s/%d", bench.name, len(nodes)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for _, n := range nodes {
					bench.match(n)
				}
			}
		})
	}
}
