package strict

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// entry is a key of a map and its value.
type entry struct {
	key   string
	line  int // the key's
	value *yaml.Node
}

// entries returns the entries of a map: its own keys in the order of the file,
// then those from merge keys. It reports duplicate keys.
func (d *Decoder) entries(n *yaml.Node, path string) []entry {
	var own []entry
	var merges []*yaml.Node
	first := map[string]int{} // by key, its index in own
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		switch {
		case key.ShortTag() == "!!merge":
			merges = append(merges, value)
		case key.Kind != yaml.ScalarNode || key.ShortTag() == "!!null":
			d.problem(n.Content[i].Line, path, "a key here is "+found(key)+"; want a string")
		case len(key.Value) > maxKey:
			d.problem(n.Content[i].Line, path, fmt.Sprintf("a key here has %d bytes; at most %d are allowed", len(key.Value), maxKey))
		default:
			e := entry{key: key.Value, line: n.Content[i].Line, value: value}
			at, given := first[e.key]
			if !given {
				first[e.key] = len(own)
				own = append(own, e)
				continue
			}
			if d.lenient {
				d.notice(e.line, Key(path, e.key), fmt.Sprintf("is given twice; the one in line %d is ignored", own[at].line))
				own[at] = e
				continue
			}
			d.problem(e.line, Key(path, e.key), fmt.Sprintf("is given twice, first in line %d", own[at].line))
		}
	}
	for _, m := range merges {
		own = d.merge(own, first, m, path)
	}
	return own
}

// merge adds the entries of a merge key's value: a map, or a list of maps, of
// which the first with a key sets its value. Entries in own are not replaced.
func (d *Decoder) merge(own []entry, first map[string]int, n *yaml.Node, path string) []entry {
	line := n.Line
	n, done := d.follow(n, path)
	defer done()
	if n == nil || !d.spend(line, path) {
		return own
	}
	switch n.Kind {
	case yaml.SequenceNode:
		for _, one := range n.Content {
			own = d.merge(own, first, one, path)
		}
	case yaml.MappingNode:
		for _, e := range d.entries(n, path) {
			if !d.spend(e.line, path) {
				break
			}
			if _, given := first[e.key]; !given {
				first[e.key] = len(own)
				own = append(own, e)
			}
		}
	default:
		d.problem(n.Line, path, "a merge key (<<) is "+found(n)+"; want a map, or a list of maps")
	}
	return own
}

// follow returns the node that an alias refers to, and any other node itself. It
// reports an alias that contains itself and returns nil for it. The caller must
// call done when it has decoded the value.
func (d *Decoder) follow(n *yaml.Node, path string) (value *yaml.Node, done func()) {
	if n.Kind != yaml.AliasNode {
		return n, func() {}
	}
	if d.following[n.Alias] {
		d.problem(n.Line, path, fmt.Sprintf("alias *%s refers to a value that contains it", n.Value))
		return nil, func() {}
	}
	d.following[n.Alias] = true
	return n.Alias, func() { delete(d.following, n.Alias) }
}

// spend takes one value off the budget and returns whether some is left. It
// reports once when the budget is used up.
func (d *Decoder) spend(line int, path string) bool {
	d.budget--
	if d.budget == 0 {
		d.problem(line, path, "the aliases and merge keys up to here expand to too many values")
	}
	return d.budget > 0
}
