package properties

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var propertyTexts = []struct {
	text string
	want []Property
	errs int
}{
	{"", nil, 0},
	{"a=b", []Property{{"a", "b", 1}}, 0},
	{"# c=d\r\n\r\n  a = b=c # no comment \r\n", []Property{{"a", "b=c # no comment", 3}}, 0},
	{"a=\nb=\"x\"", []Property{{"a", "", 1}, {"b", `"x"`, 2}}, 0},
	{"snmp-priv-passwd=ä\u00a0", []Property{{"snmp-priv-passwd", "ä\u00a0", 1}}, 0},
	{"a=1\nA=2\na=3", []Property{{"a", "1", 1}, {"A", "2", 2}}, 1},
	{"a\n=b\n1=2\na b=c\n\ufeffa=b", nil, 5},
	{"\ufeff# comment\r\na=b", []Property{{"a", "b", 2}}, 0},
	{"\ufeffa=b", []Property{{"a", "b", 1}}, 0},
	{"\ufeff\ufeffa=b", nil, 1},
	{"a=\xff\nb=\x00\nc=1\r2\nd=\x1b[2J", nil, 4},
	{strings.Repeat("k", 65) + "=v", nil, 1},
	{strings.Repeat("#", MaxText), nil, 0},
	{strings.Repeat("#", MaxText+1), nil, 1},
}

func TestParse(t *testing.T) {
	for _, tt := range propertyTexts {
		got, errs := Parse(tt.text)
		if diff := cmp.Diff(tt.want, got); diff != "" || len(errs) != tt.errs {
			t.Errorf("Parse(%.40q): %d errors %v; want %d; (-want +got):\n%s", tt.text, len(errs), errs, tt.errs, diff)
		}
	}
}

// FuzzParse checks that no line is lost, that keys are unique, and that errors do not have a value.
func FuzzParse(f *testing.F) {
	for _, tt := range propertyTexts {
		if len(tt.text) < 1000 {
			f.Add(tt.text)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		properties, errs := Parse(text)
		if len(text) > MaxText {
			return
		}
		lines := strings.Split(strings.TrimPrefix(text, byteOrderMark), "\n")
		used := map[int]bool{}
		keys := map[string]bool{}
		for _, p := range properties {
			if used[p.Line] || keys[p.Key] || !ValidKey(p.Key) {
				t.Errorf("property %+v: its line or key is there twice, or is not valid", p)
			}
			used[p.Line], keys[p.Key] = true, true
			if line := lines[p.Line-1]; !strings.Contains(line, p.Key) || !strings.HasSuffix(strings.TrimRight(line, " \t\r"), p.Value) {
				t.Errorf("property %+v is not in its line %q", p, line)
			}
		}
		for _, e := range errs {
			if used[e.Line] || e.Key != "" && !keys[e.Key] {
				t.Errorf("error %+v: its line is used, or its key is of no property", e)
			}
			used[e.Line] = true
		}
		for i, line := range lines {
			line = strings.Trim(line, " \t\r")
			if comment := line == "" || line[0] == '#'; comment == used[i+1] {
				t.Errorf("line %d %q: used = %t", i+1, line, used[i+1])
			}
		}
	})
}
