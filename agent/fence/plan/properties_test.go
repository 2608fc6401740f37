package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var propertyTexts = []struct {
	text string
	want []property
	errs int
}{
	{"", nil, 0},
	{"a=b", []property{{"a", "b", 1}}, 0},
	{"# c=d\r\n\r\n  a = b=c # no comment \r\n", []property{{"a", "b=c # no comment", 3}}, 0},
	{"a=\nb=\"x\"", []property{{"a", "", 1}, {"b", `"x"`, 2}}, 0},
	{"snmp-priv-passwd=ä\u00a0", []property{{"snmp-priv-passwd", "ä\u00a0", 1}}, 0},
	{"a=1\nA=2\na=3", []property{{"a", "1", 1}, {"A", "2", 2}}, 1},
	{"a\n=b\n1=2\na b=c\n\ufeffa=b", nil, 5},
	{"a=\xff\nb=\x00\nc=1\r2\nd=\x1b[2J", nil, 4},
	{strings.Repeat("k", 65) + "=v", nil, 1},
	{strings.Repeat("#", maxProperties), nil, 0},
	{strings.Repeat("#", maxProperties+1), nil, 1},
}

func TestParseProperties(t *testing.T) {
	for _, tt := range propertyTexts {
		got, errs := parseProperties(tt.text)
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(property{})); diff != "" || len(errs) != tt.errs {
			t.Errorf("parseProperties(%.40q): %d errors %v; want %d; (-want +got):\n%s", tt.text, len(errs), errs, tt.errs, diff)
		}
	}
}

// FuzzParseProperties checks that no line is lost, that keys are unique, and that errors do not have a value.
func FuzzParseProperties(f *testing.F) {
	for _, tt := range propertyTexts {
		if len(tt.text) < 1000 {
			f.Add(tt.text)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		properties, errs := parseProperties(text)
		if len(text) > maxProperties {
			return
		}
		lines := strings.Split(text, "\n")
		used := map[int]bool{}
		keys := map[string]bool{}
		for _, p := range properties {
			if used[p.line] || keys[p.key] || !validKey(p.key) {
				t.Errorf("property %+v: its line or key is there twice, or is not valid", p)
			}
			used[p.line], keys[p.key] = true, true
			if line := lines[p.line-1]; !strings.Contains(line, p.key) || !strings.HasSuffix(strings.TrimRight(line, " \t\r"), p.value) {
				t.Errorf("property %+v is not in its line %q", p, line)
			}
		}
		for _, e := range errs {
			if used[e.line] || e.key != "" && !keys[e.key] {
				t.Errorf("error %+v: its line is used, or its key is of no property", e)
			}
			used[e.line] = true
		}
		for i, line := range lines {
			line = strings.Trim(line, " \t\r")
			if comment := line == "" || line[0] == '#'; comment == used[i+1] {
				t.Errorf("line %d %q: used = %t", i+1, line, used[i+1])
			}
		}
	})
}

func TestNormalAddress(t *testing.T) {
	for value, want := range map[string]string{
		"192.168.1.2": "192.168.1.2", "BMC-1.Example.COM.": "bmc-1.example.com", "2001:DB8:0::1": "2001:db8::1", "[2001:db8::1]": "2001:db8::1",
		"::ffff:10.0.0.1": "10.0.0.1", "127.0.0.1": "127.0.0.1", "host": "host",
		"": "", "10.0.0.010": "", "10.0.0": "", "0x7f000001": "", "2130706433": "", "10.0.0.1:623": "", "[10.0.0.1]": "", "[::1": "", "fe80::1%eth0": "",
		"0.0.0.0": "", "::": "", "224.0.0.1": "", "a_b": "", "a..b": "", "a/b": "", "https://user:pw@bmc": "", "-a": "", ".": "", "a b": "",
		strings.Repeat("a.", 127): "a" + strings.Repeat(".a", 126), strings.Repeat("a.", 128) + "a": "",
	} {
		got, err := normalAddress(value)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("normalAddress(%q) = %q, %v; want %q", value, got, err, want)
		}
		if err != nil && value != "" && len(value) > 3 && strings.Contains(err.Error(), value) {
			t.Errorf("normalAddress(%q): the error has the value: %v", value, err)
		}
	}
}
