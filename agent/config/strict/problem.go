package strict

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Problem is one mistake in a file, or a notice about it.
type Problem struct {
	File string `json:"file,omitempty"`
	// Line counts from 1; 0 means unknown, for example for a missing field.
	Line int `json:"line,omitempty"`
	// Field is the path from the file's root, for example
	// shutdownGracePeriodByPodPriority[1].priority. Empty means the whole file.
	Field string `json:"field,omitempty"`
	// Message states the mistake and what is allowed.
	Message string `json:"message"`
}

// String returns "file:line: field: message", without unknown parts.
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File + ":")
		if p.Line > 0 {
			fmt.Fprintf(&b, "%d:", p.Line)
		}
		b.WriteByte(' ')
	}
	if p.Field != "" {
		b.WriteString(p.Field + ": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// Problems is an error that lists all mistakes in the order of lines.
type Problems []Problem

// Error returns one problem per line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.String()
	}
	return strings.Join(lines, "\n")
}

// Err returns the problems as an error, and nil if there are none.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// Join concatenates the problems of several files. An error that is not Problems
// becomes one problem.
func Join(errs ...error) error {
	var all Problems
	for _, err := range errs {
		var some Problems
		switch {
		case err == nil:
		case errors.As(err, &some):
			all = append(all, some...)
		default:
			all = append(all, Problem{Message: err.Error()})
		}
	}
	return all.Err()
}

func (p Problems) sorted() Problems {
	sorted := slices.Clone(p)
	slices.SortStableFunc(sorted, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
	return sorted
}
