package main

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// page is the text output of a command. It escapes unprintable characters: names of
// processes and messages come from pods, and must neither move the cursor nor break
// a table.
type page struct{ b bytes.Buffer }

// pageWidth is the column at which text is wrapped: the default width of a terminal.
const pageWidth = 80

// label matches the label of a line. Wrapped lines are indented to the text after it.
var label = regexp.MustCompile(`^[a-z ]{1,12}: +`)

// line adds one line, wrapped.
func (p *page) line(format string, args ...any) {
	text := printable(fmt.Sprintf(format, args...))
	head := label.FindString(text)
	p.wrap(head, text[len(head):], len(head))
}

// wrap adds text after head. Further lines are indented to a column. A word that is
// too long is not split.
func (p *page) wrap(head, text string, column int) {
	line, empty := head, true
	for _, word := range strings.Fields(text) {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > pageWidth {
			p.addLine(line)
			line, empty = strings.Repeat(" ", column), true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	p.addLine(line)
}

// addLine adds one line without wrapping it.
func (p *page) addLine(line string) {
	p.b.WriteString(strings.TrimRight(line, " "))
	p.b.WriteByte('\n')
}

// table adds an empty line and a table, unless there are no rows. The last column is
// wrapped: within the column if it is wide enough, else on separate lines.
func (p *page) table(header []string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	p.b.WriteByte('\n')
	const gap, minColumn, indent = 2, 30, 4
	last := len(header) - 1
	all := append([][]string{header}, rows...)
	widths := make([]int, last)
	for i, row := range all {
		all[i] = slices.Clone(row)
		for j := range row {
			all[i][j] = printable(row[j])
			if j < last {
				widths[j] = max(widths[j], utf8.RuneCountInString(all[i][j]))
			}
		}
	}
	for _, row := range all {
		head := ""
		for j, width := range widths {
			head += row[j] + strings.Repeat(" ", width-utf8.RuneCountInString(row[j])+gap)
		}
		column := utf8.RuneCountInString(head)
		switch {
		case column+utf8.RuneCountInString(row[last]) <= pageWidth || pageWidth-column >= minColumn:
			p.wrap(head, row[last], column)
		default:
			p.addLine(head)
			if row[last] == "" {
				break
			}
			p.wrap(strings.Repeat(" ", indent), row[last], indent)
		}
	}
}

// print writes the page.
func (p *page) print(w io.Writer) error {
	_, err := w.Write(p.b.Bytes())
	return err
}

// printable escapes unprintable characters as in a Go string.
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

// span formats a duration with about three significant digits.
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

// seconds formats a number of seconds as span does.
func seconds(s float64) string { return span(time.Duration(s * float64(time.Second))) }

// between formats the time from one instant to another, and returns "-" if one is
// unknown.
func between(from, to time.Time) string {
	if from.IsZero() || to.IsZero() {
		return "-"
	}
	return span(to.Sub(from))
}

// at formats a time in UTC with second precision.
func at(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// orDash returns "-" for an empty string.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
