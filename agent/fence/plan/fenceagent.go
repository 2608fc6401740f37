package plan

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/properties"
)

// FenceAgent reports whether a name is that of a ClusterLabs fence agent, a program of its own, such as fence_ipmilan.
func FenceAgent(name string) bool {
	return len(name) <= properties.MaxKey && scriptName.MatchString(name)
}

// FenceAgents returns the fence agents that templates name, sorted: those whose metadata [Parse] needs.
func FenceAgents(o Objects) []string {
	found := map[string]bool{}
	for _, m := range o.ConfigMaps {
		if !strings.HasPrefix(m.Name, templatePrefix) {
			continue
		}
		list, _ := properties.Parse(m.Data[templateKey])
		for _, v := range list {
			if fold(v.Key) == "agent_name" && FenceAgent(v.Value) {
				found[v.Value] = true
			}
		}
	}
	return sortedKeys(found)
}

// refused are parameters of fence agents that are not accepted, with the reason.
var refused = map[string]string{
	"debug":          "writes passwords to a file",
	"debug_file":     "writes passwords to a file",
	"logfile":        "writes what the agent prints to a file",
	"verbose":        "prints passwords",
	"verbose_level":  "prints passwords",
	"quiet":          "hides what the agent reads from the device",
	"help":           "makes the agent do nothing",
	"version":        "makes the agent do nothing",
	"delay":          "delays the act: use power_delay in " + policyName,
	"missing_as_off": "reads a plug that does not exist as off, which is no proof",
	"port_as_ip":     "puts the address into plug: write it into ip",
	"plug_separator": "makes several plugs of one: use one method for each plug",
	"ssh_options":    "can make ssh run a program",
}

// refusal returns why a parameter of a fence agent is not accepted, empty if it is.
func refusal(name string) string {
	switch {
	case refused[name] != "":
		return refused[name]
	case strings.HasSuffix(name, "_script"):
		return "would run a program: move the password to a Secret"
	case strings.HasSuffix(name, "_path") && name != "api_path":
		return "would run another program: install the one that the agent runs by default"
	}
	return ""
}

// identifying are the parameters that say which plug of which device is switched.
var identifying = []string{"ip", "ipport", "plug", "switch", "target"}

// agentSecret reports whether a parameter of a fence agent is a password or a key.
func agentSecret(name string) bool {
	return secretLike(name) || slices.Contains([]string{"community", "apikey", "api_key", "access_key", "private_key",
		"hexadecimal_kg", "proxy"}, name)
}

// ipmiAgents are the names of fence_ipmilan. They switch what the built-in agent ipmi does.
var ipmiAgents = []string{"fence_ipmilan", "fence_ipmilanplus", "fence_idrac", "fence_ilo3", "fence_ilo4", "fence_ilo5", "fence_imm"}

// fenceAgent returns a fence agent, or why it can't be used. One without a schema has unchecked set, if the objects
// allow that.
func (p *parser) fenceAgent(name string) (*agent, error) {
	schema, ok := p.schemas[name]
	switch {
	case ok:
		return schema.agent(name)
	case p.unusable[name] != "":
		return nil, errors.New(p.unusable[name])
	case !p.unchecked:
		return nil, fmt.Errorf("%s is not installed where evictd-controller runs", name)
	}
	a, err := Schema{
		Parameters: []Parameter{
			{Name: "ip", Aliases: []string{"ipaddr"}}, {Name: "ipport"}, {Name: "username", Aliases: []string{"login"}},
			{Name: "password", Aliases: []string{"passwd"}}, {Name: "plug", Aliases: []string{"port"}},
		},
		Actions: []string{"off", "on", "status"},
	}.agent(name)
	if err != nil {
		return nil, err
	}
	a.unchecked = true
	a.parameter("ip").required = false
	a.steps = []fence.StepName{fence.Isolation, fence.PowerManagement, fence.Recovery}
	return a, nil
}

// agent returns an agent with the parameters of a schema. Those that have the name of a setting, and action, are not
// parameters of a method: the setting is meant.
func (s Schema) agent(name string) (*agent, error) {
	for _, action := range []string{"status", "off", "on"} {
		if !slices.Contains(s.Actions, action) {
			return nil, fmt.Errorf("%s has no action %s in its metadata: nothing it did could be proven or undone", name, action)
		}
	}
	a := &agent{name: name, steps: []fence.StepName{fence.PowerManagement}, noUUID: true}
	if !slices.Contains(s.Actions, "reboot") {
		// Fabric agents disable a port, or access to a disk. Their off does not switch the machine off.
		a.steps = []fence.StepName{fence.Isolation, fence.Recovery}
	}
	for _, p := range s.Parameters {
		a.add(p)
	}
	if a.parameter("ip") == nil && a.parameter("plug") == nil {
		return nil, fmt.Errorf("%s has neither ip nor plug in its metadata: two nodes with the same device could not be found", name)
	}
	port := ""
	if i := slices.IndexFunc(s.Parameters, func(p Parameter) bool { return p.Name == "ipport" }); i >= 0 {
		port, _ = normalPort(s.Parameters[i].Default)
	}
	a.device = func(v map[string]string) string { return s.device(name, port, v) }
	return a, nil
}

// add adds a parameter of a schema.
func (a *agent) add(s Parameter) {
	setting := func(name string) bool {
		all := slices.Concat(settings, []field{{name: "name"}, {name: "agent_name"}, {name: "template"}, {name: "action"}})
		return slices.ContainsFunc(all, func(f field) bool { ok, _ := f.match(name); return ok })
	}
	name := fold(s.Name)
	if setting(name) {
		return
	}
	p := parameter{field: field{name: name, unlisted: refusal(name) != ""}, key: s.Name, required: s.Required || name == "ip", refuse: refusal(name), normal: s.normal}
	for _, alias := range s.Aliases {
		if !setting(alias) {
			p.aliases = append(p.aliases, fold(alias))
		}
	}
	p.secret = agentSecret(name) || slices.ContainsFunc(p.aliases, agentSecret)
	p.fromSecret = p.refuse == "" && !slices.Contains(identifying, name)
	a.parameters = append(a.parameters, p)
}

// normal returns the normal form of a value. Its errors do not have the value.
func (s Parameter) normal(value string) (string, error) {
	if err := CheckInput(value); err != nil {
		return "", err
	}
	switch name := fold(s.Name); {
	case name == "ip":
		return normalAddress(value)
	case name == "ipport":
		return normalPort(value)
	case name == "plug" && strings.Contains(value, ","):
		return "", errors.New("has a comma: use one method for each plug")
	case name == "method" && value != "onoff":
		return "", errors.New("is not onoff: off would switch on again")
	case s.Type == "boolean":
		on, err := properties.ParseSwitch(strings.ToLower(value))
		if err != nil {
			return "", errors.New("is not a switch: write 1 or 0")
		}
		if on {
			return "1", nil
		}
		return "0", nil
	case s.Type == "integer", s.Type == "second":
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return "", errors.New("is not a whole number")
		}
		return strconv.FormatInt(n, 10), nil
	case s.Type == "select" && len(s.Options) > 0:
		i := slices.IndexFunc(s.Options, func(o string) bool { return strings.EqualFold(o, value) })
		if i < 0 {
			return "", errors.New("is not one of " + strings.Join(s.Options, ", "))
		}
		return s.Options[i], nil
	}
	return value, nil
}

// maxInput is the length limit of a value for a fence agent in bytes.
const maxInput = 4096

// CheckInput returns why a value of a parameter cannot be given to a fence agent, without the value. Agents read lines
// name=value. They remove blanks at the end of a line and one pair of quotes around the value.
func CheckInput(value string) error {
	switch {
	case len(value) > maxInput:
		return fmt.Errorf("has %d bytes, but fence agents are given at most %d", len(value), maxInput)
	case !utf8.ValidString(value):
		return errors.New("is not valid UTF-8, which fence agents can't be given")
	case strings.ContainsFunc(value, func(r rune) bool { return unicode.IsControl(r) && r != '\t' || r == '\u2028' || r == '\u2029' }):
		return errors.New("has a line break or another control character, which fence agents can't be given")
	case strings.TrimSpace(value) != value:
		return errors.New("begins or ends with a blank, which fence agents remove")
	case len(value) > 1 && value[0] == '"' && value[len(value)-1] == '"':
		return errors.New("is in double quotes, which fence agents remove")
	}
	return nil
}

// device returns the identity of device and plug, empty if it is not known.
func (s Schema) device(name, port string, v map[string]string) string {
	port = cmp.Or(v["ipport"], port)
	host := v["ip"]
	switch {
	case host != "" && v["target"] == "" && slices.Contains(ipmiAgents, name):
		return ipmiScheme + net.JoinHostPort(host, cmp.Or(port, "623"))
	case host != "" && port != "":
		host = net.JoinHostPort(host, port)
	case host == "" && v["plug"] == "":
		return ""
	}
	plug := normalNumber(v["plug"])
	if number, rest, ok := strings.Cut(v["plug"], ":"); ok && v["switch"] == "" && s.has("switch") {
		v = map[string]string{"switch": number}
		plug = normalNumber(rest)
	}
	// fence_apc reads plug=2 as switch=1 plug=2, as it does plug=1:2.
	if number := normalNumber(v["switch"]); number != "" && number != "1" {
		plug = number + ":" + plug
	}
	if v["target"] != "" {
		plug = v["target"] + "/" + plug
	}
	return name + "://" + host + "/" + url.PathEscape(plug)
}

func (s Schema) has(name string) bool {
	return slices.ContainsFunc(s.Parameters, func(p Parameter) bool { return p.Name == name })
}

// normalNumber removes leading zeros of a number.
func normalNumber(value string) string {
	if n, err := strconv.ParseUint(value, 10, 64); err == nil {
		return strconv.FormatUint(n, 10)
	}
	return value
}

// adopt adds parameters for the keys of an agent that has no schema.
func (a *agent) adopt(keys []string) {
	for _, key := range keys {
		if a.unchecked && properties.ValidKey(key) && a.parameter(key) == nil {
			a.add(Parameter{Name: key})
		}
	}
}

// checkFenceAgent reports what a method of a fence agent lacks, after its parameters are merged.
func (m *method) checkFenceAgent() {
	if !m.template.agent.noUUID {
		return
	}
	if m.device() == "" && m.valid() {
		m.doc.fail(0, "plug", "is missing: it is not known what is switched", "write plug, or ip")
	}
	if m.setting("identity") != string(fence.CheckNone) {
		v := cmp.Or(m.layer.values["identity"], property{key: "identity"})
		m.doc.fail(v.line, v.key, "must be none: "+m.template.name+" does not report which machine it switches",
			"find out in a drill that this device is that of this node, and write identity=none: "+
				"with a wrong address or plug another machine is switched off, and the pods of a running node are released")
	}
}

// Resolve returns the parameters of a method of a fence agent under the names of the agent, as the function [Resolve]
// does for built-in agents, and the names of those whose values are not in the plan. The values in the plan are checked
// again: a NodeFence can be edited.
func (s Schema) Resolve(m fence.Method, read func(Source) (Data, error)) (parameters map[string]string, secrets []string, err error) {
	a, err := s.agent(m.Agent)
	if err != nil {
		return nil, nil, fmt.Errorf("read the parameters of method %s: %w", m.Name, err)
	}
	for _, key := range sortedKeys(m.Parameters) {
		p := a.parameter(key)
		switch {
		case p == nil || p.name != key:
			err = errors.New("is not a parameter of " + m.Agent)
		case p.refuse != "":
			err = errors.New(p.refuse)
		default:
			_, err = p.check(m.Parameters[key])
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read the parameters of method %s from its plan: %s %w", m.Name, key, err)
		}
	}
	values, err := a.resolve(m, read)
	if err != nil {
		return nil, nil, err
	}
	parameters = make(map[string]string, len(values))
	for name, value := range values {
		key := a.parameter(name).key
		if value == "0" && s.offByDefault(key) {
			continue // many agents take a switch that is given for one that is on
		}
		parameters[key] = value
		if planned, ok := m.Parameters[name]; !ok || planned != value {
			secrets = append(secrets, key)
		}
	}
	slices.Sort(secrets)
	return parameters, secrets, nil
}

// offByDefault reports whether a parameter is a switch that is off if it is not given.
func (s Schema) offByDefault(key string) bool {
	i := slices.IndexFunc(s.Parameters, func(p Parameter) bool { return p.Name == key })
	if i < 0 || s.Parameters[i].Type != "boolean" {
		return false
	}
	on, err := properties.ParseSwitch(s.Parameters[i].Default)
	return err != nil || !on
}

// agentRemedy returns what to do about an agent that can't be used.
func (p *parser) agentRemedy(name string) string {
	switch {
	case !FenceAgent(name):
		return "use an agent of this release: " + agentNames()
	case p.unusable[name] != "" || p.unchecked:
		return "correct the agent, or use one that is built in: " + agentNames()
	}
	_, installed := p.schemas[name]
	if installed {
		return "use another agent, such as one that is built in: " + agentNames()
	}
	return "install it there, into the directory --fence-agents-dir, or use an agent that is built in: " + agentNames()
}
