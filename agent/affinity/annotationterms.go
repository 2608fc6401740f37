package affinity

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
)

// operators are those of matchExpressions.
var operators = []string{
	string(corev1.NodeSelectorOpIn), string(corev1.NodeSelectorOpNotIn), string(corev1.NodeSelectorOpExists),
	string(corev1.NodeSelectorOpDoesNotExist), string(corev1.NodeSelectorOpGt), string(corev1.NodeSelectorOpLt),
}

// fieldOperators are those of matchFields.
var fieldOperators = operators[:2]

// The names of the fields of the API.
const (
	termsField       = "nodeSelectorTerms"
	expressionsField = "matchExpressions"
	fieldsField      = "matchFields"
)

// labelRemedy is the syntax of a label's value, and of its key after the prefix.
const labelRemedy = "write at most 63 letters, digits, -, _ and ., first and last a letter or digit"

// selector reads a NodeSelector.
func (p *annotationParser) selector(n *yaml.Node) *corev1.NodeSelector {
	fields := p.fields(n, "", termsField)
	if fields == nil {
		return nil
	}
	list, ok := fields[termsField]
	if !ok {
		p.add(n, termsField, "write at least one term", "is missing")
		return nil
	}
	terms := p.list(list, termsField)
	switch {
	case len(terms) > MaxTerms:
		p.add(list, termsField, "write fewer", "has %d terms, more than %d", len(terms), MaxTerms)
	case len(terms) == 0 && (list.Kind == yaml.SequenceNode || isNull(list)):
		p.add(list, termsField, "write at least one term", "is an empty list, which matches no node")
	}
	s := &corev1.NodeSelector{}
	for i, term := range terms {
		s.NodeSelectorTerms = append(s.NodeSelectorTerms, p.term(term, fmt.Sprintf("%s[%d]", termsField, i)))
	}
	return s
}

// term reads a NodeSelectorTerm.
func (p *annotationParser) term(n *yaml.Node, path string) corev1.NodeSelectorTerm {
	const remedy = "write matchExpressions or matchFields, or remove the term"
	if isNull(n) {
		p.add(n, path, remedy, "is null, which matches no node")
		return corev1.NodeSelectorTerm{}
	}
	fields := p.fields(n, path, expressionsField, fieldsField)
	if fields == nil {
		return corev1.NodeSelectorTerm{}
	}
	type reader func(*yaml.Node, string) corev1.NodeSelectorRequirement
	read := func(name string, one reader) (out []corev1.NodeSelectorRequirement) {
		for i, q := range p.list(fields[name], join(path, name)) {
			out = append(out, one(q, fmt.Sprintf("%s.%s[%d]", path, name, i)))
		}
		return out
	}
	before := len(p.problems)
	t := corev1.NodeSelectorTerm{
		MatchExpressions: read(expressionsField, p.expression),
		MatchFields:      read(fieldsField, p.field),
	}
	if len(t.MatchExpressions)+len(t.MatchFields) == 0 && len(p.problems) == before {
		p.add(n, path, remedy, "is empty, which matches no node")
	}
	return t
}

// expression reads a requirement of labels.
func (p *annotationParser) expression(n *yaml.Node, path string) corev1.NodeSelectorRequirement {
	q, at := p.requirement(n, path, operators)
	if at.key != nil && len(content.IsLabelKey(q.Key)) > 0 {
		p.add(at.key, path+".key", labelRemedy+", after a DNS name and / or without",
			"is %s, not the key of a label", quote(q.Key))
	}
	for i, value := range q.Values {
		if len(content.IsLabelValue(value)) > 0 {
			p.add(at.values[i].node, at.values[i].path, labelRemedy, "is %s, not the value of a label", quote(value))
		}
	}
	if !at.complete {
		return q
	}
	values, count := path+".values", len(q.Values)
	switch q.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if count == 0 {
			p.add(at.list, values, "write at least one value", "is empty, but the operator is %s", q.Operator)
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if count > 0 {
			p.add(at.list, values, "remove them", "has values, but the operator is %s", q.Operator)
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if count != 1 {
			p.add(at.list, values, "write one integer in quotes", "has %d values, but the operator is %s", count, q.Operator)
			break
		}
		if _, err := strconv.ParseInt(q.Values[0], 10, 64); err != nil {
			p.add(at.values[0].node, at.values[0].path, "write one", "is %s, not an integer of 64 bits", quote(q.Values[0]))
		}
	}
	return q
}

// field reads a requirement of fields.
func (p *annotationParser) field(n *yaml.Node, path string) corev1.NodeSelectorRequirement {
	q, at := p.requirement(n, path, fieldOperators)
	if at.key != nil && q.Key != fieldName {
		p.add(at.key, path+".key", "write "+fieldName+", or use matchExpressions for labels", "is %s", quote(q.Key))
	}
	if !at.complete {
		return q
	}
	switch {
	case len(q.Values) != 1:
		p.add(at.list, path+".values", "write one name", "has %d values", len(q.Values))
	case len(content.IsDNS1123Subdomain(q.Values[0])) > 0:
		p.add(at.values[0].node, at.values[0].path, "write the name of a Node",
			"is %s, not the name of a node", quote(q.Values[0]))
	}
	return q
}

// places are the nodes of a requirement.
type places struct {
	key, list *yaml.Node // list is the requirement if it has no values
	values    []place
	complete  bool // key, operator and all values could be read
}

// place is the node of a value.
type place struct {
	node *yaml.Node
	path string
}

// requirement reads a NodeSelectorRequirement, and checks its operator.
func (p *annotationParser) requirement(n *yaml.Node, path string, operators []string) (
	q corev1.NodeSelectorRequirement, at places,
) {
	at.list = n
	fields := p.fields(n, path, "key", "operator", "values")
	if fields == nil {
		return q, at
	}
	before := len(p.problems)
	if key, ok := fields["key"]; !ok {
		p.add(n, path+".key", "write the key of a label", "is missing")
	} else if q.Key, ok = p.text(key, path+".key"); ok {
		at.key = key
	}
	if operator, ok := fields["operator"]; !ok {
		p.add(n, path+".operator", "write one of "+strings.Join(operators, ", "), "is missing")
	} else if text, ok := p.text(operator, path+".operator"); ok {
		q.Operator = corev1.NodeSelectorOperator(text)
		if !slices.Contains(operators, text) {
			remedy := "write one of " + strings.Join(operators, ", ")
			if like := similar(text, operators); like != "" {
				remedy = "write " + like
			}
			p.add(operator, path+".operator", remedy, "is %s", quote(text))
		}
	}
	if list, ok := fields["values"]; ok {
		at.list = list
		for i, v := range p.list(list, path+".values") {
			where := fmt.Sprintf("%s.values[%d]", path, i)
			if value, ok := p.text(v, where); ok {
				q.Values, at.values = append(q.Values, value), append(at.values, place{v, where})
			}
		}
	}
	at.complete = len(p.problems) == before && !slices.ContainsFunc(n.Content, refused)
	return q, at
}
