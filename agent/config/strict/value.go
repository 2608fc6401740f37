package strict

import (
	"encoding"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
)

// value decodes n, which is at path (from the file's root), into v. A null leaves v as
// it is.
func (d *Decoder) value(n *yaml.Node, v reflect.Value, path string) {
	line := n.Line
	n, done := d.follow(n, path)
	defer done()
	if n == nil || !d.spend(line, path) || isNull(n) {
		return
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		d.value(n, v.Elem(), path)
		return
	}
	at := &Decoder{file: d.file, path: path}
	switch into := v.Addr().Interface().(type) {
	case Unmarshaler:
		into.DecodeYAML(at, n)
		return
	case *time.Duration:
		at.duration(n, into)
		return
	case *resource.Quantity:
		at.quantity(n, into)
		return
	case encoding.TextUnmarshaler:
		if text, ok := at.text(n); ok {
			if err := into.UnmarshalText([]byte(text)); err != nil {
				d.problem(line, path, err.Error())
			}
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		at.structure(n, v)
	case reflect.Map:
		at.mapping(n, v)
	case reflect.Slice:
		at.list(n, v)
	case reflect.String:
		if text, ok := at.text(n); ok {
			v.SetString(text)
		}
	case reflect.Bool:
		at.boolean(n, v)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		at.integer(n, v)
	default:
		panic(fmt.Sprintf("strict: can't decode into %s", v.Type()))
	}
}

func (d *Decoder) structure(n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.mismatch(n, "a map")
		return
	}
	fields := map[string]reflect.Value{}
	collectFields(v, fields)
	for _, e := range d.entries(n, d.path) {
		path := Key(d.path, e.key)
		field, known := fields[e.key]
		switch {
		case known && !isNull(e.value):
			d.setLine(path, e.line)
			d.value(e.value, field, path)
		case known || d.ignored[path]:
		case d.removed[path] != "":
			d.problem(e.line, path, "was removed "+d.removed[path]+"; leave it out")
		case d.lenient:
			d.notice(e.line, path, "is not a field here and is ignored"+suggestion(e.key, fields))
		default:
			d.problem(e.line, path, "is not a field here"+suggestion(e.key, fields))
		}
	}
}

// collectFields adds the fields of a struct by their names in the file, including
// those of inlined structs. An inlined nil pointer has none.
func collectFields(v reflect.Value, fields map[string]reflect.Value) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	for i := range v.NumField() {
		name, option, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		switch {
		case option == "inline":
			collectFields(v.Field(i), fields)
		case name != "" && name != "-":
			fields[name] = v.Field(i)
		}
	}
}

// suggestion returns the end of a message that suggests the field nearest to a
// misspelled name, and "" if none is near.
func suggestion(name string, fields map[string]reflect.Value) string {
	if near := Nearest(name, slices.Sorted(maps.Keys(fields))); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}

func (d *Decoder) mapping(n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.mismatch(n, "a map")
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	for _, e := range d.entries(n, d.path) {
		path := Key(d.path, e.key)
		d.setLine(path, e.line)
		key := reflect.New(v.Type().Key())
		if text, ok := key.Interface().(encoding.TextUnmarshaler); ok {
			if err := text.UnmarshalText([]byte(e.key)); err != nil {
				d.problem(e.line, path, err.Error())
				continue
			}
		} else {
			key.Elem().SetString(e.key)
		}
		if value, ok := d.element(e.value, v.Type().Elem(), path); ok {
			v.SetMapIndex(key.Elem(), value)
		}
	}
}

func (d *Decoder) list(n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.mismatch(n, "a list")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), 0, len(n.Content)))
	for i, one := range n.Content {
		path := Index(d.path, i)
		d.setLine(path, one.Line)
		// An invalid element is appended too, so that the indices of later ones
		// match the file.
		value, _ := d.element(one, v.Type().Elem(), path)
		v.Set(reflect.Append(v, value))
	}
}

// element decodes an entry of a map or list. A null is nil if the entries are
// pointers, else a problem. ok is false if a problem was reported.
func (d *Decoder) element(n *yaml.Node, t reflect.Type, path string) (value reflect.Value, ok bool) {
	value = reflect.New(t).Elem()
	if t.Kind() != reflect.Pointer && isNull(n) {
		d.problem(n.Line, path, "is null; give it a value, or leave it out")
		return value, false
	}
	before := len(d.problems)
	d.value(n, value, path)
	return value, len(d.problems) == before
}
