package plan

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/evictd/evictd/agent/properties"
)

// The limits of metadata. That of fence-agents 4.12 has at most 60 parameters and 30 KiB.
const (
	maxMetadata   = 1 << 20
	maxDepth      = 16
	maxParameters = 512
	maxOptions    = 256
)

// Schema is what a fence agent says about itself.
type Schema struct {
	// Name is the name of the agent, for example fence_ipmilan.
	Name       string
	Parameters []Parameter
	// Actions are those that the agent has, for example off and status.
	Actions []string
}

// Parameter is a parameter of a fence agent.
type Parameter struct {
	// Name is the name in the agent's spelling; Aliases are the names of earlier versions.
	Name     string
	Aliases  []string
	Required bool
	// Type is string, boolean, integer, second or select; agents have others, too, that are strings.
	Type    string
	Default string
	// Options are the values of a select.
	Options []string
}

// metadataParameter is a parameter element.
type metadataParameter struct {
	Parameter
	deprecated bool
	obsoletes  string
}

// metadataReader reads one element after the other.
type metadataReader struct {
	schema     Schema
	parameters []metadataParameter
	path       []string // the names of the open elements
}

// ParseMetadata parses what a fence agent prints with action=metadata:
//
//	<resource-agent name="fence_ipmilan" shortdesc="Fence agent for IPMI">
//	<parameters>
//	  <parameter name="ip" required="1" obsoletes="ipaddr">
//	    <content type="string" default=""/>
//	  </parameter>
//	  <parameter name="ipaddr" required="1" deprecated="1">
//	    <content type="string"/>
//	  </parameter>
//	</parameters>
//	<actions>
//	  <action name="off"/>
//	</actions>
//	</resource-agent>
//
// A parameter that another one obsoletes is an alias of it. Elements and attributes that are not known are ignored, as
// are parameters whose name can't be the key of a property.
func ParseMetadata(text []byte) (Schema, error) {
	r := &metadataReader{}
	if err := r.read(text); err != nil {
		return Schema{}, fmt.Errorf("parse metadata of a fence agent: %w", err)
	}
	r.schema.Parameters = merged(r.parameters)
	return r.schema, nil
}

func (r *metadataReader) read(text []byte) error {
	if len(text) > maxMetadata {
		return fmt.Errorf("it has %d bytes, more than %d", len(text), maxMetadata)
	}
	// The decoder knows no other entities than the predefined ones, and fetches nothing.
	for decoder := xml.NewDecoder(bytes.NewReader(text)); ; {
		token, err := decoder.Token()
		switch {
		case errors.Is(err, io.EOF) && r.schema.Name == "":
			return errors.New("it has no element resource-agent")
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		switch t := token.(type) {
		case xml.Directive:
			return errors.New("it has a document type, which metadata does not need")
		case xml.StartElement:
			if r.path = append(r.path, t.Name.Local); len(r.path) > maxDepth {
				return fmt.Errorf("elements are nested more than %d deep", maxDepth)
			}
			if err := r.element(attributes(t.Attr)); err != nil {
				return err
			}
		case xml.EndElement:
			r.path = r.path[:len(r.path)-1]
		}
	}
}

func attributes(all []xml.Attr) map[string]string {
	out := make(map[string]string, len(all))
	for _, a := range all {
		out[a.Name.Local] = a.Value
	}
	return out
}

// element reads the element at the end of the path.
func (r *metadataReader) element(a map[string]string) error {
	path := strings.Join(r.path, "/")
	if len(r.path) == 1 {
		if path != "resource-agent" {
			return fmt.Errorf("it begins with the element %s, not resource-agent", show(path))
		}
		if r.schema.Name = a["name"]; !FenceAgent(r.schema.Name) {
			return fmt.Errorf("the name of the agent is %s, not fence_NAME", show(r.schema.Name))
		}
		return nil
	}
	const parameter = "resource-agent/parameters/parameter"
	switch path {
	case parameter:
		if len(r.parameters) == maxParameters {
			return fmt.Errorf("it has more than %d parameters", maxParameters)
		}
		r.parameters = append(r.parameters, metadataParameter{
			Parameter:  Parameter{Name: a["name"], Required: a["required"] == "1"},
			deprecated: a["deprecated"] == "1", obsoletes: a["obsoletes"],
		})
	case parameter + "/content":
		p := &r.parameters[len(r.parameters)-1]
		p.Type, p.Default = a["type"], a["default"]
	case parameter + "/content/option":
		p := &r.parameters[len(r.parameters)-1]
		if len(p.Options) == maxOptions {
			return fmt.Errorf("parameter %s has more than %d options", show(p.Name), maxOptions)
		}
		p.Options = append(p.Options, a["value"])
	case "resource-agent/actions/action":
		if name := a["name"]; !slices.Contains(r.schema.Actions, name) && len(r.schema.Actions) < maxOptions {
			r.schema.Actions = append(r.schema.Actions, name)
		}
	}
	return nil
}

// merged returns the parameters with the names of those that they obsolete. No two have a name in common.
func merged(all []metadataParameter) []Parameter {
	obsolete := map[string]bool{} // those that are an alias
	for _, p := range all {
		if p.obsoletes != "" {
			obsolete[fold(p.obsoletes)] = true
		}
	}
	taken := map[string]bool{}
	take := func(name string) bool {
		free := properties.ValidKey(name) && !taken[fold(name)]
		taken[fold(name)] = true
		return free
	}
	var out []Parameter
	for _, p := range all {
		if p.deprecated && obsolete[fold(p.Name)] || !take(p.Name) {
			continue
		}
		out = append(out, p.Parameter)
	}
	for _, p := range all {
		i := slices.IndexFunc(out, func(o Parameter) bool { return o.Name == p.Name })
		if p.obsoletes != "" && i >= 0 && take(p.obsoletes) {
			out[i].Aliases = append(out[i].Aliases, p.obsoletes)
		}
	}
	return out
}
