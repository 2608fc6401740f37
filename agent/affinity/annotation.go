package affinity

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

const (
	// MaxAnnotation is the length limit of the annotation in bytes.
	MaxAnnotation = 16 << 10
	// MaxTerms is how many terms the annotation may have, and the selector that [And] returns.
	MaxTerms = 256
)

// Problem is a mistake in the annotation, with its place and its remedy.
type Problem struct {
	// Line and Column are the place in the annotation, from 1; 0 if the problem is that of the whole annotation.
	Line, Column int
	// Field is the path of the field, as nodeSelectorTerms[0].matchExpressions[1].operator; empty for the whole.
	Field   string
	Message string
	Remedy  string
}

// String returns the problem in one line:
//
//	line 3, column 15: nodeSelectorTerms[0].matchExpressions[0].operator: is "in"; write In
func (p Problem) String() string {
	var b strings.Builder
	if p.Line > 0 {
		fmt.Fprintf(&b, "line %d", p.Line)
		if p.Column > 0 {
			fmt.Fprintf(&b, ", column %d", p.Column)
		}
		b.WriteString(": ")
	}
	if p.Field != "" {
		b.WriteString(p.Field + ": ")
	}
	b.WriteString(p.Message)
	if p.Remedy != "" {
		b.WriteString("; " + p.Remedy)
	}
	return b.String()
}

// AnnotationError is an annotation that does not parse, with all its problems in the order of their places.
type AnnotationError struct {
	Problems []Problem
}

// maxListed is how many problems Error names.
const maxListed = 3

// Error returns the first problems in one line, which fits an event.
func (e *AnnotationError) Error() string {
	var b strings.Builder
	b.WriteString("parse annotation " + Annotation + ": ")
	for i, p := range e.Problems {
		if i == maxListed {
			fmt.Fprintf(&b, ", and %d more", len(e.Problems)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(cut(p.String(), 280))
	}
	return b.String()
}

// ParseAnnotation returns the node selector of an annotation. The error is an [*AnnotationError].
func ParseAnnotation(text string) (*corev1.NodeSelector, error) {
	selector, _, err := parseAnnotation(text)
	return selector, err
}

// laterRule begins the message of a problem that only Kubernetes' own parser finds.
const laterRule = "is refused by Kubernetes: "

func parseAnnotation(text string) (*corev1.NodeSelector, terms, error) {
	p := &annotationParser{}
	selector := p.parse(text)
	if len(p.problems) > 0 {
		return nil, nil, &AnnotationError{Problems: p.problems}
	}
	_, err := nodeaffinity.NewNodeSelector(selector)
	var compiled terms
	if err == nil {
		compiled, err = newTerms(selector)
	}
	if err != nil {
		// The parser above finds all problems of today's versions. This is a rule of a later one.
		return nil, nil, &AnnotationError{Problems: []Problem{{
			Message: laterRule + cut(oneLine(err.Error()), maxMessage), Remedy: "correct it",
		}}}
	}
	return selector, compiled, nil
}
