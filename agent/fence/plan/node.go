package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/evictd/evictd/agent/fence"
)

// The limits of the lists of a node. A plan is a part of its NodeFence, whose size is limited.
const (
	maxLevels  = 9
	maxMethods = 16
)

// stepKeys are the lists of a fence-config in order of the steps. The others are accepted with a warning.
var stepKeys = []struct {
	field
	step fence.StepName
}{
	{field{name: "isolation"}, fence.Isolation},
	{field{name: "power_management", misspelt: []string{"power_managment"}}, fence.PowerManagement},
	{field{name: "recovery", misspelt: []string{"recover"}}, fence.Recovery},
}

// node is a ConfigMap fence-config-<node>.
type node struct {
	name   string
	doc    *document
	broken bool
	kdump  fence.KdumpMode
	steps  map[fence.StepName][]fence.Level
	// devices are the devices of the methods, with the first method of each.
	devices map[string]*method
}

// nodes returns the nodes that have a fence-config, by name.
func (p *parser) nodes() []*node {
	var all []*node
	for _, object := range sortedNames(p.maps) {
		name, right := strings.CutPrefix(object, nodePrefix)
		if !right {
			var misspelt bool
			if name, misspelt = strings.CutPrefix(object, misspeltNodePrefix); !misspelt {
				continue
			}
		}
		n := &node{
			name: name, doc: p.open(p.maps[object], configKey), kdump: fence.KdumpDelay,
			steps: map[fence.StepName][]fence.Level{}, devices: map[string]*method{},
		}
		switch other := misspeltNodePrefix + name; {
		case !right && p.maps[nodePrefix+name] != nil:
			n.doc.fail(0, "", "there is also a ConfigMap "+nodePrefix+name, "delete this one")
			continue // the other one is the node's
		case right && p.maps[other] != nil:
			n.doc.fail(0, "", "there is also a ConfigMap "+other, "delete that one")
		case !right:
			n.doc.warn(0, "", "the name is misspelt", "name it "+nodePrefix+name)
		}
		if !validName(name) {
			n.doc.fail(0, "", "the name does not end in the name of a node", "name it "+nodePrefix+"NODE")
		}
		n.read(p)
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b *node) int { return strings.Compare(a.name, b.name) })
	return all
}

// list is one list of methods: a level of a step.
type list struct {
	property
	step  fence.StepName
	level int // from 1
}

// read reads the properties of the node, and its methods.
func (n *node) read(p *parser) {
	named := false
	values := map[string]property{}
	var lists []list
	for _, v := range n.doc.properties {
		if ok, _ := (&field{name: "node_name"}).match(v.key); ok {
			n.doc.assign(values, "node_name", v)
			named = true
			if v.value != n.name {
				n.doc.fail(v.line, v.key, fmt.Sprintf("is %s, but the name of the ConfigMap is that of node %s", show(v.value), n.name),
					fmt.Sprintf("write node_name=%s, or name the ConfigMap after the other node", n.name))
			}
			continue
		}
		if ok, _ := (&field{name: "kdump"}).match(v.key); ok {
			n.doc.assign(values, "kdump", v)
			n.readKdump(v)
			continue
		}
		if l, name, ok := n.list(v); ok {
			n.doc.assign(values, name, v)
			lists = append(lists, l)
		}
	}
	if !named {
		n.doc.fail(0, "node_name", "is missing", "write node_name="+n.name)
	}
	slices.SortStableFunc(lists, func(a, b list) int { return a.level - b.level })
	levels := map[fence.StepName]int{}
	for _, l := range lists {
		if levels[l.step]+1 < l.level {
			n.doc.fail(l.line, l.key, fmt.Sprintf("is level %d, but there is no level %d", l.level, levels[l.step]+1), "number the levels without gaps")
		}
		levels[l.step] = l.level
		n.readList(p, l)
	}
	if levels[fence.PowerManagement] == 0 {
		n.doc.fail(0, "power_management", "is missing: nothing could prove that the machine is off",
			"name a method that switches it off, such as power_management=ipmi-off ipmi-on")
	}
}

// readKdump reads what datagrams of the node's dump kernel do.
func (n *node) readKdump(v property) {
	switch mode := fence.KdumpMode(v.value); mode {
	case fence.KdumpOff, fence.KdumpDelay:
		n.kdump = mode
	case fence.KdumpRelease:
		n.kdump = mode
		n.doc.warn(v.line, v.key, "is release: pods are released for datagrams that anyone can forge who can send with an "+
			"address of the node, and no reading shows that the machine is off", "write delay unless the network prevents that")
	default:
		n.doc.fail(v.line, v.key, "is "+show(v.value), "write delay, off or release")
	}
}

// list returns the list that a property is, and its key in the right spelling.
func (n *node) list(v property) (l list, name string, ok bool) {
	base, number, numbered := strings.Cut(v.key, ".")
	for i := range stepKeys {
		match, right := stepKeys[i].match(base)
		if !match {
			continue
		}
		l, name = list{v, stepKeys[i].step, 1}, stepKeys[i].name
		if numbered {
			level, err := strconv.Atoi(number)
			if err != nil || level < 2 || level > maxLevels || strconv.Itoa(level) != number {
				n.doc.fail(v.line, v.key, "is not a level", fmt.Sprintf("write %s for the first one, %[1]s.2 to %[1]s.%d for those after it", name, maxLevels))
				return l, "", false
			}
			l.level, name = level, name+"."+number
		}
		if !right {
			n.doc.warn(v.line, v.key, "is read as "+name, "write "+name)
		}
		return l, name, true
	}
	n.doc.fail(v.line, v.key, "is not a key of this ConfigMap",
		"the keys are node_name, isolation, power_management, recovery, kdump, and those with a level, such as power_management.2")
	return l, "", false
}

// readList reads the methods of a list. An empty list of isolation or recovery is that of a node without.
func (n *node) readList(p *parser, l list) {
	names := strings.Fields(l.value)
	if len(names) > maxMethods {
		n.doc.fail(l.line, l.key, fmt.Sprintf("has %d methods", len(names)), fmt.Sprintf("name at most %d", maxMethods))
		return
	}
	var level fence.Level
	var seen []string
	for _, name := range names {
		if slices.Contains(seen, name) {
			n.doc.fail(l.line, l.key, "names the method "+show(name)+" twice", "name it once")
			continue
		}
		seen = append(seen, name)
		if m, ok := n.method(p, l, name); ok {
			level.Methods = append(level.Methods, m)
		}
	}
	if l.step == fence.PowerManagement && len(level.Methods) == len(names) {
		n.checkOrder(l, level.Methods)
		if p.noDrills && level.NeedsDrill() {
			n.doc.warn(l.line, l.key, "its devices can't be compared with the node: this level is used only after a drill has shown that "+
				"they switch the node's machine off", n.drillRemedy(l.level))
		}
	}
	if len(names) > 0 {
		n.steps[l.step] = append(n.steps[l.step], level)
	}
}

// drillRemedy says how a level of power management can be used that needs a drill.
func (n *node) drillRemedy(level int) string {
	command := "evictctl fence drill " + n.name
	if level > 1 {
		command += fmt.Sprintf(" --level %d", level)
	}
	return fmt.Sprintf("run %s when evictd-controller has this configuration, or write unverified=accept in the methods with action=off", command)
}

// checkOrder checks that a list of power management switches off, and switches on only after that.
func (n *node) checkOrder(l list, methods []fence.Method) {
	off := func(m fence.Method) bool { return m.Action == fence.Off }
	if slices.ContainsFunc(methods, func(m fence.Method) bool { return m.Action == fence.Watchdog }) {
		if len(methods) > 1 {
			n.doc.fail(l.line, l.key, "has a method of watchdog and others: what it takes for dead is not switched, and one proof does "+
				"not complete the other", "give it a level of its own, such as power_management.2")
		}
		return
	}
	on := slices.IndexFunc(methods, func(m fence.Method) bool { return !off(m) })
	switch {
	case !slices.ContainsFunc(methods, off):
		n.doc.fail(l.line, l.key, "has no method with action=off: nothing could prove that the machine is off", "name one, before those with action=on")
	case on >= 0 && slices.ContainsFunc(methods[on:], off):
		n.doc.fail(l.line, l.key, fmt.Sprintf("has the method %s with action=%s before one with action=off", show(methods[on].Name), methods[on].Action),
			"name all methods with action=off first: nothing is switched on, and no pod is deleted, before it is proven that the machine is off")
	}
	switchesOn := slices.IndexFunc(methods, func(m fence.Method) bool { return m.Action == fence.On })
	if switchesOn >= 0 && slices.ContainsFunc(methods[switchesOn:], func(m fence.Method) bool { return m.Action == fence.CleanPods }) {
		n.doc.fail(l.line, l.key, fmt.Sprintf("has a method of clean-pods after %s, which switches on", show(methods[switchesOn].Name)),
			"name it before: no pod of a machine that may run is deleted")
	}
}

// method returns a method of a list.
func (n *node) method(p *parser, l list, name string) (fence.Method, bool) {
	object := methodPrefix + name + "-" + n.name
	if !validName(name) || name == "template" || strings.HasPrefix(name, "template-") {
		n.doc.fail(l.line, l.key, "has "+show(name)+", which can't be the name of a method",
			"use lower-case letters, digits and dashes; names that begin with template are those of templates")
		return fence.Method{}, false
	}
	if len(object) > maxName {
		n.doc.fail(l.line, l.key, fmt.Sprintf("the ConfigMap of method %s would have a name of %d characters", show(name), len(object)),
			fmt.Sprintf("use a method name that is %d characters shorter", len(object)-maxName))
		return fence.Method{}, false
	}
	m := p.method(object)
	if m == nil {
		n.doc.fail(l.line, l.key, fmt.Sprintf("method %s: there is no ConfigMap %s", name, object), "create it, or correct the name of the method")
		return fence.Method{}, false
	}
	m.used = true
	if device := m.device(); device != "" && n.devices[device] == nil {
		n.devices[device] = m
	}
	action := m.actionOf(name)
	if action == "" || !m.valid() {
		n.broken = true // reported for the method or its template
		return fence.Method{}, false
	}
	if !slices.Contains(m.template.agent.steps, l.step) {
		n.doc.fail(l.line, l.key, fmt.Sprintf("method %s: the agent %s can't be used in this step", name, m.template.name),
			"its steps: "+strings.Join(stepNames(m.template.agent.steps), ", "))
		return fence.Method{}, false
	}
	planned := m.plan(name, action, l.step)
	_, releases := m.layer.values["releases"]
	n.checkStep(l, planned, releases || len(planned.Releases) > 0)
	return planned, true
}

func stepNames(steps []fence.StepName) []string {
	var names []string
	for _, k := range stepKeys {
		if slices.Contains(steps, k.step) {
			names = append(names, k.name)
		}
	}
	return names
}

// withoutDevice reports whether the agent of the method has no device, and one action.
func (m *method) withoutDevice() bool { return m.action.OnObjects() || m.action == fence.Watchdog }

// actionOf returns the action of a method, which is that of its name's suffix if it has none. An agent's own default is
// never used: that of power agents is reboot.
func (m *method) actionOf(name string) fence.Action {
	v, written := m.doc.get("action")
	for _, action := range []fence.Action{fence.Off, fence.On} {
		switch {
		case !strings.HasSuffix(name, "-"+string(action)):
		case m.withoutDevice():
		case m.action != "" && m.action != action:
			m.doc.warn(v.line, v.key, fmt.Sprintf("is %s, but the name of the method ends in -%s", m.action, action), "correct the one or the other")
		case !written:
			m.doc.warn(0, "action", fmt.Sprintf("is missing; it is %s because of the name of the method", action), "write action="+string(action))
			return action
		}
	}
	if written || m.withoutDevice() {
		return m.action
	}
	m.doc.fail(0, "action", "is missing", "write action=off or action=on")
	return ""
}

// plan returns the plan of a node without mistakes.
func (n *node) plan(timings fence.Timings) fence.Plan {
	out := fence.Plan{
		Isolation:       n.steps[fence.Isolation],
		PowerManagement: n.steps[fence.PowerManagement],
		Recovery:        n.steps[fence.Recovery],
		Kdump:           n.kdump,
		Timings:         timings,
	}
	out.Hash = hash(out)
	return out
}

// refuseSharedDevices reports the devices that are those of two nodes: one of them would be switched off in place of
// the other.
func (p *parser) refuseSharedDevices(nodes []*node) {
	owners := map[string][]*node{}
	for _, n := range nodes {
		for device := range n.devices {
			owners[device] = append(owners[device], n)
		}
	}
	joinSystems(owners)
	for _, device := range sortedKeys(owners) {
		sharing := owners[device]
		if len(sharing) < 2 {
			continue
		}
		for _, n := range sharing {
			other := sharing[0]
			if other == n {
				other = sharing[1]
			}
			message := fmt.Sprintf("the device %s is that of node %s and of node %s", device, n.name, other.name)
			if more := len(sharing) - 2; more > 0 {
				message += fmt.Sprintf(", and of %d more", more)
			}
			m := n.devices[device]
			n.broken = true
			v := m.layer.values["ip"]
			m.doc.fail(v.line, v.key, message, "give each node the device of its own machine")
		}
	}
}
