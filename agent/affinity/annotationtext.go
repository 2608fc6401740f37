package affinity

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
)

// annotationParser parses the text of an annotation and collects its problems.
type annotationParser struct {
	problems []Problem
}

// parse returns the node selector of a text. It is to be used only if there are no problems.
func (p *annotationParser) parse(text string) *corev1.NodeSelector {
	const emptyRemedy = "write a NodeSelector with nodeSelectorTerms, or remove the annotation"
	switch {
	case len(text) > MaxAnnotation:
		p.add(nil, "", "shorten it", "has %d bytes, more than %d", len(text), MaxAnnotation)
		return nil
	case !utf8.ValidString(text):
		p.add(nil, "", "write it in UTF-8", "is not UTF-8")
		return nil
	}
	documents := yaml.NewDecoder(strings.NewReader(text))
	root, err := nextDocument(documents)
	if err != nil && json.Valid([]byte(text)) {
		documents = yaml.NewDecoder(strings.NewReader(yamlOfJSON(text)))
		root, err = nextDocument(documents)
	}
	switch {
	case errors.Is(err, io.EOF):
		p.add(nil, "", emptyRemedy, "is empty")
		return nil
	case err != nil:
		p.syntax(text, err)
		return nil
	case isNull(root):
		p.add(nil, "", emptyRemedy, "is empty or null")
		return nil
	}
	switch second, err := nextDocument(documents); {
	case errors.Is(err, io.EOF):
	case err != nil:
		p.syntax(text, err)
	default:
		p.add(second, "", "write one", "has a second document")
	}
	p.refuseYAML(root)
	s := p.selector(root)
	slices.SortStableFunc(p.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return s
}

// yamlOfJSON returns JSON in a form that is YAML, too, in one line. The YAML library knows no escaped slash, which some
// encoders write, and no line break between a key and its colon.
func yamlOfJSON(text string) string {
	var compact bytes.Buffer
	if json.Compact(&compact, []byte(text)) != nil {
		return text
	}
	var b strings.Builder
	escape := false // the byte before is a backslash that escapes
	for _, c := range compact.Bytes() {
		switch {
		case escape && c != '/':
			b.WriteByte('\\')
			b.WriteByte(c)
			escape = false
		case !escape && c == '\\':
			escape = true
		default:
			b.WriteByte(c)
			escape = false
		}
	}
	return b.String()
}

// nextDocument returns the content of the next document. The YAML library panics on a few inputs that it considers
// impossible; nextDocument returns such a panic as an error.
func nextDocument(documents *yaml.Decoder) (root *yaml.Node, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	var document yaml.Node
	if err := documents.Decode(&document); err != nil {
		return nil, err
	}
	return document.Content[0], nil
}

// add reports a problem at a node; nil is the whole annotation.
func (p *annotationParser) add(at *yaml.Node, field, remedy, format string, args ...any) {
	problem := Problem{Field: field, Message: oneLine(fmt.Sprintf(format, args...)), Remedy: remedy}
	if at != nil {
		problem.Line, problem.Column = at.Line, at.Column
	}
	p.problems = append(p.problems, problem)
}

var syntaxLine = regexp.MustCompile(`^line (\d+): `)

// syntax reports an error of the YAML library: "yaml: line 3: did not find expected key". Its scanner counts lines
// from 1; its parser, which misses a token, from 0 and omits line 0.
func (p *annotationParser) syntax(text string, err error) {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 1
	if m := syntaxLine.FindStringSubmatch(message); m != nil {
		message = message[len(m[0]):]
		line, _ = strconv.Atoi(m[1]) // the pattern has digits only
		if strings.HasPrefix(message, "did not find expected") {
			line++
		}
	}
	// The library may count the end of the text as another line.
	line = max(1, min(line, 1+strings.Count(text, "\n")))
	p.problems = append(p.problems, Problem{
		Line: line, Message: "is neither JSON nor YAML: " + cut(oneLine(message), maxShown), Remedy: "correct it",
	})
}

// refuseYAML reports what JSON does not have: aliases, anchors, merge keys and tags.
func (p *annotationParser) refuseYAML(n *yaml.Node) {
	const remedy = "write the value itself"
	switch {
	case n.Kind == yaml.AliasNode:
		p.add(n, "", remedy, "has the alias *%s", cut(n.Value, maxShown))
		return
	case n.Anchor != "":
		p.add(n, "", remedy, "has the anchor &%s", cut(n.Anchor, maxShown))
	case n.Style&yaml.TaggedStyle != 0:
		p.add(n, "", remedy, "has the tag %s", cut(n.Tag, maxShown))
	case isMerge(n):
		p.add(n, "", "write the fields themselves", "has a merge key")
	}
	for _, child := range n.Content {
		p.refuseYAML(child)
	}
}

// refused says whether refuseYAML has reported a node or a part of it, so that its content is not known.
func refused(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || n.Style&yaml.TaggedStyle != 0 || isMerge(n) ||
		slices.ContainsFunc(n.Content, refused)
}

func isNull(n *yaml.Node) bool  { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }
func isMerge(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!merge" }

// fields returns the values of a map by their keys.
func (p *annotationParser) fields(n *yaml.Node, path string, known ...string) map[string]*yaml.Node {
	if n.Kind == yaml.AliasNode || n.Kind == yaml.MappingNode && mergesOrAliases(n) {
		return nil // reported already
	}
	if n.Kind != yaml.MappingNode {
		p.add(n, path, "write a map with "+strings.Join(known, ", "), "is %s", describe(n))
		return nil
	}
	out := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" {
			p.add(key, path, "the fields are "+strings.Join(known, ", "), "has a key that is %s", describe(key))
			continue
		}
		name := join(path, show(key.Value))
		first, twice := out[key.Value]
		switch {
		case !slices.Contains(known, key.Value):
			remedy := "remove it; the fields here are " + strings.Join(known, ", ")
			if like := similar(key.Value, known); like != "" {
				remedy = "write " + like
			}
			p.add(key, name, remedy, "is no field")
		case twice:
			p.add(key, name, "remove one", "is there twice, first in line %d", first.Line)
		default:
			out[key.Value] = value
		}
	}
	return out
}

// mergesOrAliases says whether a map has a merge key, or an alias as a key, so that its fields are not known.
func mergesOrAliases(n *yaml.Node) bool {
	for i := 0; i < len(n.Content); i += 2 {
		if n.Content[i].Kind == yaml.AliasNode || isMerge(n.Content[i]) {
			return true
		}
	}
	return false
}

// join returns the path of a field.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// similar returns the name that differs in case only, or "".
func similar(name string, known []string) string {
	for _, k := range known {
		if strings.EqualFold(name, k) {
			return k
		}
	}
	return ""
}

// list returns the elements of a list. A field that is absent or null has none, as in the Kubernetes API.
func (p *annotationParser) list(n *yaml.Node, path string) []*yaml.Node {
	switch {
	case n == nil, n.Kind == yaml.AliasNode, isNull(n):
		return nil
	case n.Kind != yaml.SequenceNode:
		p.add(n, path, "write a list", "is %s", describe(n))
		return nil
	}
	return n.Content
}

// text returns a string.
func (p *annotationParser) text(n *yaml.Node, path string) (string, bool) {
	switch {
	case refused(n):
		return "", false
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" && !oldBoolean(n):
		return n.Value, true
	case n.Kind == yaml.ScalarNode && !isNull(n):
		p.add(n, path, "put it in quotes", "is %s and not a string", describe(n))
	default:
		p.add(n, path, "write a string", "is %s", describe(n))
	}
	return "", false
}

// oldBoolean says whether a scalar without quotes is a boolean in YAML 1.1, which kubectl reads, and a string for the
// library, which reads YAML 1.2.
func oldBoolean(n *yaml.Node) bool {
	const quoted = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	return n.Style&quoted == 0 &&
		slices.Contains([]string{"y", "n", "yes", "no", "on", "off"}, strings.ToLower(n.Value))
}

// describe names what a node is.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch n.ShortTag() {
	case "!!null":
		return "null"
	case "!!bool":
		return "the boolean " + n.Value
	case "!!int", "!!float":
		return "the number " + cut(n.Value, maxShown)
	case "!!timestamp":
		return "the date " + cut(n.Value, maxShown)
	case "!!str":
		if oldBoolean(n) {
			return "the boolean " + n.Value
		}
		return "the string " + quote(n.Value)
	}
	return "a value with a tag"
}
