package plan

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
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

// Data is what a source has.
type Data struct {
	UID    string
	Values map[string]string
}

// ValueDigest returns a hash of the value of a key of a Secret. The UID of the Secret is the key of the hash: it is
// random, and only those know it who may read the Secret. Others can't find a value by trying the likely ones.
//
// It is not the resourceVersion of the Secret, which changes with each password, label or annotation: a drill would not
// count any more after each of them. A Secret that is deleted and created again has other digests.
func ValueDigest(uid, key, value string) string {
	mac := hmac.New(sha256.New, []byte(uid))
	fmt.Fprintf(mac, "%s\x00%s", key, trimmed(value))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// trimmed returns a value without line breaks at its end: files, and the output of echo, end in one, which is no part of
// a password.
func trimmed(value string) string { return strings.TrimRight(value, "\r\n") }

// secretDigests are those of values in Secrets, of each Secret by the order of its keys.
type secretDigests []string

// sum returns [fence.Method.SecretDigest].
func (d secretDigests) sum() string {
	if len(d) == 0 {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.Join(d, " ")))
	return hex.EncodeToString(sum[:16])
}

// Resolve returns all parameters of a method of a built-in agent under their normal names, with those of its sources.
// Read returns the data of an object, live. Its result has secrets: it must not be saved or logged. The errors have
// none, if those of read have none. It is an error if a value has changed that is a part of what the drill of the
// method has shown: it may be another plug.
func Resolve(m fence.Method, read func(Source) (Data, error)) (map[string]string, error) {
	a := agents[m.Agent]
	if a == nil {
		return nil, fmt.Errorf("read the parameters of method %s: %w", m.Name, checkAgent(m.Agent))
	}
	return a.resolve(m, read)
}

func (a *agent) resolve(m fence.Method, read func(Source) (Data, error)) (map[string]string, error) {
	parameters := maps.Clone(m.Parameters)
	if parameters == nil {
		parameters = map[string]string{}
	}
	var digests secretDigests
	for _, s := range Sources(m) {
		data, err := read(s)
		if err == nil {
			err = a.addSource(parameters, s, data, &digests)
		}
		if err != nil {
			return nil, fmt.Errorf("read the parameters of method %s from %s: %w", m.Name, s, err)
		}
	}
	if m.Action == fence.Off && m.Identity == fence.CheckNone && m.Unverified != fence.Accept && digests.sum() != m.SecretDigest {
		return nil, fmt.Errorf("read the parameters of method %s: a value in its Secrets that is no password, or a Secret itself, "+
			"was replaced since the plan was made: it may be another plug; drill the node again", m.Name)
	}
	for _, p := range a.parameters {
		if p.required && parameters[p.name] == "" {
			return nil, fmt.Errorf("read the parameters of method %s: no value of %s; write the key %[2]s in one of its Secrets", m.Name, p.name)
		}
	}
	return parameters, nil
}

// addSource sets the parameters that a source has, and adds the digests of those that are no passwords.
func (a *agent) addSource(parameters map[string]string, s Source, data Data, digests *secretDigests) (err error) {
	values := data.Values
	if s.ConfigMap {
		values = plainSecrets(a, values)
	}
	from := map[string]string{}
	for _, key := range sortedKeys(values) {
		p := a.parameter(key)
		if p == nil || !p.fromSecret {
			continue
		}
		if from[p.name] != "" {
			return fmt.Errorf("%s and %s are the same; remove one of them", from[p.name], key)
		}
		from[p.name] = key
		value := trimmed(values[key])
		if value != "" {
			if value, err = p.check(value); err != nil {
				return fmt.Errorf("%s %w", key, err)
			}
		}
		parameters[p.name] = value
		if !p.secret {
			*digests = append(*digests, ValueDigest(data.UID, key, values[key]))
		}
	}
	return nil
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
