package main

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"
)

// page is a text answer in the making. Whatever is put on it is made printable:
// names of processes and messages come from strangers, and must neither move
// the cursor nor break a table.
type page struct{ b bytes.Buffer }

// line adds one line.
func (p *page) line(format string, args ...any) {
	p.b.WriteString(printable(fmt.Sprintf(format, args...)))
	p.b.WriteByte('\n')
}

// table adds an empty line and a table, whose columns the header names, unless
// there are no rows.
func (p *page) table(header []string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	p.b.WriteByte('\n')
	var t bytes.Buffer
	w := tabwriter.NewWriter(&t, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = printable(cell)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	w.Flush()
	for line := range strings.Lines(t.String()) {
		p.b.WriteString(strings.TrimRight(line, " \n"))
		p.b.WriteByte('\n')
	}
}

// print writes the page.
func (p *page) print(w io.Writer) error {
	_, err := w.Write(p.b.Bytes())
	return err
}

// printable escapes what does not print, as in a Go string.
func printable(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 && utf8.ValidString(s) {
		return s
	}
	var b []byte
	for i, width := 0, 0; i < len(s); i += width {
		var r rune
		r, width = utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && width == 1:
			b = fmt.Appendf(b, `\x%02x`, s[i])
		case unicode.IsPrint(r):
			b = utf8.AppendRune(b, r)
		default:
			quoted := strconv.QuoteRuneToASCII(r)
			b = append(b, quoted[1:len(quoted)-1]...)
		}
	}
	return string(b)
}

// span prints a duration to the precision that matters at its size.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + span(-d)
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(100 * time.Microsecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	text := d.Round(time.Second).String()
	if trimmed, whole := strings.CutSuffix(text, "m0s"); whole {
		text = trimmed + "m"
	}
	if trimmed, whole := strings.CutSuffix(text, "h0m"); whole {
		text = trimmed + "h"
	}
	return text
}

// seconds is span of a number of seconds.
func seconds(s float64) string { return span(time.Duration(s * float64(time.Second))) }

// between is the span from one time to another, "-" where one is not known.
func between(from, to time.Time) string {
	if from.IsZero() || to.IsZero() {
		return "-"
	}
	return span(to.Sub(from))
}

// at prints a time in UTC to the second.
func at(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// orDash stands in for an empty cell.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
