package strict

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

const (
	// maxProblems limits the number of problems kept, so that a hostile file can't
	// fill the memory with them.
	maxProblems = 1000
	// maxExpanded limits the number of decoded values to this many more than the
	// file has bytes. Only aliases and merge keys, with which a small file can
	// expand to an enormous one, reach it.
	maxExpanded = 100_000
	// maxKey is the maximum length of a key in bytes. The longest valid one is the
	// namespace/name of a pod.
	maxKey = 512
)

// Unmarshaler is a type that decodes itself. The node is neither an alias nor
// null. DecodeYAML reports problems to d, whose path is that of the value.
type Unmarshaler interface {
	DecodeYAML(d *Decoder, n *yaml.Node)
}

// Decoder decodes a part of a file and collects its problems. Its exported methods
// take paths relative to that part; "" is the part itself. The others, except join,
// take paths from the file's root.
type Decoder struct {
	*file
	path string
}

// file is the state that all decoders of a file share.
type file struct {
	name      string
	lenient   bool
	problems  Problems
	notices   Problems
	lines     map[string]int      // by path, the line of its key or value
	ignored   map[string]bool     // paths of fields that Decode skips
	removed   map[string]string   // by path, when and why the field was removed
	failed    map[string]bool     // paths of problems, and all their parents
	following map[*yaml.Node]bool // aliases that lead to the value being decoded
	budget    int                 // how many values may still be decoded
}

// Key appends a map's key or a struct's field to a path. It quotes a key with
// unprintable characters.
func Key(path, key string) string {
	if strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }) {
		key = strconv.Quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// Index appends a list's index to a path.
func Index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

func (d *Decoder) join(path string) string {
	switch {
	case path == "":
		return d.path
	case d.path == "" || strings.HasPrefix(path, "["):
		return d.path + path
	}
	return d.path + "." + path
}

// At returns a decoder for the part of the file at path. It shares everything
// else with d.
func (d *Decoder) At(path string) *Decoder { return &Decoder{file: d.file, path: d.join(path)} }

// Path returns the path of the decoder's part.
func (d *Decoder) Path() string { return d.path }

// Lenient reports whether the file was opened by ParseLenient.
func (d *Decoder) Lenient() bool { return d.lenient }

// File returns the name of the file.
func (d *Decoder) File() string { return d.name }

// Decode decodes a node into the value that into points to: a struct with `yaml`
// tags, a map with strings or encoding.TextUnmarshalers as keys, a list, a
// pointer, a string, boolean or integer, a time.Duration, a resource.Quantity, an
// Unmarshaler or an encoding.TextUnmarshaler. It panics for any other type.
func (d *Decoder) Decode(n *yaml.Node, into any) {
	if !d.Has("") {
		d.setLine(d.path, n.Line)
	}
	d.value(n, reflect.ValueOf(into).Elem(), d.path)
}

// Errorf reports a problem with the value at path.
func (d *Decoder) Errorf(path, format string, args ...any) {
	d.problem(d.Line(path), d.join(path), fmt.Sprintf(format, args...))
}

// Noticef reports a notice about the value at path.
func (d *Decoder) Noticef(path, format string, args ...any) {
	d.notice(d.Line(path), d.join(path), fmt.Sprintf(format, args...))
}

// Line returns the line of the value at path, or of its nearest parent in the
// file, and 0 if there is none.
func (d *Decoder) Line(path string) int {
	for at := d.join(path); at != ""; at = parent(at) {
		if line, ok := d.lines[at]; ok {
			return line
		}
	}
	return d.lines[""]
}

// parent returns the parent of a path. If a key contains a dot, it returns a path
// between the two.
func parent(path string) string { return path[:max(0, strings.LastIndexAny(path, ".["))] }

// Has reports whether the file has a value at path.
func (d *Decoder) Has(path string) bool {
	_, ok := d.lines[d.join(path)]
	return ok
}

// Failed reports whether there is a problem at path or below it. The value there
// is then not valid.
func (d *Decoder) Failed(path string) bool { return d.failed[d.join(path)] }

// Broken reports whether there is a problem with the value at path as a whole, as
// opposed to a part of it.
func (d *Decoder) Broken(path string) bool {
	at := d.join(path)
	return d.failed[at] && slices.ContainsFunc(d.problems, func(p Problem) bool { return p.Field == at })
}

// Ignore makes Decode skip the fields at paths, which no struct has, without a
// problem or notice.
func (d *Decoder) Ignore(paths ...string) {
	if d.ignored == nil {
		d.ignored = map[string]bool{}
	}
	for _, path := range paths {
		d.ignored[d.join(path)] = true
	}
}

// Removed makes the field at path, which a struct no longer has, a problem. Why
// states when and why the field was removed.
func (d *Decoder) Removed(path, why string) {
	if d.removed == nil {
		d.removed = map[string]string{}
	}
	d.removed[d.join(path)] = why
}

// Err returns all problems of the file so far as Problems, and nil if there are
// none.
func (d *Decoder) Err() error { return d.problems.sorted().Err() }

// Notices returns all notices so far, in the order of lines.
func (d *Decoder) Notices() []Problem { return d.notices.sorted() }

func (f *file) setLine(path string, line int) { f.lines[path] = line }

func (f *file) problem(line int, field, message string) {
	f.problems = f.add(f.problems, line, field, message)
	for at := field; !f.failed[at]; at = parent(at) {
		f.failed[at] = true
	}
}

func (f *file) notice(line int, field, message string) {
	f.notices = f.add(f.notices, line, field, message)
}

func (f *file) add(to Problems, line int, field, message string) Problems {
	switch {
	case len(to) < maxProblems:
		return append(to, Problem{File: f.name, Line: line, Field: field, Message: message})
	case len(to) == maxProblems:
		// Problems are sorted by line; this line number keeps the message last.
		return append(to, Problem{File: f.name, Line: max(line, to[maxProblems-1].Line), Message: "more problems are not shown"})
	}
	return to
}
