package strict

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong with a file, or worth knowing about it.
type Problem struct {
	File string `json:"file,omitempty"`
	// Line counts from 1; 0 is not known, as of a field that is missing.
	Line int `json:"line,omitempty"`
	// Field is the path from the file's root, for example
	// shutdownGracePeriodByPodPriority[1].priority. Empty is the whole file.
	Field string `json:"field,omitempty"`
	// Message says what is wrong and what is allowed.
	Message string `json:"message"`
}

// String prints file:line: field: message, without what is not known.
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

// Problems is an error that holds all that is wrong, in the order of lines.
type Problems []Problem

// Error prints one problem a line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

// Err returns the problems as an error, and nil where there are none.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// Join puts the problems of several files together, file by file. An error that
// is no Problems becomes a problem of its own.
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
