package extender

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/evictd/evictd/agent/affinity"
)

// FuzzRequest compares parse with encoding/json and the scheduler's types, and answers what it accepts.
func FuzzRequest(f *testing.F) {
	nodes := &corev1.NodeList{Items: []corev1.Node{*newNode("a", "valid"), *newNode("b", "expired")}}
	for _, a := range []*extenderv1.ExtenderArgs{
		args(newPod(""), "a", "b"), args(newPod(requires), "a", "z"), args(newPod("null")), args(ownedBy(newPod(requires), "DaemonSet"), "a"),
		{Pod: newPod(requires), Nodes: nodes}, {Pod: newPod(requires)}, {},
	} {
		f.Add(marshal(f, a))
	}
	for _, text := range []string{
		`{"Pod":{"metadata":{"annotations":{"\u0065victd.io/required-during-execution":"{}"}}},"NodeNames":["\u0061","é"]}`,
		`{"Pod":{"a":[-0.5e+10,1E2,0,true,false,null,{}]},"NodeNames":[]} `, `{"Pod":{"a":01},"NodeNames":[]}`, `{"Pod":{"a":.5},"NodeNames":[]}`,
		`{"Pod":{"a":"\ud800\x"},"NodeNames":[]}`, `{"Pod":{},"NodeNames":["a",]}`, `{"Pod":{},}`, `{"Pod":{"metadata":null},"NodeNames":["a"]}`, "[[[[", `{"`, `{"a":"\u12`, `{"a":-}`,
	} {
		f.Add([]byte(text))
	}
	h := newHandler(nodesOf(newNode("a", "valid"), newNode("b", "expired")))
	f.Fuzz(func(t *testing.T, body []byte) {
		s := scanner{data: body}
		_, err := s.value()
		if err == nil {
			err = s.end()
		}
		if (err == nil) != json.Valid(body) {
			t.Fatalf("value(%q) = %v; Valid = %t", body, err, json.Valid(body))
		}
		r, err := parse(body)
		status, answer := post(h, body)
		if status == 200 && !json.Valid(answer) {
			t.Fatalf("answer to %q is %q; want JSON", body, answer)
		}
		var a extenderv1.ExtenderArgs
		if !utf8.Valid(body) {
			return // encoding/json replaces such bytes, the scanner passes them on
		}
		if err != nil || json.Unmarshal(body, &a) != nil || a.Pod == nil || strings.Count(strings.ToLower(string(body)), "metadata") > 1 {
			return
		}
		if _, annotated := a.Pod.Annotations[affinity.Annotation]; annotated && !r.annotated && strings.Contains(string(body), `"metadata":{"annotations"`) {
			t.Fatalf("parse(%q): annotated = false; want true", body)
		}
		if r.names == nil || a.NodeNames == nil {
			return
		}
		var names []string
		for name := range each(r.names, (*scanner).text) {
			names = append(names, unescaped(name))
		}
		if len(names) != r.count || !slices.Equal(names, *a.NodeNames) {
			t.Fatalf("names of %q = %q, count %d; want %q", body, names, r.count, *a.NodeNames)
		}
	})
}

// TestScanner: the scanner accepts what encoding/json does, and nesting has an end.
func TestScanner(t *testing.T) {
	for _, text := range []string{
		`{}`, `[]`, `"a"`, `1`, `-1.5e-3`, `true`, `null`, ` [ 1 , {"a" : "b"} ] `, `{"a":1`, `[1,]`, `{"a"}`, `{a:1}`, `"\q"`, "\"\n\"", `"\u00g0"`, `1.`, `1e`, `-`, `tru`, `nul`, `01`, ``, ` `, `"a`,
		strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth), strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1),
	} {
		s := scanner{data: []byte(text)}
		_, err := s.value()
		if err == nil {
			err = s.end()
		}
		if (err == nil) != json.Valid([]byte(text)) {
			t.Errorf("value(%.40q) = %v; Valid = %t", text, err, json.Valid([]byte(text)))
		}
	}
}
