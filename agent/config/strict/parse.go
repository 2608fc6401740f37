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

// MaxSize is the size in bytes beyond which a file is refused.
const MaxSize = 1 << 20

// ReadFile reads a file of at most MaxSize bytes. Of a larger one it reads one
// byte more, for Parse to refuse: the file may be a device without an end.
func ReadFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Read(f)
}

// Read is ReadFile for what is open already.
func Read(r io.Reader) ([]byte, error) { return io.ReadAll(io.LimitReader(r, MaxSize+1)) }

// Parse reads the one document that data must hold. Name is the file's, for
// messages. The error is a Problems.
func Parse(name string, data []byte) (*Decoder, *yaml.Node, error) {
	return parse(&file{name: name}, data)
}

// ParseLenient is Parse for a file that another program owns and has accepted.
// Unknown fields, duplicate keys (the last one holds) and further documents
// (the first one holds) become notices, and booleans and numbers may be spelled
// as YAML 1.1 allows.
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

// document returns the root of the first document, or reports why there is
// none.
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
		f.notice(0, "", "what follows the first document is ignored")
	case err != nil:
		f.syntax(data, err)
	default:
		f.problem(second.Line, "", "a second document begins here; a file holds one")
	}
	return document.Content[0]
}

// next reads one document. The library panics on a few inputs of which it says
// that they can't be; they must not take the caller down.
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
// Its scanner counts lines from 1. Its parser, whose errors are told by their
// text, counts them from 0, and leaves line 0 out.
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
	// The end of the file may count as a line of its own.
	line = min(max(line, 1), lineAt(data, len(data)))
	switch message {
	case "found character that cannot start any token", "found a tab character that violates indentation":
		message = "a character here can't begin a value; put the value in quotes"
		if at := tabIndented(data, line); at > 0 {
			line = at
			message = "a tab indents this line; YAML is indented with spaces"
		}
	case "did not find expected key":
		// The library names the line where the map begins, or the wrong one.
		message = "from here on this is no well-formed map; want lines of key: value, indented alike"
	case "did not find expected '-' indicator":
		message = "from here on this is no well-formed list; want lines of - value, indented alike"
	case "did not find expected ',' or ']'":
		message = "from here on a list in brackets lacks a ',' or its ']'"
	case "did not find expected ',' or '}'":
		message = "from here on a map in braces lacks a ',' or its '}'"
	case "control characters are not allowed":
		line = lineAt(data, max(0, bytes.IndexFunc(data, unprintable)))
		message = "a control character stands here"
	}
	f.problem(line, "", message)
}

// unprintable tells control characters that YAML does not allow.
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

// lineBreak is what YAML 1.1, and with it the library, takes for one.
var lineBreak = regexp.MustCompile("\r\n|[\r\n\u0085\u2028\u2029]")

func lineAt(data []byte, offset int) int { return 1 + len(lineBreak.FindAllIndex(data[:offset], -1)) }

// tabIndented returns the line that a tab indents: the given one or the next,
// of which the library names either; 0 where neither is.
func tabIndented(data []byte, line int) int {
	n := 0
	for text := range bytes.Lines(data) {
		if n++; n >= line && n <= line+1 && bytes.HasPrefix(bytes.TrimLeft(text, " "), []byte("\t")) {
			return n
		}
	}
	return 0
}
