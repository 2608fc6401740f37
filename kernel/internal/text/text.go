// Package text parses lines and numbers of kernel files without allocating.
package text

import (
	"bytes"
	"errors"
	"math"
)

// Errors of [Uint].
var (
	ErrSyntax = errors.New("not a decimal number")
	ErrRange  = errors.New("number too large")
)

// ErrCut means that a text ends within a line. The kernel ends every line, so
// the rest was lost, and a number at its end may lack digits.
var ErrCut = errors.New("text ends within a line")

// Uint parses a decimal number. It takes digits only: no sign, space or
// underscore.
func Uint(b []byte) (uint64, error) {
	if len(b) == 0 {
		return 0, ErrSyntax
	}
	var n uint64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, ErrSyntax
		}
		d := uint64(c - '0')
		if n > (math.MaxUint64-d)/10 {
			return 0, ErrRange
		}
		n = n*10 + d
	}
	return n, nil
}

// Line returns the first line of b without its line feed, and the rest of b. It
// fails with [ErrCut] if b has no line feed.
func Line(b []byte) (line, rest []byte, err error) {
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		return nil, nil, ErrCut
	}
	return b[:i], b[i+1:], nil
}
