package affinity

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// The sources of a [Reason].
const (
	SourceNodeSelector = "nodeSelector"
	SourceAffinity     = "affinity" // requiredDuringSchedulingIgnoredDuringExecution
	SourceAnnotation   = "annotation"
)

// fieldName is the only field of nodes that matchFields supports.
const fieldName = "metadata.name"

const (
	// maxReasons is how many reasons of each source a Verdict has at most.
	maxReasons = 32
	// maxMessage is the length limit of the message of a reason in bytes.
	maxMessage = 512
	// maxShown is the length limit of a key or a value in a message, in bytes. A label's key has at most 317.
	maxShown = 320
	// maxQuoted is that of one that is not valid.
	maxQuoted = 70
)

// Verdict is the comparison of a requirement with a node.
type Verdict struct {
	Match bool
	// Reasons are what did not match, in the order nodeSelector, affinity, annotation: at most 32 of each.
	Reasons []Reason
}

// Reason is a part of a requirement that a node does not match.
type Reason struct {
	// Source is nodeSelector, affinity or annotation.
	Source string
	// Term is the index of the term in its list; -1 for nodeSelector and for a list without terms.
	Term int
	// Key is the label's key, Value its value on the node, and Present whether the node has it. Key is empty for a term
	// without requirements and for a list without terms.
	Key, Value string
	Present    bool
	// Field says that Key is a field of the Node, metadata.name, and not a label.
	Field bool
	// Operator and Values are those of the requirement; a pair of nodeSelector is In with one value.
	Operator corev1.NodeSelectorOperator
	Values   []string

	// terms is the number of terms of the list, and err the error of this part.
	terms int
	err   error
}

// Check is a part of a requirement, compared with a node by itself.
type Check struct {
	Reason
	// Match says that the node matches this part.
	Match bool
}

// Explain compares each part of a requirement with a node, whether they decide the verdict or not, in the order
// nodeSelector by key, affinity, annotation.
func (r *Requirement) Explain(node *corev1.Node) []Check {
	if r == nil {
		return nil
	}
	return slices.Collect(func(yield func(Check) bool) {
		_ = r.checkNodeSelector(node, yield) &&
			checkSelector(SourceAffinity, r.ignored(), nil, node, yield) &&
			checkSelector(SourceAnnotation, r.annotation, r.execution, node, yield)
	})
}

// verdict returns a verdict that does not match, with the reasons of the wanted sources. Sources that match have none.
func (r *Requirement) verdict(node *corev1.Node, wanted func(source string) bool) Verdict {
	v := Verdict{}
	count := 0
	failed := func(c Check) bool {
		if !c.Match {
			v.Reasons = append(v.Reasons, c.Reason)
			count++
		}
		return count < maxReasons
	}
	if wanted(SourceNodeSelector) {
		r.checkNodeSelector(node, failed)
	}
	count = 0
	if ok, _ := r.affinity.Match(node); !ok && wanted(SourceAffinity) {
		checkSelector(SourceAffinity, r.ignored(), nil, node, failed)
	}
	count = 0
	if !r.MatchesExecution(node) && wanted(SourceAnnotation) {
		checkSelector(SourceAnnotation, r.annotation, r.execution, node, failed)
	}
	return v
}

// checkNodeSelector compares each pair of nodeSelector with a node until yield returns false, which it returns.
func (r *Requirement) checkNodeSelector(node *corev1.Node, yield func(Check) bool) bool {
	for _, key := range slices.Sorted(maps.Keys(r.Pod.Spec.NodeSelector)) {
		value := r.Pod.Spec.NodeSelector[key]
		c := newCheck(node, SourceNodeSelector, -1, false, corev1.NodeSelectorRequirement{
			Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value},
		})
		// A pair has no errors: it is compared as a string.
		c.Match, _ = nodeaffinity.NewRequiredNodeAffinity(map[string]string{key: value}, nil).Match(node)
		c.terms = 1
		if !yield(c) {
			return false
		}
	}
	return true
}

// checkSelector compares each requirement of a selector with a node until yield returns false, which it returns. The
// parsed terms are those of the selector, nil if it was not parsed as a whole.
func checkSelector(source string, s *corev1.NodeSelector, parsed terms, node *corev1.Node, yield func(Check) bool) bool {
	if s == nil {
		return true
	}
	terms := len(s.NodeSelectorTerms)
	if terms == 0 {
		return yield(Check{Reason: Reason{Source: source, Term: -1}})
	}
	for i, term := range s.NodeSelectorTerms {
		if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
			if !yield(Check{Reason: Reason{Source: source, Term: i, terms: terms}}) {
				return false
			}
		}
		for j, q := range term.MatchExpressions {
			if parsed != nil {
				c := newCheck(node, source, i, false, q)
				c.terms, c.Match = terms, parsed[i].expressions[j].Matches(labels.Set(node.Labels))
				if !yield(c) {
					return false
				}
				continue
			}
			if !yield(checkOne(source, i, terms, false, q, node)) {
				return false
			}
		}
		for _, q := range term.MatchFields {
			if !yield(checkOne(source, i, terms, true, q, node)) {
				return false
			}
		}
	}
	return true
}

// checkOne compares one requirement with a node, as the selector that has nothing else.
func checkOne(source string, term, terms int, field bool, q corev1.NodeSelectorRequirement, node *corev1.Node) Check {
	alone := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{q}}
	if field {
		alone = corev1.NodeSelectorTerm{MatchFields: alone.MatchExpressions}
	}
	c := newCheck(node, source, term, field, q)
	c.terms = terms
	c.Match, c.err = nodeaffinity.NewLazyErrorNodeSelector(
		&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{alone}}).Match(node)
	return c
}

func newCheck(node *corev1.Node, source string, term int, field bool, q corev1.NodeSelectorRequirement) Check {
	value, present := node.Labels[q.Key]
	if field {
		value, present = "", false
		if q.Key == fieldName {
			value, present = node.Name, node.Name != ""
		}
	}
	return Check{Reason: Reason{
		Source: source, Term: term, Key: q.Key, Value: value, Present: present,
		Field: field, Operator: q.Operator, Values: q.Values,
	}}
}

// Message names requirement and label in one line of at most 512 bytes. It is made when it is asked for: of a label that
// all nodes lose, there are as many reasons as pods.
func (r Reason) Message() string {
	switch {
	case r.Key != "" || r.Operator != "":
	case r.Term < 0:
		return r.Source + " has no terms and matches no node"
	case r.Values == nil && !r.Field && r.err == nil:
		return fmt.Sprintf("%s term %d is empty and matches no node", r.Source, r.Term+1)
	}
	var b strings.Builder
	b.WriteString(r.Source)
	if r.terms > 1 {
		fmt.Fprintf(&b, " term %d", r.Term+1)
	}
	b.WriteString(" requires " + r.Requirement())
	kind := "label"
	if r.Field {
		kind = "field"
	}
	switch {
	case r.err != nil:
		b.WriteString(", which is not valid and matches no node: " + r.err.Error())
	case r.Present:
		b.WriteString("; the node's " + kind + " is " + quote(r.Value))
	default:
		b.WriteString("; the node has no such " + kind)
	}
	return cut(oneLine(b.String()), maxMessage)
}

// Requirement returns the requirement as text, example.com/licence In [valid], bounded as Message is. It is empty for a
// term or a list that is empty.
func (r Reason) Requirement() string {
	if r.Key == "" && r.Operator == "" {
		return ""
	}
	return requirementText(corev1.NodeSelectorRequirement{Key: r.Key, Operator: r.Operator, Values: r.Values})
}

func requirementText(q corev1.NodeSelectorRequirement) string {
	text := show(q.Key) + " " + show(string(q.Operator))
	if len(q.Values) == 0 {
		return text
	}
	var values []string
	size := 0
	for i, value := range q.Values {
		if size > maxShown {
			values = append(values, fmt.Sprintf("and %d more", len(q.Values)-i))
			break
		}
		values = append(values, show(value))
		size += len(values[i])
	}
	return text + " [" + strings.Join(values, ", ") + "]"
}

// show returns a key or a value for a message: as it is if it is that of a label, else in quotes.
func show(text string) string {
	if text != "" && (len(content.IsLabelKey(text)) == 0 || len(content.IsLabelValue(text)) == 0) {
		return text
	}
	return quote(text)
}

// quote returns a text in quotes, shortened.
func quote(text string) string { return strconv.QuoteToASCII(cut(text, maxQuoted)) }

// oneLine replaces what is no printable character.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

// cut shortens a text to a number of bytes.
func cut(text string, longest int) string {
	const mark = "…"
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest-len(mark)], "") + mark
}
