package clusterlabs

import (
	"bytes"
	"html"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// maxOutput is how much is kept of what an agent prints, in bytes.
const maxOutput = 4096

// maxMessage is how much of that becomes a part of an error, which is saved in the NodeFence.
const maxMessage = 1024

// redacted stands for the value of a secret.
const redacted = "[redacted]"

// head keeps the beginning of what is written.
type head struct {
	text  []byte
	limit int
	cut   bool // there was more
}

// Write implements io.Writer.
func (h *head) Write(b []byte) (int, error) {
	room := min(h.limit-len(h.text), len(b))
	h.text = append(h.text, b[:room]...)
	h.cut = h.cut || room < len(b)
	return len(b), nil
}

// tail keeps the end of what is written.
type tail struct {
	text  []byte
	limit int
	cut   bool // there was more
}

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	n := len(b)
	if drop := len(t.text) + n - t.limit; drop > 0 {
		t.cut = true
		t.text = slices.Delete(t.text, 0, min(drop, len(t.text)))
		b = b[max(0, n-t.limit):]
	}
	t.text = append(t.text, b...)
	return n, nil
}

// redact returns the last lines of the text without the values of secrets. The limit of the tail must be maxOutput and
// the length of the longest form of a secret.
func (t *tail) redact(secrets []string) string {
	text := string(t.text)
	var pairs []string
	for _, s := range forms(secrets) {
		pairs = append(pairs, s, redacted)
	}
	text = strings.NewReplacer(pairs...).Replace(text)
	if t.cut {
		// The text may begin with the end of a secret.
		text = text[min(t.limit-maxOutput, len(text)):]
	}
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(strings.Map(func(r rune) rune {
			if !unicode.IsPrint(r) {
				return ' '
			}
			return r
		}, strings.ToValidUTF8(line, "?")))
		if line != "" {
			lines = append(lines, line)
		}
	}
	const last = 5
	text = strings.Join(lines[max(0, len(lines)-last):], "; ")
	return strings.ToValidUTF8(text[max(0, len(text)-maxMessage):], "")
}

// forms returns the secrets as programs write them, the longest first: as they are, escaped as in a string of a
// program, of a shell and of XML, and escaped as in a URL.
func forms(secrets []string) []string {
	var all []string
	for _, s := range secrets {
		quoted, ascii := strconv.Quote(s), strconv.QuoteToASCII(s)
		single := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s)
		shell := strings.ReplaceAll(s, "'", `'"'"'`) // as Python's shlex.quote does
		all = append(all, s, quoted[1:len(quoted)-1], ascii[1:len(ascii)-1], single, shell, html.EscapeString(s),
			url.QueryEscape(s), url.PathEscape(s))
	}
	all = slices.DeleteFunc(all, func(s string) bool { return s == "" })
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(all)
}

// says reports whether one of the lines is a text.
func says(output []byte, want string) bool {
	for line := range bytes.Lines(output) {
		if strings.EqualFold(string(bytes.TrimSpace(line)), want) {
			return true
		}
	}
	return false
}
