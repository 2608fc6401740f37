package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/properties"
)

const defaultDeadline = time.Minute

// template is a ConfigMap fence-method-template-<name>.
type template struct {
	doc   *document
	name  string // of the agent
	agent *agent // nil if this release cannot execute it
	layer *layer
	used  bool
}

// template returns the template in a ConfigMap, nil if there is none. Problems are reported once.
func (p *parser) template(name string) *template {
	if t := p.templates[name]; t != nil {
		return t
	}
	o := p.maps[name]
	if o == nil {
		return nil
	}
	d := p.open(o, templateKey)
	t := &template{doc: d}
	p.templates[name] = t
	i := slices.IndexFunc(d.properties, func(v property) bool { return fold(v.key) == "agent_name" })
	if i < 0 {
		d.fail(0, "agent_name", "is missing", "name an agent: "+agentNames())
		p.checkUnknown(d)
		return t
	}
	v := d.properties[i]
	a, err := p.agent(v.value)
	if err != nil {
		d.fail(v.line, v.key, err.Error(), p.agentRemedy(v.value))
		p.checkUnknown(d)
		return t
	}
	if a.unchecked {
		d.warn(v.line, v.key, "the parameters of "+v.value+" are not checked", fmt.Sprintf("print its metadata "+
			"where evictd-controller runs, with %s -o metadata > %[1]s.xml, and check it together with the file", v.value))
	}
	t.name, t.agent = v.value, a
	t.layer = p.layer(d, t.agent, field{name: "name"}, field{name: "agent_name"})
	return t
}

// method is a ConfigMap fence-method-<method>-<node>.
type method struct {
	doc      *document
	template *template // nil if it is missing
	action   fence.Action
	layer    *layer // nil if the agent is not known
	// byPolicy is the executor of cluster-fence-config.
	byPolicy fence.Executor
	// parameters are those of both layers, with defaults, without secrets.
	parameters map[string]string
	used       bool
}

// valid says that neither the method nor its template has a mistake.
func (m *method) valid() bool {
	return !m.doc.broken && m.template != nil && !m.template.doc.broken && m.layer != nil
}

// device returns the identity of device and plug, empty if it is not known.
func (m *method) device() string {
	if m.layer == nil {
		return ""
	}
	return m.template.agent.device(m.parameters)
}

// method returns the method in a ConfigMap, nil if there is none. Problems are reported once.
func (p *parser) method(name string) *method {
	if m := p.methods[name]; m != nil {
		return m
	}
	o := p.maps[name]
	if o == nil {
		return nil
	}
	d := p.open(o, methodKey)
	m := &method{doc: d, byPolicy: p.executor}
	p.methods[name] = m
	m.setAction()
	m.template = p.templateOf(d)
	if m.template == nil || m.template.agent == nil {
		p.checkUnknown(d)
		return m
	}
	own := []field{{name: "template"}, {name: "action"}}
	if fixed := m.template.agent.action; fixed != "" {
		m.action, own = fixed, own[:1]
	}
	m.layer = p.layer(d, m.template.agent, own...)
	m.merge()
	m.checkFenceAgent()
	p.checkExecutor(m)
	return m
}

func (d *document) get(key string) (property, bool) {
	i := slices.IndexFunc(d.properties, func(p property) bool { return fold(p.key) == key })
	if i < 0 {
		return property{}, false
	}
	return d.properties[i], true
}

func (m *method) setAction() {
	v, ok := m.doc.get("action")
	if !ok {
		return // that of the name's suffix; see [node.method]
	}
	switch fence.Action(v.value) {
	case fence.Off, fence.On:
		m.action = fence.Action(v.value)
	case "reboot", "cycle", "reset":
		m.doc.fail(v.line, v.key, "is "+v.value+", which switches on again before it is proven that the machine was off",
			"use two methods, one with action=off and one with action=on")
	default:
		m.doc.fail(v.line, v.key, "is "+show(v.value), "write action=off or action=on")
	}
}

// templateOf returns the template that a method names, nil if there is none.
func (p *parser) templateOf(d *document) *template {
	v, ok := d.get("template")
	switch {
	case !ok:
		d.fail(0, "template", "is missing", "name a ConfigMap "+templatePrefix+"NAME")
		return nil
	case !strings.HasPrefix(v.value, templatePrefix) || !validName(v.value):
		d.fail(v.line, v.key, "is "+show(v.value), "name a ConfigMap "+templatePrefix+"NAME")
		return nil
	}
	t := p.template(v.value)
	if t == nil {
		d.fail(v.line, v.key, "there is no ConfigMap "+v.value, "create it, or name another template")
		return nil
	}
	t.used = true
	return t
}

// merge sets the parameters and reports those that are missing.
func (m *method) merge() {
	m.parameters = map[string]string{}
	first, second := m.template.layer, m.layer
	broken := first.doc.broken || m.doc.broken
	for i := range m.template.agent.parameters {
		p := &m.template.agent.parameters[i]
		value := cmp.Or(second.values[p.name].value, first.values[p.name].value, p.value)
		secret := first.secret[p.name] || second.secret[p.name] || first.fromSecret[p.name] || second.fromSecret[p.name]
		v, overrides := second.values[p.name]
		switch {
		case overrides && first.fromSecret[p.name]:
			m.doc.fail(v.line, v.key, "is also in the Secret "+first.doc.name+" of the template", "move it to a Secret named "+m.doc.name)
		case value != "":
			m.parameters[p.name] = value
		case secret || !p.required || broken:
		case p.fromSecret:
			m.doc.fail(0, p.name, "is missing", fmt.Sprintf("create a Secret named %s or %s with the key %s", first.doc.name, m.doc.name, p.name))
		default:
			m.doc.fail(0, p.name, "is missing", "write it here or in the template")
		}
	}
}

// setting returns a setting of the method, else that of its template, else "".
func (m *method) setting(name string) string {
	return cmp.Or(m.layer.values[name].value, m.template.layer.values[name].value)
}

// plan returns a valid method as a part of a step of a plan.
func (m *method) plan(name string, action fence.Action, step fence.StepName) fence.Method {
	out := fence.Method{
		Name: name, Agent: m.template.name, Action: action, Device: m.device(),
		// That a machine does not come on again does not undo its fence.
		MustSuccess: action == fence.Off || step != fence.PowerManagement,
		Identity:    fence.CheckUUID,
		Deadline:    metav1.Duration{Duration: defaultDeadline},
		Parameters:  maps.Clone(m.parameters),
		Secrets:     slices.Concat(m.template.layer.sources, m.layer.sources),
	}
	if m.withoutDevice() {
		out.Identity = fence.CheckNone
	}
	if text := m.setting("releases"); text != "" && action == fence.Off {
		out.Releases, _ = parseReleases(text)
	}
	if text := m.setting("must_success"); text != "" {
		out.MustSuccess, _ = properties.ParseSwitch(text)
	}
	if text := m.setting("identity"); text != "" {
		out.Identity = fence.IdentityCheck(text)
	}
	// The word of a template counts for the methods whose device is not compared.
	if out.Identity == fence.CheckNone && action == fence.Off {
		out.Unverified = fence.Unverified(m.setting("unverified"))
		out.SecretDigest = slices.Concat(m.template.layer.digests, m.layer.digests).sum()
	}
	out.SeparatePower, _ = properties.ParseSwitch(m.setting("separate_power"))
	out.Executor = m.executor()
	if text := m.setting("timeout"); text != "" {
		out.Deadline.Duration, _ = properties.ParseDuration(text)
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
