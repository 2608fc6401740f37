package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	fenceplan "github.com/evictd/evictd/agent/fence/plan"
)

// maxObjectsFile is the length limit of a file with objects in bytes.
const maxObjectsFile = 64 << 20

// loadFencing reads files with ConfigMaps and Secrets. Objects of other kinds, and those of other namespaces, are
// ignored.
func loadFencing(files []string, namespace string) (fenceplan.Config, []fenceplan.Problem, error) {
	r := &objectReader{agents: map[string]fenceplan.Schema{}}
	for _, file := range files {
		read := r.read
		if strings.HasSuffix(file, ".xml") {
			read = r.readMetadata
		}
		if err := read(file); err != nil {
			return fenceplan.Config{}, nil, err
		}
	}
	objects, err := r.objects(namespace)
	if err != nil {
		return fenceplan.Config{}, nil, err
	}
	c, problems := fenceplan.Parse(objects)
	return c, problems, nil
}

// objectReader collects the objects of files. It never has a value of a Secret, also not in its errors.
type objectReader struct {
	configMaps, secrets []fenceplan.Object
	agents              map[string]fenceplan.Schema
}

// manifest is a Kubernetes object, or a list of them.
type manifest struct {
	Kind     string `yaml:"kind"`
	Metadata struct {
		Name      string `yaml:"name"`
		Namespace string `yaml:"namespace"`
	} `yaml:"metadata"`
	Data       yaml.Node   `yaml:"data"`
	StringData yaml.Node   `yaml:"stringData"`
	Items      []yaml.Node `yaml:"items"`
}

// readMetadata reads the metadata of a fence agent.
func (r *objectReader) readMetadata(file string) error {
	text, err := readObjects(file)
	if err != nil {
		return err
	}
	s, err := fenceplan.ParseMetadata(text)
	if err != nil {
		return fmt.Errorf("read %s: %w; write the metadata with fence_NAME -o metadata", file, err)
	}
	if _, ok := r.agents[s.Name]; ok {
		return fmt.Errorf("read %s: another file has the metadata of %s, too; name one of them", file, s.Name)
	}
	r.agents[s.Name] = s
	return nil
}

// read reads the documents of a file.
func (r *objectReader) read(file string) error {
	text, err := readObjects(file)
	if err != nil {
		return err
	}
	for documents := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var root yaml.Node
		err := documents.Decode(&root)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && strings.Contains(err.Error(), "anchor"):
			// The message has the name of the anchor: a password that begins with an asterisk.
			return fmt.Errorf("read %s: an alias has no anchor; put a value that begins with * in quotes", file)
		case err != nil:
			return fmt.Errorf("read %s: %w", file, err)
		}
		for _, n := range root.Content {
			if err := r.add(file, n); err != nil {
				return err
			}
		}
	}
}

// add adds the objects in a node: a list of them, an object, or nothing.
func (r *objectReader) add(file string, n *yaml.Node) error {
	switch {
	case n.Kind == yaml.SequenceNode:
		for _, item := range n.Content {
			if err := r.add(file, item); err != nil {
				return err
			}
		}
		return nil
	case n.Tag == "!!null":
		return nil
	case n.Kind != yaml.MappingNode:
		return fmt.Errorf("%s:%d: is not a Kubernetes object; write a map with kind and metadata", file, n.Line)
	}
	var m manifest
	if err := n.Decode(&m); err != nil {
		return fmt.Errorf("%s:%d: is not a Kubernetes object: kind, metadata or items has a wrong type, or a key is there twice; correct it", file, n.Line)
	}
	switch {
	case m.Kind == "List", m.Kind == "ConfigMapList", m.Kind == "SecretList":
		for i := range m.Items {
			if err := r.add(file, &m.Items[i]); err != nil {
				return err
			}
		}
	case m.Kind == "ConfigMap":
		return r.addObject(file, n.Line, &m, &r.configMaps, &m.Data)
	case m.Kind == "Secret":
		return r.addObject(file, n.Line, &m, &r.secrets, &m.Data, &m.StringData)
	case m.Kind == "":
		return fmt.Errorf("%s:%d: has no kind; write a Kubernetes object", file, n.Line)
	}
	return nil
}

// addObject adds a ConfigMap or a Secret. The values of a Secret are not copied.
func (r *objectReader) addObject(file string, line int, m *manifest, into *[]fenceplan.Object, data ...*yaml.Node) error {
	if m.Metadata.Name == "" {
		return fmt.Errorf("%s:%d: %s has no metadata.name; write one", file, line, m.Kind)
	}
	o := fenceplan.Object{Namespace: m.Metadata.Namespace, Name: m.Metadata.Name, Data: map[string]string{}}
	for _, n := range data {
		if n.IsZero() || n.Tag == "!!null" {
			continue
		}
		keys, err := dataKeys(n)
		if err != nil {
			return fmt.Errorf("%s:%w in %s %s; correct it", file, err, m.Kind, o.Name)
		}
		for key, value := range keys {
			o.Data[key] = ""
			if m.Kind == "ConfigMap" {
				o.Data[key] = value
			}
		}
	}
	*into = append(*into, o)
	return nil
}

// dataKeys returns the data of an object. Its errors begin with the line and do not have values.
func dataKeys(n *yaml.Node) (map[string]string, error) {
	if n.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%d: the data is not a map", n.Line)
	}
	out := map[string]string{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || value.Kind != yaml.ScalarNode {
			return nil, fmt.Errorf("%d: a value is not a string", key.Line)
		}
		if _, ok := out[key.Value]; ok {
			return nil, fmt.Errorf("%d: a key of the data is there twice", key.Line)
		}
		out[key.Value] = value.Value
	}
	return out, nil
}

// objects returns the objects of one namespace. Those without a namespace are part of it: kubectl puts them into the
// namespace that it is given.
func (r *objectReader) objects(namespace string) (fenceplan.Objects, error) {
	var found []string
	for _, o := range slices.Concat(r.configMaps, r.secrets) {
		if o.Namespace != "" && !slices.Contains(found, o.Namespace) {
			found = append(found, o.Namespace)
		}
	}
	switch {
	case namespace == "" && len(found) > 1:
		slices.Sort(found)
		return fenceplan.Objects{}, usagef("the files have objects of the namespaces %s; name one with --namespace", strings.Join(found, ", "))
	case namespace == "" && len(found) == 1:
		namespace = found[0]
	}
	of := func(all []fenceplan.Object) []fenceplan.Object {
		var out []fenceplan.Object
		for _, o := range all {
			if o.Namespace == "" || o.Namespace == namespace {
				o.Namespace = namespace
				out = append(out, o)
			}
		}
		return out
	}
	return fenceplan.Objects{ConfigMaps: of(r.configMaps), Secrets: of(r.secrets), Agents: r.agents, Unchecked: true, NoDrills: true}, nil
}
