package strict

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"valid", "a: 1\n", ""},
		{"document end", "---\na: 1\n...\n", ""},
		{"byte order mark", "\ufeffa: 1", ""},
		{"CRLF", "a: 1\r\nb: 2\r\n", ""},
		{"CR alone", "a: 1\rb: 2\rc", "f:3: could not find expected ':'"},
		{"JSON", "{\"a\":\t1}", ""},
		{"empty", "", "f: the file is empty"},
		{"comment", "# nothing\n", "f: the file is empty"},
		{"null", "---\n", "f: the file is empty"},
		{"two documents", "a: 1\n---\nb: 2\n", "f:2: a second document begins here; want a single one"},
		{"broken second document", "a: 1\n---\nb: [\n", "f:4: did not find expected node content"},
		{"not UTF-8", "a: 1\nb: \xff\n", "f:2: byte 0xff is not UTF-8"},
		{"UTF-16", "\xff\xfea\x00", "f:1: byte 0xff is not UTF-8"},
		{"control character", "a: 1\nb: \x01\n", "f:2: this line contains a control character"},
		{"NUL", "a: \x00", "f:1: this line contains a control character"},
		{"tab", "a:\n\tb: 1\n", "f:2: this line is indented with a tab; YAML is indented with spaces"},
		{"at sign", "x: 1\na: @b\n", "f:2: a value can't begin with this character; put the value in quotes"},
		{"indented too far", "a: 1\n b: 2\n", "f:2: mapping values are not allowed in this context"},
		{"two colons", "a: b: c\n", "f:1: mapping values are not allowed in this context"},
		{"open quote", "a: \"b\n\n", "f:3: found unexpected end of stream"},
		{"open bracket", "a: 1\nb: [1,\n2\nc: 3\n", "f:2: from this line on a list in brackets lacks a ',' or its ']'"},
		{"map and list", "a: 1\n- b\n", "f:2: from this line on the text is not a well-formed map; want lines of key: value with equal indentation"},
		{"list and map", "x: 1\ny:\n  - 1\n  b: 2\n", "f:3: from this line on the text is not a well-formed list; want lines of - value with equal indentation"},
		{"unknown anchor", "a: 1\nb: *nope\n", "f:2: alias *nope has no anchor &nope above it"},
		{"future YAML", "%YAML 3.0\n---\na: 1", "f:1: found incompatible YAML document"},
		{"large", "# " + strings.Repeat("x", MaxSize), "f: the file is larger than 1048576 bytes"},
		{"deep", strings.Repeat("[", 20_000), "f:1: exceeded max depth of 10000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := Parse("f", []byte(tt.text))
			got := ""
			if err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("Parse = %q; want %q", got, tt.want)
			}
		})
	}
}

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	for size, want := range map[int]int{0: 0, 5: 5, MaxSize: MaxSize, MaxSize + 1: MaxSize + 1, 3 * MaxSize: MaxSize + 1} {
		if err := os.WriteFile(name, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		data, err := ReadFile(name)
		if err != nil || len(data) != want {
			t.Errorf("ReadFile of %d bytes = %d bytes, %v; want %d", size, len(data), err, want)
		}
	}
	for _, name := range []string{dir, filepath.Join(dir, "missing")} {
		if _, err := ReadFile(name); err == nil {
			t.Errorf("ReadFile(%s): no error", name)
		}
	}
}

func TestJoin(t *testing.T) {
	a := Problems{{File: "a", Line: 9, Message: "x"}}
	b := Problems{{File: "b", Line: 1, Field: "f", Message: "y"}, {Message: "z"}}
	if err := Join(nil, nil); err != nil {
		t.Errorf("Join(nil, nil) = %v; want nil", err)
	}
	err := Join(a, nil, b, errors.New("read c"))
	if diff := cmp.Diff("a:9: x\nb:1: f: y\nz\nread c", err.Error()); diff != "" {
		t.Errorf("Join (-want +got):\n%s", diff)
	}
}

// FuzzParse decodes anything into a struct with all kinds of fields.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", "a: 1", "text: a\nflag: true\nsmall: 5\nnumber: 1\nwait: 5s\namount: 1Gi\ncolour: red\nshout: x",
		"list: [a]\nmap: {a: b}\ncolours: {red: 1}\nreadings: {a: null}\nitems: [{name: x, waits: {}}]",
		"map: &a\n  <<: *a\n", "items: [&a {<<: [*a]}]", "a: 1\n---\nb: 2", "\ufeffa", "a:\n\tb", "? [a]\n: b", "!!binary x", "a: !<tag:x> b",
		"number: 010\nsmall: 1e2\namount: .5", "# c\n\n# d\na:\n  # e\n  - b # f\n", "\"\\x00\": 1", "%TAG ! tag:x,2000:\n---\n!a b: c",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		lines := lineAt([]byte(text), len(text))
		d, root, err := Parse("f", []byte(text))
		if err == nil {
			var s sample
			d.Decode(root, &s)
			err = d.Err()
		}
		if d, root, err := ParseLenient("f", []byte(text)); err == nil {
			var s sample
			d.Decode(root, &s)
		}
		var problems Problems
		if err != nil && !errors.As(err, &problems) {
			t.Fatalf("error %T; want Problems", err)
		}
		for _, p := range problems {
			if p.Message == "" || p.Line < 0 || p.Line > lines {
				t.Errorf("problem %#v in a file of %d lines", p, lines)
			}
			if strings.ContainsAny(p.String(), "\n\r\x1b") {
				t.Errorf("problem %q would print on several lines", p.String())
			}
		}
		if !slices.IsSortedFunc(problems, func(a, b Problem) int { return a.Line - b.Line }) {
			t.Errorf("problems are not in the order of lines:\n%v", problems)
		}
	})
}
