package strict

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// MaxSize is the maximum size of a file in bytes.
const MaxSize = 1 << 20

// ReadFile reads at most MaxSize+1 bytes of a file, which may be a device without
// an end. Parse refuses more than MaxSize.
func ReadFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Read(f)
}

// Read is ReadFile for an open file.
func Read(r io.Reader) ([]byte, error) { return io.ReadAll(io.LimitReader(r, MaxSize+1)) }

// Parse parses the one document of a file. Name is the file's name in messages.
// Its errors are Problems.
func Parse(name string, data []byte) (*Decoder, *yaml.Node, error) {
	return parse(&file{name: name}, data)
}

// ParseLenient is Parse for a file that another program owns and has accepted.
// Unknown fields, duplicate keys (the last one counts) and further documents (the
// first one counts) become notices, and booleans and numbers may have the forms
// of YAML 1.1.
func ParseLenient(name string, data []byte) (*Decoder, *yaml.Node, error) {
	return parse(&file{name: name, lenient: true}, data)
}

func parse(f *file, data []byte) (*Decoder, *yaml.Node, error) {
	f.lines = map[string]int{}
	f.failed = map[string]bool{}
	f.following = map[*yaml.Node]bool{}
	f.budget = len(data) + maxExpanded
	d := &Decoder{file: f}
	root := f.document(data)
	if err := d.Err(); err != nil {
		return nil, nil, err
	}
	return d, root, nil
}

// document returns the root of the first document. It reports a problem and
// returns nil if there is none.
func (f *file) document(data []byte) *yaml.Node {
	if len(data) > MaxSize {
		f.problem(0, "", fmt.Sprintf("the file is larger than %d bytes", MaxSize))
		return nil
	}
	if at := invalidUTF8(data); at >= 0 {
		f.problem(lineAt(data, at), "", fmt.Sprintf("byte 0x%02x is not UTF-8", data[at]))
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	document, err := next(decoder)
	switch {
	case errors.Is(err, io.EOF), err == nil && isNull(document.Content[0]):
		f.problem(0, "", "the file is empty")
		return nil
	case err != nil:
		f.syntax(data, err)
		return nil
	}
	second, err := next(decoder)
	switch {
	case errors.Is(err, io.EOF):
	case f.lenient:
		f.notice(0, "", "documents after the first are ignored")
	case err != nil:
		f.syntax(data, err)
	default:
		f.problem(second.Line, "", "a second document begins here; want a single one")
	}
	return document.Content[0]
}

// next reads one document. The YAML library panics on a few inputs that it
// considers impossible; next returns such a panic as an error.
func next(decoder *yaml.Decoder) (document *yaml.Node, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	document = &yaml.Node{}
	err = decoder.Decode(document)
	return document, err
}

var (
	syntaxLine    = regexp.MustCompile(`^line (\d+): `)
	unknownAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
)

// syntax reports an error of the YAML library, whose texts are
//
//	yaml: line 3: mapping values are not allowed in this context
//	yaml: unknown anchor 'x' referenced
//
// Its scanner counts lines from 1. Its parser, whose errors fromParser recognizes
// by their text, counts from 0 and omits line 0.
func (f *file) syntax(data []byte, err error) {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 0
	if m := syntaxLine.FindStringSubmatch(message); m != nil {
		line, _ = strconv.Atoi(m[1])
		message = message[len(m[0]):]
		if fromParser(message) {
			line++
		}
	} else if m := unknownAnchor.FindStringSubmatch(message); m != nil {
		message = fmt.Sprintf("alias *%s has no anchor &%s above it", m[1], m[1])
		line = lineAt(data, max(0, bytes.Index(data, []byte("*"+m[1]))))
	}
	// The library may count the end of the file as another line.
	line = min(max(line, 1), lineAt(data, len(data)))
	switch message {
	case "found character that cannot start any token", "found a tab character that violates indentation":
		message = "a value can't begin with this character; put the value in quotes"
		if at := tabIndented(data, line); at > 0 {
			line = at
			message = "this line is indented with a tab; YAML is indented with spaces"
		}
	case "did not find expected key":
		// The library's line is that where the map begins, or the wrong one.
		message = "from this line on the text is not a well-formed map; want lines of key: value with equal indentation"
	case "did not find expected '-' indicator":
		message = "from this line on the text is not a well-formed list; want lines of - value with equal indentation"
	case "did not find expected ',' or ']'":
		message = "from this line on a list in brackets lacks a ',' or its ']'"
	case "did not find expected ',' or '}'":
		message = "from this line on a map in braces lacks a ',' or its '}'"
	case "control characters are not allowed":
		line = lineAt(data, max(0, bytes.IndexFunc(data, unprintable)))
		message = "this line contains a control character"
	}
	f.problem(line, "", message)
}

// unprintable reports whether r is a control character that YAML does not allow.
func unprintable(r rune) bool {
	return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r >= 0x7f && r < 0xa0 && r != 0x85 || r >= 0xfffe
}

func fromParser(message string) bool {
	for _, prefix := range []string{
		"did not find expected ',' or", "did not find expected '-' indicator", "did not find expected key",
		"did not find expected node content", "did not find expected <", "found duplicate %", "found incompatible YAML",
		"found undefined tag handle",
	} {
		if strings.HasPrefix(message, prefix) {
			return true
		}
	}
	return false
}

// invalidUTF8 returns the offset of the first byte that is not UTF-8, or -1.
func invalidUTF8(data []byte) int {
	for at := 0; at < len(data); {
		r, size := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && size == 1 {
			return at
		}
		at += size
	}
	return -1
}

// lineBreak matches the line breaks of YAML 1.1, which the library uses.
var lineBreak = regexp.MustCompile("\r\n|[\r\n\u0085\u2028\u2029]")

func lineAt(data []byte, offset int) int { return 1 + len(lineBreak.FindAllIndex(data[:offset], -1)) }

// tabIndented returns which line is indented with a tab: the given one, the next,
// or 0 for neither. The library reports either of them.
func tabIndented(data []byte, line int) int {
	n := 0
	for text := range bytes.Lines(data) {
		if n++; n >= line && n <= line+1 && bytes.HasPrefix(bytes.TrimLeft(text, " "), []byte("\t")) {
			return n
		}
	}
	return 0
}
