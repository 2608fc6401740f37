package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestPage checks that text is wrapped between words, and that a long word is not
// split.
func TestPage(t *testing.T) {
	p := &page{}
	long := strings.Repeat("x", 90)
	p.line("note:       %s", strings.Repeat("0123456789 ", 9))
	p.line("%s", "no label "+long+" y")
	p.table([]string{"A", "LAST"}, [][]string{
		{"a", strings.Repeat("0123456789 ", 9)}, {strings.Repeat("b", 60), "too long for here"}, {strings.Repeat("b", 60), "short"}, {long, ""},
	})
	const six = "0123456789 0123456789 0123456789 0123456789 0123456789 0123456789"
	want := "note:       " + six + "\n            0123456789 0123456789 0123456789\n" +
		"no label\n" + long + "\ny\n\nA\n    LAST\n" +
		"a\n    " + six + " 0123456789\n    0123456789 0123456789\n" +
		strings.Repeat("b", 60) + "\n    too long for here\n" + strings.Repeat("b", 60) + "\n    short\n" + long + "\n"
	if diff := cmp.Diff(want, p.b.String()); diff != "" {
		t.Errorf("page differs (-want +got):\n%s", diff)
	}
	p = &page{}
	p.table([]string{"A", "LAST"}, [][]string{{"a", strings.Repeat("0123456789 ", 9)}, {"bb", "short"}})
	want = "\nA   LAST\na   " + six + " 0123456789\n    0123456789 0123456789\nbb  short\n"
	if diff := cmp.Diff(want, p.b.String()); diff != "" {
		t.Errorf("page differs (-want +got):\n%s", diff)
	}
}

func TestPrintable(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", ""},
		{`limit "1Gi" exceeded \o/`, `limit "1Gi" exceeded \o/`},
		{"größe 数", "größe 数"},
		{"a\x1b[2Jb\tc\nd\re", `a\x1b[2Jb\tc\nd\re`},
		{"\u009b\u202e\u200b", `\u009b\u202e\u200b`},
		{"\xff\xc3(", `\xff\xc3(`},
		{"\ufffd", "\ufffd"},
		{"\x00\x7f", `\x00\x7f`},
	} {
		if got := printable(tt.in); got != tt.want {
			t.Errorf("printable(%q) = %q; want %q", tt.in, got, tt.want)
		}
	}
}

func TestSpan(t *testing.T) {
	for _, tt := range []struct {
		in   time.Duration
		want string
	}{
		{0, "0s"}, {912345, "912µs"}, {1234567, "1.2ms"}, {999 * time.Millisecond, "999ms"}, {1234 * time.Millisecond, "1.2s"},
		{90 * time.Second, "1m30s"}, {10 * time.Minute, "10m"}, {26 * time.Hour, "26h"}, {26*time.Hour + 61*time.Second, "26h1m1s"},
		{time.Hour + 10*time.Minute, "1h10m"}, {-2 * time.Second, "-2s"},
	} {
		if got := span(tt.in); got != tt.want {
			t.Errorf("span(%d) = %q; want %q", tt.in, got, tt.want)
		}
	}
}
