package plan

import (
	"fmt"
	"maps"
	"strings"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/properties"
)

// configMapSource begins an entry of [fence.Method.Secrets] that is a ConfigMap: one with a password, which
// cluster-fence-config allows with allow_plain_secrets=yes. Names of objects have no slash.
const configMapSource = "ConfigMap/"

// Source is an object with parameters of a method that are not in its plan.
type Source struct {
	ConfigMap bool // else a Secret
	Name      string
}

// String returns the source as "Secret name" or "ConfigMap name".
func (s Source) String() string {
	if s.ConfigMap {
		return "ConfigMap " + s.Name
	}
	return "Secret " + s.Name
}

// Sources returns the objects that [Resolve] reads, those of the template first.
func Sources(m fence.Method) []Source {
	var all []Source
	for _, entry := range m.Secrets {
		name, configMap := strings.CutPrefix(entry, configMapSource)
		all = append(all, Source{configMap, name})
	}
	return all
}

// Resolve returns all parameters of a method of a built-in agent under their normal names, with those of its sources.
// Read returns the data of an object, live. Its result has secrets: it must not be saved or logged. The errors have
// none, if those of read have none.
func Resolve(m fence.Method, read func(Source) (map[string]string, error)) (map[string]string, error) {
	a := agents[m.Agent]
	if a == nil {
		return nil, fmt.Errorf("read the parameters of method %s: %w", m.Name, checkAgent(m.Agent))
	}
	return a.resolve(m, read)
}

func (a *agent) resolve(m fence.Method, read func(Source) (map[string]string, error)) (map[string]string, error) {
	parameters := maps.Clone(m.Parameters)
	if parameters == nil {
		parameters = map[string]string{}
	}
	for _, s := range Sources(m) {
		data, err := read(s)
		if err != nil {
			return nil, fmt.Errorf("read the parameters of method %s from %s: %w", m.Name, s, err)
		}
		if s.ConfigMap {
			data = plainSecrets(a, data)
		}
		from := map[string]string{}
		for _, key := range sortedKeys(data) {
			p := a.parameter(key)
			if p == nil || !p.fromSecret {
				continue
			}
			if from[p.name] != "" {
				return nil, fmt.Errorf("read the parameters of method %s from %s: %s and %s are the same; remove one of them", m.Name, s, from[p.name], key)
			}
			from[p.name] = key
			// Files, and the output of echo, end in a line break, which is no part of a password.
			value := strings.TrimRight(data[key], "\r\n")
			if value != "" {
				if value, err = p.check(value); err != nil {
					return nil, fmt.Errorf("read the parameters of method %s from %s: %s %w", m.Name, s, key, err)
				}
			}
			parameters[p.name] = value
		}
	}
	for _, p := range a.parameters {
		if p.required && parameters[p.name] == "" {
			return nil, fmt.Errorf("read the parameters of method %s: no value of %s; write the key %[2]s in one of its Secrets", m.Name, p.name)
		}
	}
	return parameters, nil
}

// plainSecrets returns the passwords in a ConfigMap.
func plainSecrets(a *agent, data map[string]string) map[string]string {
	out := map[string]string{}
	for _, dataKey := range []string{methodKey, templateKey} {
		list, _ := properties.Parse(data[dataKey])
		for _, v := range list {
			if p := a.parameter(v.Key); p != nil && p.secret {
				out[v.Key] = v.Value
			}
		}
	}
	return out
}
