package affinity

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func preferring(terms ...corev1.PreferredSchedulingTerm) *corev1.Pod {
	p := &corev1.Pod{}
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: terms}}
	return p
}

func TestScores(t *testing.T) {
	ssd, zone := expressions(in("disk", "In", "ssd")), expressions(in("zone", "In", "a"), in("disk", "Exists"))
	nodes := []*corev1.Node{newNode("both", "disk", "ssd", "zone", "a"), newNode("one", "disk", "hdd", "zone", "a"), newNode("none")}
	for _, tt := range []struct {
		name string
		pod  *corev1.Pod
		want []Score
	}{
		{"no affinity", &corev1.Pod{}, []Score{{"both", 0, 0}, {"one", 0, 0}, {"none", 0, 0}}},
		{"sums", preferring(corev1.PreferredSchedulingTerm{Weight: 2, Preference: ssd}, corev1.PreferredSchedulingTerm{Weight: 1, Preference: zone}),
			[]Score{{"both", 3, 100}, {"one", 1, 33}, {"none", 0, 0}}},
		{"an empty term adds 0", preferring(corev1.PreferredSchedulingTerm{Weight: 100}, corev1.PreferredSchedulingTerm{Weight: 7, Preference: zone}),
			[]Score{{"both", 7, 100}, {"one", 7, 100}, {"none", 0, 0}}},
		{"fields", preferring(corev1.PreferredSchedulingTerm{Weight: 100, Preference: nodeField("NotIn", "one")}),
			[]Score{{"both", 100, 100}, {"one", 0, 0}, {"none", 100, 100}}},
	} {
		p, err := NewPreferred(tt.pod)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, p.Scores(nodes)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		for i, node := range nodes {
			var sum int64
			for _, c := range p.Explain(node) {
				if c.Match {
					sum += int64(c.Weight)
				}
			}
			if sum != tt.want[i].Sum {
				t.Errorf("%s: the explained terms of %s add up to %d; want %d", tt.name, node.Name, sum, tt.want[i].Sum)
			}
		}
	}
	if got := (&Preferred{}); len(got.Explain(nodes[0])) != 0 {
		t.Error("no terms are explained")
	}
}

func TestNewPreferredRefuses(t *testing.T) {
	const path = "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0]"
	for _, tt := range []struct {
		term corev1.PreferredSchedulingTerm
		want string
	}{
		{corev1.PreferredSchedulingTerm{}, path + ".weight: is 0; write 1 to 100"},
		{corev1.PreferredSchedulingTerm{Weight: 101}, path + ".weight: is 101; write 1 to 100"},
		{corev1.PreferredSchedulingTerm{Weight: 1, Preference: expressions(in("a", "in", "b"))},
			path + `.matchExpressions[0].operator: Unsupported value: "in": supported values: "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"; correct it`},
	} {
		if p, err := NewPreferred(preferring(tt.term)); p != nil || err == nil || err.Error() != tt.want {
			t.Errorf("NewPreferred(%+v) = %v, %v; want %s", tt.term, p, err, tt.want)
		}
	}
}

func TestDifferences(t *testing.T) {
	pod := newPod(t, nil, selector(corev1.NodeSelectorTerm{}, expressions(in("a", "Exists")), nodeField("In", "host1")), nil)
	pod.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{{Weight: 1}}
	const path = "spec.affinity.nodeAffinity."
	for _, tt := range []struct {
		pod  *corev1.Pod
		want []Difference
	}{
		{&corev1.Pod{}, nil},
		{newPod(t, map[string]string{"a": "b"}, selector(expressions(in("a", "Exists"))), nil), nil},
		{newPod(t, nil, selector(), nil), []Difference{{path + "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
			"does not say what an empty list matches", "matches no node, and the API server refuses it"}}},
		{pod, []Difference{
			{path + "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]",
				"an empty term matches every node, a null one none", "matches no node"},
			{path + "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[2].matchFields",
				"does not have the field", "is ANDed with matchExpressions"},
			{path + "preferredDuringSchedulingIgnoredDuringExecution[0].preference",
				"an empty term matches every node with weight 0, a null one none", "adds 0"},
		}},
	} {
		if diff := cmp.Diff(tt.want, Differences(tt.pod)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}
