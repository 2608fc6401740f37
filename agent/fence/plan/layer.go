package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/properties"
)

// settings are the keys that methods and templates of all agents may have in addition to the agent's parameters.
var settings = []field{
	{name: "must_success", misspelt: []string{"must_sucess"}},
	{name: "identity"},
	{name: "unverified"},
	{name: "separate_power"},
	{name: "timeout", aliases: []string{"deadline"}},
	{name: "releases"},
	{name: "executor"},
}

// The limits of the time for one act.
const (
	minDeadline = time.Second
	maxDeadline = 10 * time.Minute
)

// layer is what a ConfigMap and the Secret of its name say about a method: those of the template are the first layer,
// those of the method the second, which overrides the first.
type layer struct {
	doc *document
	// values are settings, and parameters in normal form, by their names.
	values map[string]property
	// fromSecret are the parameters that are in the Secret, and secret those whose value is secret, wherever it is.
	fromSecret, secret map[string]bool
	// sources are what [Resolve] reads.
	sources []string
	// digests are those of the values in the Secret that are no passwords.
	digests secretDigests
}

// layer reads the properties of a document. The keys in own are those of the ConfigMap alone.
func (p *parser) layer(d *document, a *agent, own ...field) *layer {
	l := &layer{doc: d, fromSecret: map[string]bool{}, secret: map[string]bool{}}
	known := slices.Concat(own, settings)
	a.adopt(d.keys())
	if o := p.secrets[d.name]; o != nil {
		a.adopt(sortedKeys(o.Data))
	}
	for i := range a.parameters {
		known = append(known, a.parameters[i].field)
	}
	l.values = d.fields(known)
	for name, v := range l.values {
		parameter := a.parameter(name)
		switch {
		case parameter == nil:
			l.checkSetting(name, v)
		case parameter.refuse != "":
			delete(l.values, name)
			d.fail(v.line, v.key, parameter.refuse, "remove the line")
		case parameter.secret:
			delete(l.values, name)
			l.secret[name] = true
			p.plainSecret(d, v)
			if _, err := parameter.check(v.value); err != nil {
				d.fail(v.line, v.key, err.Error(), "correct the value, or remove the line")
			}
		default:
			normal, err := parameter.check(v.value)
			if err != nil {
				d.fail(v.line, v.key, err.Error(), "correct the value")
			}
			if err == nil && parameter.warn != nil {
				if message, remedy := parameter.warn(normal); message != "" {
					d.warn(v.line, v.key, message, remedy)
				}
			}
			v.value = normal
			l.values[name] = v
		}
	}
	if len(l.secret) > 0 {
		l.sources = append(l.sources, configMapSource+d.name)
	}
	p.secretKeys(l, a)
	l.checkBuiltIn(a)
	return l
}

func (l *layer) checkSetting(name string, v property) {
	switch name {
	case "must_success", "separate_power":
		if _, err := properties.ParseSwitch(v.value); err != nil {
			l.doc.fail(v.line, v.key, "is "+show(v.value), err.Error())
		}
	case "identity":
		if v.value != "uuid" && v.value != "none" {
			l.doc.fail(v.line, v.key, "is "+show(v.value),
				"write uuid, which compares the device's UUID with the node's, or none, which does not")
		}
	case "unverified":
		if v.value != string(fence.Accept) {
			l.doc.fail(v.line, v.key, "is "+show(v.value), "write accept if you know without a drill that the device is the node's, or remove the line")
		}
	case "timeout":
		if d, err := properties.ParseDuration(v.value); err != nil || d < minDeadline || d > maxDeadline {
			l.doc.fail(v.line, v.key, "is "+show(v.value), fmt.Sprintf("write a duration from %s to %s", minDeadline, maxDeadline))
		}
	case "executor":
		if _, known := executors[v.value]; !known {
			l.doc.fail(v.line, v.key, "is "+show(v.value), executorRemedy)
		}
	case "releases":
		if _, err := parseReleases(v.value); err != nil {
			l.doc.fail(v.line, v.key, err.Error(), "write names of CSI drivers or StorageClasses, with blanks between them")
		}
	}
}

// plainSecret reports a password in a ConfigMap.
func (p *parser) plainSecret(d *document, v property) {
	const message = "a ConfigMap is not for passwords"
	remedy := fmt.Sprintf("move it to a Secret named %s, key %s", d.name, v.key)
	if p.allowPlain {
		d.warn(v.line, v.key, message, remedy)
		return
	}
	d.fail(v.line, v.key, message, remedy+", or write allow_plain_secrets=yes in "+policyName)
}

// secretKeys adds the keys of the Secret that has the name of a layer's ConfigMap.
func (p *parser) secretKeys(l *layer, a *agent) {
	o := p.secrets[l.doc.name]
	if o == nil {
		return
	}
	secret := &document{p: p, object: reference("Secret", o.Namespace, o.Name)}
	for _, key := range sortedKeys(o.Data) {
		parameter := a.parameter(key)
		if parameter == nil || !parameter.fromSecret {
			secret.fail(0, key, "is not a key that a Secret may have", "the keys are "+strings.Join(a.secretKeys(), ", "))
			continue
		}
		name := parameter.name
		_, plain := l.values[name]
		switch {
		case l.fromSecret[name]:
			secret.fail(0, key, "is there under two names", "remove one of them")
		case plain || l.secret[name]:
			secret.fail(0, key, "is also in the ConfigMap of this name", "remove it there")
		}
		l.fromSecret[name] = true
		l.secret[name] = l.secret[name] || parameter.secret
		if digest := o.Digests[key]; digest != "" && !parameter.secret {
			l.digests = append(l.digests, digest)
		}
	}
	l.doc.broken = l.doc.broken || secret.broken
	if len(l.fromSecret) > 0 {
		l.sources = append(l.sources, o.Name)
	}
}

// secretKeys returns the parameters that may be in a Secret.
func (a *agent) secretKeys() []string {
	var names []string
	for _, p := range a.parameters {
		if p.fromSecret {
			names = append(names, p.name)
		}
	}
	return names
}

// checkUnknown checks the properties of an agent that has no schema in this release.
func (p *parser) checkUnknown(d *document) {
	for _, v := range d.properties {
		switch {
		case strings.HasSuffix(fold(v.key), "_script"):
			d.fail(v.line, v.key, "would run a program", "move the password to a Secret named "+d.name)
		case secretLike(v.key):
			p.plainSecret(d, v)
		case slices.Contains(settings[0].misspelt, fold(v.key)):
			d.warn(v.line, v.key, "is read as "+settings[0].name, "write "+settings[0].name)
		}
	}
}
