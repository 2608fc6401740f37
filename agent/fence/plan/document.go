package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/evictd/evictd/agent/properties"
)

// maxProblems is how many problems of one object are kept, so that a text of the wrong kind does not fill the log.
const maxProblems = 100

// property is one line of a text of properties.
type property struct {
	key, value string
	line       int
}

// document is the text of properties in a ConfigMap.
type document struct {
	p          *parser
	object     string // for problems
	name       string
	properties []property
	broken     bool // there is a problem that is not a warning
	problems   int
}

// open parses the text of properties in a ConfigMap. It must be the only content.
func (p *parser) open(o *Object, dataKey string) *document {
	d := &document{p: p, object: reference("ConfigMap", o.Namespace, o.Name), name: o.Name}
	for _, key := range slices.Sorted(maps.Keys(o.Data)) {
		if key != dataKey {
			d.fail(0, key, "is not a data key of this ConfigMap", "put the properties into the data key "+dataKey)
		}
	}
	text, ok := o.Data[dataKey]
	if !ok {
		d.fail(0, dataKey, "is missing", "put the properties into the data key "+dataKey)
		return d
	}
	list, errs := properties.Parse(text)
	for _, v := range list {
		d.properties = append(d.properties, property{v.Key, v.Value, v.Line})
	}
	for _, e := range errs {
		d.fail(e.Line, e.Key, e.Message, e.Remedy)
	}
	return d
}

func (d *document) fail(line int, key, message, remedy string) {
	d.broken = true
	d.report(Problem{Object: d.object, Line: line, Key: key, Message: message, Remedy: remedy})
}

func (d *document) warn(line int, key, message, remedy string) {
	d.report(Problem{Object: d.object, Line: line, Key: key, Message: message, Remedy: remedy, Warning: true})
}

func (d *document) report(p Problem) {
	switch d.problems++; {
	case d.problems <= maxProblems:
		d.p.problems = append(d.p.problems, p)
	case d.problems == maxProblems+1:
		d.p.problems = append(d.p.problems, Problem{Object: d.object, Line: p.Line, Message: "more problems are not shown", Remedy: "correct the others first"})
	}
}

func (d *document) keys() []string {
	var keys []string
	for _, p := range d.properties {
		keys = append(keys, p.key)
	}
	return keys
}

func (d *document) has(key string) bool {
	return slices.ContainsFunc(d.properties, func(p property) bool { return fold(p.key) == key })
}

// field is a key that a document may have.
type field struct {
	name     string
	aliases  []string // other right names
	misspelt []string // names that are accepted with a warning
	unlisted bool     // the name is not in a remedy
}

// match says whether a key is that of the field, and whether it is a right name of it.
func (f *field) match(key string) (ok, right bool) {
	folded := fold(key)
	switch {
	case folded == f.name, slices.Contains(f.aliases, folded):
		return true, key == strings.ToLower(key)
	case slices.Contains(f.misspelt, folded):
		return true, false
	}
	return false, false
}

// fields returns the properties by the names of their fields. Unknown keys, and fields that are given under two names,
// are problems.
func (d *document) fields(known []field) map[string]property {
	values := make(map[string]property, len(d.properties))
	for _, p := range d.properties {
		if d.problems > maxProblems {
			break // a text of another kind: it is not used, and no further problem is shown
		}
		i := slices.IndexFunc(known, func(f field) bool { ok, _ := f.match(p.key); return ok })
		if i < 0 {
			var names []string
			for j := range known {
				if !known[j].unlisted {
					names = append(names, known[j].name)
				}
			}
			d.fail(p.line, p.key, "is not a key of this ConfigMap", "the keys are "+strings.Join(names, ", "))
			continue
		}
		d.assign(values, known[i].name, p)
		if _, right := known[i].match(p.key); !right {
			d.warn(p.line, p.key, "is read as "+known[i].name, "write "+known[i].name)
		}
	}
	return values
}

// assign sets the value of a field.
func (d *document) assign(values map[string]property, name string, p property) {
	if earlier, ok := values[name]; ok {
		d.fail(p.line, p.key, fmt.Sprintf("is the same as %s in line %d", earlier.key, earlier.line), "remove one of the lines")
		return
	}
	values[name] = p
}
