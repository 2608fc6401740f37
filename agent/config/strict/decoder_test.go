package strict

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
)

// sample has a field of every kind that Decode supports.
type sample struct {
	Text     string                      `yaml:"text"`
	Flag     bool                        `yaml:"flag"`
	Small    int8                        `yaml:"small"`
	Number   *int32                      `yaml:"number"`
	Wait     time.Duration               `yaml:"wait"`
	Amount   resource.Quantity           `yaml:"amount"`
	Colour   colour                      `yaml:"colour"`
	Shout    shout                       `yaml:"shout"`
	List     []string                    `yaml:"list"`
	Map      map[string]string           `yaml:"map"`
	Colours  map[colour]int64            `yaml:"colours"`
	Readings map[string]*time.Duration   `yaml:"readings"`
	Items    []sampleItem                `yaml:"items"`
	Deep     map[string]map[string]int64 `yaml:"deep"`
	Inlined  `yaml:",inline"`
	Hidden   string `yaml:"-"`
	Untagged string
}

type sampleItem struct {
	Name  string            `yaml:"name"`
	Waits map[string]string `yaml:"waits"`
}

// Inlined is exported, because reflection can't set an unexported embedded type.
type Inlined struct {
	Extra string `yaml:"extra"`
}

// colour unmarshals from text.
type colour string

func (c *colour) UnmarshalText(text []byte) error {
	if string(text) != "red" {
		return fmt.Errorf("%s is not a colour; want red", Quote(string(text)))
	}
	*c = "red"
	return nil
}

// shout decodes itself.
type shout string

func (s *shout) DecodeYAML(d *Decoder, n *yaml.Node) {
	var text string
	d.Decode(n, &text)
	if text == "quiet" {
		d.Errorf("", "is too quiet at %s", d.Path())
	}
	*s = shout(strings.ToUpper(text))
}

func decode(t *testing.T, text string) (sample, *Decoder, error) {
	t.Helper()
	var s sample
	d, root, err := Parse("f.yaml", []byte(text))
	if err != nil {
		return s, nil, err
	}
	d.Decode(root, &s)
	return s, d, d.Err()
}

func TestDecode(t *testing.T) {
	got, d, err := decode(t, `
text: 2006-01-02
flag: True
small: -0x80
number: 1_000
wait: 1m30s
amount: 1.5Gi
colour: red
shout: hey
list: [a, 'b', "5"]
map: {a: b}
colours: {red: 3}
readings: {a: 5s, b: null}
items:
- name: one
- {name: two, waits: {}}
extra: more
deep: null
`)
	if err != nil {
		t.Fatal(err)
	}
	number, five := int32(1000), 5*time.Second
	want := sample{
		Text: "2006-01-02", Flag: true, Small: -128, Number: &number, Wait: 90 * time.Second, Amount: resource.MustParse("1.5Gi"),
		Colour: "red", Shout: "HEY", List: []string{"a", "b", "5"}, Map: map[string]string{"a": "b"}, Colours: map[colour]int64{"red": 3},
		Readings: map[string]*time.Duration{"a": &five, "b": nil},
		Items:    []sampleItem{{Name: "one"}, {Name: "two", Waits: map[string]string{}}},
		Inlined:  Inlined{Extra: "more"},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })); diff != "" {
		t.Errorf("Decode (-want +got):\n%s", diff)
	}
	for path, line := range map[string]int{
		"": 2, "text": 2, "map": 11, "map.a": 11, "map.nothing": 11, "items": 14, "items[0]": 15, "items[1].waits": 16,
		"items[9].name": 14, "deep": 2, "nothing": 2, "readings.b": 13,
	} {
		if got := d.Line(path); got != line {
			t.Errorf("Line(%q) = %d; want %d", path, got, line)
		}
	}
	for path, has := range map[string]bool{"text": true, "deep": false, "readings.b": true, "items[1].name": true, "items[2]": false} {
		if got := d.Has(path); got != has {
			t.Errorf("Has(%q) = %t; want %t", path, got, has)
		}
	}
}

func TestDecodeProblems(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"unknown", "txet: x\nTEXT: x\nwhatever: x\nHidden: x\nUntagged: x", `
f.yaml:1: txet: is not a field here; did you mean text?
f.yaml:2: TEXT: is not a field here; did you mean text?
f.yaml:3: whatever: is not a field here
f.yaml:4: Hidden: is not a field here
f.yaml:5: Untagged: is not a field here`},
		{"duplicate", "text: a\nmap: {a: b, c: d, a: e}\ntext: b\ntext: c", `
f.yaml:2: map.a: is given twice, first in line 2
f.yaml:3: text: is given twice, first in line 1
f.yaml:4: text: is given twice, first in line 1`},
		{"not a map", "[]", "f.yaml:1: is a list; want a map"},
		{"scalar", "5", "f.yaml:1: is the number 5; want a map"},
		{"text", "text: 5", "f.yaml:1: text: is the number 5; want a string: put it in quotes"},
		{"text of bool", "text: false", "f.yaml:1: text: is false; want a string: put it in quotes"},
		{"text of list", "text:\n- a", "f.yaml:1: text: is a list; want a string"},
		{"tagged", "text: !secret x\nwait: !!binary aGk=", `
f.yaml:1: text: is a value tagged "!secret"; want a string
f.yaml:2: wait: is a value tagged "!!binary"; want a duration such as 90s or 1m30s`},
		{"bool", "flag: yes", `f.yaml:1: flag: is the string "yes"; want true or false`},
		{"quoted bool", "flag: 'true'", `f.yaml:1: flag: is the string "true"; want true or false`},
		{"number", "number: '5'", `f.yaml:1: number: is the string "5"; want a whole number`},
		{"float", "number: 5.0", "f.yaml:1: number: is the number 5.0; want a whole number"},
		{"infinite", "number: .inf", "f.yaml:1: number: is the number .inf; want a whole number"},
		{"octal", "number: 010", "f.yaml:1: number: is the number 010, which is octal in YAML 1.1 and decimal in YAML 1.2; leave out the leading 0"},
		{"too large", "number: 2147483648\nsmall: -129", `
f.yaml:1: number: is the number 2147483648; want one from -2147483648 to 2147483647
f.yaml:2: small: is the number -129; want one from -128 to 127`},
		{"beyond 64 bits", "number: 18446744073709551616", "f.yaml:1: number: is the number 18446744073709551616; want one from -2147483648 to 2147483647"},
		{"duration", "wait: 30mins", `f.yaml:1: wait: is the string "30mins"; want a duration such as 90s or 1m30s`},
		{"duration without unit", "wait: 30", "f.yaml:1: wait: is the number 30; want a duration such as 90s or 1m30s"},
		{"quantity", "amount: 5GB", `f.yaml:1: amount: is the string "5GB"; want a quantity such as 500Mi`},
		{"quantity octal", "amount: 010", "f.yaml:1: amount: is the number 010, which is octal in YAML 1.1 and decimal in YAML 1.2; leave out the leading 0"},
		{"quantity of bool", "amount: true", "f.yaml:1: amount: is true; want a quantity such as 500Mi"},
		{"text type", "colour: blue", `f.yaml:1: colour: "blue" is not a colour; want red`},
		{"text key", "colours:\n  red: 1\n  blue: 2", `f.yaml:3: colours.blue: "blue" is not a colour; want red`},
		{"own decoder", "items: []\nshout: quiet", "f.yaml:2: shout: is too quiet at shout"},
		{"null elements", "list: [a, null, ~]\nmap:\n  a:\n", `
f.yaml:1: list[1]: is null; give it a value, or leave it out
f.yaml:1: list[2]: is null; give it a value, or leave it out
f.yaml:3: map.a: is null; give it a value, or leave it out`},
		{"keys", "map: {[a]: b, null: c, {d: e}: f}", `
f.yaml:1: map: a key here is a list; want a string
f.yaml:1: map: a key here is null; want a string
f.yaml:1: map: a key here is a map; want a string`},
		{"long key", "map: {" + strings.Repeat("k", 513) + ": v}", "f.yaml:1: map: a key here has 513 bytes; at most 512 are allowed"},
		{"unprintable key", `"\e[2J": 1`, `f.yaml:1: "\x1b[2J": is not a field here`},
		{"long value", "flag: " + strings.Repeat("é", 50), `f.yaml:1: flag: is the string "` + strings.Repeat("é", 32) + `…"; want true or false`},
		{"several, by line", "items:\n- nmae: a\n- waits:\n    x: 5\n- 7\nflag: 1\ndeep: {a: {b: c}}", `
f.yaml:2: items[0].nmae: is not a field here; did you mean name?
f.yaml:4: items[1].waits.x: is the number 5; want a string: put it in quotes
f.yaml:5: items[2]: is the number 7; want a map
f.yaml:6: flag: is the number 1; want true or false
f.yaml:7: deep.a.b: is the string "c"; want a whole number`},
		{"merge", "items:\n- <<: 5\n- <<: [{name: a}, 6]\n", `
f.yaml:2: items[0]: a merge key (<<) is the number 5; want a map, or a list of maps
f.yaml:3: items[1]: a merge key (<<) is the number 6; want a map, or a list of maps`},
		{"inside itself", "items: &a\n- waits: {x: *a}\nmap: &b\n  <<: *b\n", `
f.yaml:2: items[0].waits.x: is a list; want a string
f.yaml:4: map: alias *b refers to a value that contains it`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := decode(t, tt.text)
			if err == nil {
				t.Fatal("no error")
			}
			if diff := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), err.Error()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAliases(t *testing.T) {
	got, d, err := decode(t, `
text: &text hello
list: [*text, *text]
map: &waits {c: 3s}
items:
- &base
  name: base
  waits: {a: 1s, b: 2s}
- <<: *base
  name: derived
- <<: [{name: first}, {name: second, waits: *waits}]
`)
	if err != nil {
		t.Fatal(err)
	}
	base := map[string]string{"a": "1s", "b": "2s"}
	want := []sampleItem{{"base", base}, {"derived", base}, {"first", map[string]string{"c": "3s"}}}
	if diff := cmp.Diff(want, got.Items); diff != "" {
		t.Errorf("items (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"hello", "hello"}, got.List); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	if got := d.Line("items[1].waits"); got != 8 {
		t.Errorf("Position of a merged field = %d; want 8, where it is written", got)
	}
}

// TestBombs decodes files that expand to billions of values.
func TestBombs(t *testing.T) {
	list := "x: &a0 [a]\n"
	merge := "x: &m0 {a: b}\n"
	for i := 1; i < 10; i++ {
		list += fmt.Sprintf("x%d: &a%d [%s]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10))
		merge += fmt.Sprintf("x%d: &m%d {<<: [%s]}\n", i, i, strings.Repeat(fmt.Sprintf("*m%d, ", i-1), 10))
	}
	items := "map: &m {" + strings.Repeat("abc: d, ", 1) + strings.Join(numbered(1000), ", ") + "}\nitems:\n"
	items += strings.Repeat("- waits: *m\n", 10000)
	for name, text := range map[string]string{
		"merge": merge + "map: *m9\n",
		"items": items,
	} {
		d, root, err := Parse("f.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		d.Ignore("x", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9")
		var s sample
		d.Decode(root, &s)
		err = d.Err()
		if err == nil || strings.Count(err.Error(), "\n") > 0 || !strings.Contains(err.Error(), "too many values") {
			t.Errorf("%s: %v; want one problem, of too many values", name, err)
		}
	}
	if _, _, err := decode(t, list+"list: *a9\n"); err == nil {
		t.Error("list: no error; want one for each list in place of a string")
	}
}

func numbered(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("k%d: v", i)
	}
	return out
}

func TestManyProblems(t *testing.T) {
	_, _, err := decode(t, strings.Repeat("a: 1\n", 100_000))
	var problems Problems
	if !errors.As(err, &problems) || len(problems) != maxProblems+1 {
		t.Fatalf("%d problems; want %d", len(problems), maxProblems+1)
	}
	if got, want := problems[maxProblems].String(), "f.yaml:1002: more problems are not shown"; got != want {
		t.Errorf("last problem = %q; want %q", got, want)
	}
}

func TestFailed(t *testing.T) {
	_, d, err := decode(t, "map: {a: 5, ab: x}\nlist: 5\nitems: [{name: 7}]\n")
	if err == nil {
		t.Fatal("no error")
	}
	for path, want := range map[string][2]bool{ // failed, broken
		"":              {true, false},
		"map":           {true, false},
		"map.a":         {true, true},
		"map.ab":        {false, false},
		"list":          {true, true},
		"lis":           {false, false},
		"items":         {true, false},
		"items[0]":      {true, false},
		"items[0].name": {true, true},
		"text":          {false, false},
	} {
		if got := [2]bool{d.Failed(path), d.Broken(path)}; got != want {
			t.Errorf("Failed(%q), Broken = %v; want %v", path, got, want)
		}
	}
	if !d.At("items").Failed("[0].name") || d.At("items").At("[0]").Path() != "items[0]" {
		t.Error("paths below At are not joined")
	}
}

func TestLenient(t *testing.T) {
	d, root, err := ParseLenient("k.yaml", []byte("flag: no\nnumber: 60.0\nsmall: 010\nother: 1\ntext: a\ntext: b\nitems: [{nmae: x}]\nmine: {a: 1}\n---\nmore: 1"))
	if err != nil {
		t.Fatal(err)
	}
	d.Ignore("mine")
	s := sample{Flag: true}
	d.Decode(root, &s)
	if err := d.Err(); err != nil {
		t.Fatal(err)
	}
	if s.Flag || *s.Number != 60 || s.Small != 8 || s.Text != "b" {
		t.Errorf("flag, number, small, text = %t, %d, %d, %q; want false, 60, 8, b", s.Flag, *s.Number, s.Small, s.Text)
	}
	want := []string{
		"k.yaml: documents after the first are ignored",
		"k.yaml:4: other: is not a field here and is ignored",
		"k.yaml:6: text: is given twice; the one in line 5 is ignored",
		"k.yaml:7: items[0].nmae: is not a field here and is ignored; did you mean name?",
	}
	var got []string
	for _, n := range d.Notices() {
		got = append(got, n.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("notices (-want +got):\n%s", diff)
	}
	d, root, err = ParseLenient("k.yaml", []byte("number: 60.5\nflag: maybe\n"))
	if err != nil {
		t.Fatal(err)
	}
	d.Decode(root, &s)
	if got := len(d.Err().(Problems)); got != 2 {
		t.Errorf("%d problems; want 2: %v", got, d.Err())
	}
}

// TestRemoved checks that a removed field is a problem only at its own path, also
// without a value and with a decoder of a part of the file.
func TestRemoved(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"with a value", "items: []\ninner: {old: x}", "f.yaml:2: inner.old: was removed in v2: nothing used it; leave it out"},
		{"null", "inner:\n  old:", "f.yaml:2: inner.old: was removed in v2: nothing used it; leave it out"},
		{"elsewhere", "old: x", "f.yaml:1: old: is not a field here"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, root, err := Parse("f.yaml", []byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			d.At("inner").Removed("old", "in v2: nothing used it")
			var file struct {
				Items []string `yaml:"items"`
				Inner struct {
					Name string `yaml:"name"`
				} `yaml:"inner"`
			}
			d.Decode(root, &file)
			if err := d.Err(); err == nil || err.Error() != tt.want {
				t.Errorf("Err() = %v; want %s", err, tt.want)
			}
		})
	}
}

func TestNearest(t *testing.T) {
	names := []string{"evictionHard", "evictionSoft", "pid.available", "memory.available", "a"}
	for name, want := range map[string]string{
		"evictionhard":     "evictionHard",
		"evictionHrad":     "evictionHard",
		"evictionsofts":    "evictionSoft",
		"memory":           "",
		"mem.available":    "pid.available", // two letters, against three for memory.available
		"memory.avail":     "memory.available",
		"":                 "",
		"b":                "",
		"something else":   "",
		"allocatable.free": "",
	} {
		if got := Nearest(name, names); got != want {
			t.Errorf("Nearest(%q) = %q; want %q", name, got, want)
		}
	}
}

func TestUnsupportedType(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Decode into a channel did not panic")
		}
	}()
	d, root, err := Parse("f.yaml", []byte("c: 1"))
	if err != nil {
		t.Fatal(err)
	}
	d.Decode(root, &struct {
		C chan int `yaml:"c"`
	}{})
}
