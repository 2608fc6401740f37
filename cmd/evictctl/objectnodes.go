package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	strictjson "k8s.io/apimachinery/pkg/runtime/serializer/json"

	"github.com/evictd/evictd/agent/affinity"
)

// preferredField is the name of the preferred terms in the API.
const preferredField = "preferredDuringSchedulingIgnoredDuringExecution"

// readObjects reads a file with Kubernetes objects.
func readObjects(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return limitObjects(file, f)
}

// limitObjects reads the text of a file, which may be a device without an end.
func limitObjects(file string, f io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(f, maxObjectsFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	if len(text) > maxObjectsFile {
		return nil, fmt.Errorf("read %s: it is larger than %d MiB; split it", file, maxObjectsFile>>20)
	}
	return text, nil
}

// dealias returns the node that an alias refers to.
func dealias(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// child returns the value of a key in a map, nil if there is none.
func child(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return dealias(n.Content[i+1])
		}
	}
	return nil
}

// descend returns the value at a path of keys, nil if there is none.
func descend(n *yaml.Node, path ...string) *yaml.Node {
	for _, key := range path {
		n = child(n, key)
	}
	return n
}

// inlinePreferences rewrites preferred terms in the spelling of the node affinity proposal, with matchExpressions
// beside weight, into that of the API. It returns where the two differ, and false if a term has both.
func (r *affinityReader) inlinePreferences(file string, terms *yaml.Node) ([]affinity.Difference, bool) {
	if terms == nil || terms.Kind != yaml.SequenceNode {
		return nil, true
	}
	var out []affinity.Difference
	before := len(r.problems)
	for i, term := range terms.Content {
		if term = dealias(term); term.Kind != yaml.MappingNode {
			continue
		}
		inline := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: term.Line, Column: term.Column}
		var rest []*yaml.Node
		for j := 0; j+1 < len(term.Content); j += 2 {
			pair := term.Content[j : j+2]
			if slices.Contains([]string{"matchExpressions", "matchFields"}, pair[0].Value) {
				inline.Content = append(inline.Content, pair...)
			} else {
				rest = append(rest, pair...)
			}
		}
		if len(inline.Content) == 0 {
			continue
		}
		name := inline.Content[0].Value
		if child(term, "preference") != nil {
			r.problemf("%s:%d: %s[%d] has preference and %s; move %[5]s into preference",
				file, inline.Content[0].Line, preferredField, i, name)
			continue
		}
		key := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: "preference", Line: inline.Line}
		term.Content = append(rest, key, inline)
		out = append(out, affinity.Difference{
			Field:      fmt.Sprintf("spec.affinity.nodeAffinity.%s[%d].%s", preferredField, i, name),
			Proposal:   "stands beside weight",
			Kubernetes: "the API server refuses the field or drops it; write it in preference",
		})
	}
	return out, len(r.problems) == before
}

// objectScheme has the kinds that are decoded.
var objectScheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // two types of one kind: never with the types of the API
		}
	}
	return s
}()

// decode returns an object of a kind, and reports its problems. Unknown fields and duplicate keys are problems. It
// returns nil if nothing could be decoded.
func (r *affinityReader) decode(file string, n *yaml.Node, kind, apiVersion string) runtime.Object {
	version := child(n, "apiVersion")
	switch {
	case version == nil:
		r.problemf("%s:%d: %s has no apiVersion; write %s", file, n.Line, kind, apiVersion)
		return nil
	case version.Value != apiVersion:
		r.problemf("%s:%d: %s has apiVersion %q; write %s", file, version.Line, kind, version.Value, apiVersion)
		return nil
	}
	likeKubectl(n, map[*yaml.Node]bool{})
	var content any
	if err := n.Decode(&content); err != nil {
		r.decodeProblems(file, n, kind, err)
		return nil
	}
	text, err := json.Marshal(content)
	if err != nil {
		r.problemf("%s:%d: %s is not a Kubernetes object: %v; correct it", file, n.Line, kind, err)
		return nil
	}
	options := strictjson.SerializerOptions{Strict: true}
	decoder := strictjson.NewSerializerWithOptions(strictjson.DefaultMetaFactory, objectScheme, objectScheme, options)
	object, _, err := decoder.Decode(text, nil, nil)
	if err != nil {
		r.decodeProblems(file, n, kind, err)
	}
	return object
}

var (
	// yamlLine begins the messages of the YAML library: "line 3: mapping key "a" already defined at line 2".
	yamlLine = regexp.MustCompile(`^line (\d+): (.*)$`)
	// fieldPath is in the messages of the JSON decoder: unknown field "spec.containers[0].imge", and cannot unmarshal
	// number into Go struct field PodSpec.spec.nodeSelector of type string.
	fieldPath = regexp.MustCompile(`(?:field "([^"]+)"|Go struct field [A-Za-z]+\.(\S+))`)
)

// decodeProblems reports the errors of decoding an object, each with its line.
func (r *affinityReader) decodeProblems(file string, n *yaml.Node, kind string, err error) {
	var types *yaml.TypeError
	if errors.As(err, &types) {
		for _, text := range types.Errors {
			if m := yamlLine.FindStringSubmatch(text); m != nil {
				r.problemf("%s:%s: %s; correct it", file, m[1], m[2])
			} else {
				r.problemf("%s:%d: %s; correct it", file, n.Line, text)
			}
		}
		return
	}
	errs := []error{err}
	if strict, ok := runtime.AsStrictDecodingError(err); ok {
		errs = strict.Errors()
	}
	for _, err := range errs {
		line := n.Line
		if m := fieldPath.FindStringSubmatch(err.Error()); m != nil {
			line = lineOf(n, m[1]+m[2])
		}
		r.problemf("%s:%d: %s: %v; correct it", file, line, kind, err)
	}
}

// lineOf returns the line of a field, spec.containers[0].imge, or that of the last part of the path that exists.
func lineOf(n *yaml.Node, path string) int {
	line := n.Line
	for part := range strings.FieldsFuncSeq(path, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
		n = dealias(n)
		switch n.Kind {
		case yaml.MappingNode:
			i := 0
			for i+1 < len(n.Content) && n.Content[i].Value != part {
				i += 2
			}
			if i+1 >= len(n.Content) {
				return line
			}
			line, n = n.Content[i].Line, n.Content[i+1]
		case yaml.SequenceNode:
			var i int
			if _, err := fmt.Sscan(part, &i); err != nil || i < 0 || i >= len(n.Content) {
				return line
			}
			line, n = n.Content[i].Line, n.Content[i]
		default:
			return line
		}
	}
	return line
}

// likeKubectl gives scalars the meaning that kubectl, which reads YAML 1.1, gives them: yes, no, on and off are
// booleans, dates and the keys of maps are strings.
func likeKubectl(n *yaml.Node, seen map[*yaml.Node]bool) {
	if n = dealias(n); seen[n] {
		return
	}
	seen[n] = true
	if n.Kind == yaml.ScalarNode {
		switch tag := n.ShortTag(); {
		case tag == "!!timestamp":
			n.Tag = "!!str"
		case tag == "!!str" && n.Style == 0:
			switch strings.ToLower(n.Value) {
			case "yes", "on":
				n.Tag, n.Value = "!!bool", "true"
			case "no", "off":
				n.Tag, n.Value = "!!bool", "false"
			}
		}
	}
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 && c.Kind == yaml.ScalarNode {
			if c.ShortTag() != "!!merge" {
				c.Tag = "!!str"
			}
			continue
		}
		likeKubectl(c, seen)
	}
}
