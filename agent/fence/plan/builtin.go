package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/evictd/evictd/agent/fence"
)

// maxReleases bounds the storage that a method names.
const maxReleases = 16

// builtIn returns an agent without a device, that acts on objects of the cluster or not at all: it has one action, and no
// parameters.
func builtIn(action fence.Action, step fence.StepName) *agent {
	return &agent{
		steps: []fence.StepName{step}, action: action,
		device: func(map[string]string) string { return "" },
	}
}

// checkBuiltIn reports the settings that need a device.
func (l *layer) checkBuiltIn(a *agent) {
	if a.action == "" {
		return
	}
	for _, name := range []string{"identity", "unverified", "separate_power", "releases"} {
		if v, ok := l.values[name]; ok {
			l.doc.fail(v.line, v.key, "is a setting of methods with a device, and "+string(a.action)+" has none", "remove the line")
		}
	}
}

// parseReleases returns the names of CSI drivers and StorageClasses in a value, sorted.
func parseReleases(value string) ([]string, error) {
	names := strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' })
	switch {
	case len(names) == 0:
		return nil, errors.New("is empty")
	case len(names) > maxReleases:
		return nil, fmt.Errorf("has %d names; at most %d are possible", len(names), maxReleases)
	}
	for _, name := range names {
		if !validName(name) {
			return nil, fmt.Errorf("has %s, which can't be the name of a CSI driver or StorageClass", show(name))
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// checkStep reports a method whose action or setting does not fit the step of its list.
func (n *node) checkStep(l list, m fence.Method, releases bool) {
	fail := func(message, remedy string) {
		n.doc.fail(l.line, l.key, fmt.Sprintf("method %s: %s", m.Name, message), remedy)
	}
	switch {
	case m.Action == fence.Watchdog:
		n.doc.warn(l.line, l.key, "method "+m.Name+": the machine is taken for dead because its own watchdog must have reset it; no reading shows that",
			"name it only as the last level, for nodes whose agent has a hardware watchdog armed")
	case m.SeparatePower && m.Identity == fence.CheckNone:
		fail("has separate_power, but is no BMC whose UUID is compared with the node's",
			"write it only for methods of ipmi and redfish without identity=none")
	case l.step == fence.Isolation && m.Action == fence.On:
		fail("has action=on, which undoes isolation", "name it in recovery")
	case l.step == fence.Recovery && m.Action == fence.Off:
		fail("has action=off, but recovery switches on what isolation switched off", "name it in isolation or power_management")
	case !releases:
	case l.step != fence.Isolation || m.Action != fence.Off:
		fail("has releases, but does not cut the node off from storage", "write releases only for methods of isolation with action=off")
	case m.Identity != fence.CheckNone:
		fail("has releases, but its device can't be compared with the node: a port has no UUID of a machine",
			"write identity=none and unverified=accept if you have seen that the node loses this storage by it")
	case m.Unverified != fence.Accept:
		n.doc.warn(l.line, l.key, "method "+m.Name+": its releases are not used: neither a UUID nor a drill can show that the port is the node's",
			"write unverified=accept if you have seen that the node loses this storage by it")
	}
}
