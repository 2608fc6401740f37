package plan

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/evictd/evictd/agent/fence"
)

// agent is what is known of an agent: where it can be used, its parameters, and which device they name.
type agent struct {
	// steps are the steps whose lists may have the agent.
	steps []fence.StepName
	// action is the only action of the agent, empty if its methods name theirs.
	action fence.Action
	// parameters are those of the agent. A parameter that is not here is a mistake.
	parameters []parameter
	// device returns the identity of device and plug from normal values, empty if one of them is missing.
	device func(values map[string]string) string
	// name is that of a fence agent, and empty if the agent is built in.
	name string
	// noUUID says that the device never reports the UUID of the machine.
	noUUID bool
	// unchecked says that the parameters are not known: any key is one.
	unchecked bool
}

// parameter is a parameter of an agent.
type parameter struct {
	field
	// required says that there must be a value in the ConfigMaps or Secrets of a method.
	required bool
	// value is the default.
	value string
	// secret says that the value is a secret, which is neither in a plan nor in a problem.
	secret bool
	// fromSecret says that the value may come from a Secret. Parameters that identify the device may not: two nodes
	// with the same device could not be found.
	fromSecret bool
	// key is the name in the spelling of a fence agent.
	key string
	// refuse is why the parameter is not accepted, empty if it is.
	refuse string
	// normal returns the normal form of a valid value. Its errors do not have the value; nil accepts all values.
	normal func(value string) (string, error)
	// warn returns a warning about a normal value, and its remedy; nil if there is none for any value.
	warn func(normal string) (message, remedy string)
}

// agents are the built-in agents. Fence agents are programs of their own; see [Schema].
var agents = map[string]*agent{
	"ipmi": {
		steps: []fence.StepName{fence.PowerManagement},
		parameters: []parameter{
			{field: field{name: "ip", aliases: []string{"ipaddr"}}, required: true, normal: normalAddress},
			{field: field{name: "ipport"}, value: "623", normal: normalPort},
			{field: field{name: "username", aliases: []string{"login"}}, required: true, fromSecret: true, normal: ipmiUsername},
			{field: field{name: "password", aliases: []string{"passwd"}}, required: true, secret: true, fromSecret: true},
		},
		device: func(v map[string]string) string {
			if v["ip"] == "" || v["ipport"] == "" {
				return ""
			}
			return ipmiScheme + net.JoinHostPort(v["ip"], v["ipport"])
		},
	},
	"redfish":    redfish,
	"cordon":     builtIn(fence.Cordon, fence.Isolation),
	"uncordon":   builtIn(fence.Uncordon, fence.Recovery),
	"clean-pods": builtIn(fence.CleanPods, fence.PowerManagement),
	"watchdog":   builtIn(fence.Watchdog, fence.PowerManagement),
}

// ipmiUsername checks the name of a user of a BMC: IPMI 2.0, section 22.28, has 16 bytes for it.
func ipmiUsername(value string) (string, error) {
	if len(value) > 16 {
		return "", fmt.Errorf("has %d bytes, but IPMI has names of at most 16", len(value))
	}
	return value, nil
}

var scriptName = regexp.MustCompile(`^fence_[a-z0-9_]+$`)

// checkAgent returns why a built-in agent can't be used, nil if it can.
func checkAgent(name string) error {
	switch {
	case agents[name] != nil:
		return nil
	case FenceAgent(name):
		return fmt.Errorf("%s is not built in", name)
	}
	return fmt.Errorf("is %s, which is not an agent", show(name))
}

// agent returns an agent, or why it can't be used.
func (p *parser) agent(name string) (*agent, error) {
	if FenceAgent(name) {
		return p.fenceAgent(name)
	}
	return agents[name], checkAgent(name)
}

// agentNames lists the built-in agents for a remedy.
func agentNames() string { return strings.Join(sortedKeys(agents), ", ") }

// parameter returns a parameter by one of its names, nil if there is none.
func (a *agent) parameter(key string) *parameter {
	i := slices.IndexFunc(a.parameters, func(p parameter) bool { ok, _ := p.match(key); return ok })
	if i < 0 {
		return nil
	}
	return &a.parameters[i]
}

// check returns the normal form of a value.
func (p *parameter) check(value string) (string, error) {
	switch {
	case value == "":
		return "", errors.New("is empty")
	case p.normal == nil:
		return value, nil
	}
	return p.normal(value)
}
