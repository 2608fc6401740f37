package config

import (
	"bytes"
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/evictd/evictd/agent/config/strict"
)

// Value is one value in force.
type Value struct {
	Field  string `json:"field"`
	Value  any    `json:"value"`
	Origin Origin `json:"origin"`
}

// Values returns every value in force in the order of the fields. An empty map
// or list counts as one value.
func (c *Config) Values() ([]Value, error) {
	root, err := c.node()
	if err != nil {
		return nil, err
	}
	var values []Value
	leaves(root, "", func(path string, n *yaml.Node) {
		v := Value{Field: path, Origin: c.Origin(path)}
		err = errors.Join(err, n.Decode(&v.Value))
		values = append(values, v)
	})
	return values, err
}

// Dump returns the configuration in force as an AgentConfiguration, with the
// origin of each value as a comment. Parsing it gives the same configuration.
func (c *Config) Dump() ([]byte, error) {
	root, err := c.node()
	if err != nil {
		return nil, err
	}
	leaves(root, "", func(path string, n *yaml.Node) { n.LineComment = string(c.Origin(path)) })
	root.Content = append([]*yaml.Node{scalar("apiVersion"), scalar(APIVersion), scalar("kind"), scalar(Kind)}, root.Content...)
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(root); err != nil {
		return nil, fmt.Errorf("dump configuration: %w", err)
	}
	return b.Bytes(), nil
}

func (c *Config) node() (*yaml.Node, error) {
	root := &yaml.Node{}
	if err := root.Encode(c); err != nil {
		return nil, fmt.Errorf("dump configuration: %w", err)
	}
	return root, nil
}

func scalar(text string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: text} }

// leaves calls visit for each scalar and for each empty map or list.
func leaves(n *yaml.Node, path string, visit func(path string, n *yaml.Node)) {
	switch {
	case len(n.Content) == 0:
		visit(path, n)
	case n.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			leaves(n.Content[i+1], strict.Key(path, n.Content[i].Value), visit)
		}
	default:
		for i, one := range n.Content {
			leaves(one, strict.Index(path, i), visit)
		}
	}
}
