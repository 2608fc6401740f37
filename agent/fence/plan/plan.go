// Package plan turns ConfigMaps and the names of Secrets into validated plans.
//
// [Parse] reads all configuration of the controller's namespace at once and reports all mistakes at once. It does no
// I/O. The objects are those of the Kubernetes node-fencing proposal:
//
//	ConfigMap cluster-fence-config             config.properties    policy of the cluster
//	ConfigMap fence-config-<node>              config.properties    lists of methods of a node
//	ConfigMap fence-method-<method>-<node>     method.properties    a method: its template, its action, parameters
//	ConfigMap fence-method-template-<name>     template.properties  the agent and parameters that methods share
//	Secret, named like a method or a template  one key a parameter  parameters of the ConfigMap of that name
//
// The name of a method's ConfigMap is composed of method and node and never taken apart: both may contain dashes.
//
// A node whose configuration has a mistake has no plan, and the other nodes keep theirs. A mistake in
// cluster-fence-config switches dry run on.
//
// A value of a password-like parameter is neither in a Plan nor in a Problem. The controller reads these values when it
// acts, with [Resolve].
package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/fence"
)

// Object is a ConfigMap or a Secret. The values of a Secret are never kept.
type Object struct {
	Namespace, Name string
	Data            map[string]string
	// Digests are those of the values of a Secret, by key; see [ValueDigest]. Without them, changes are not noticed.
	Digests map[string]string
}

// Objects is all configuration of the controller's namespace, and the fence agents that it can use.
type Objects struct {
	ConfigMaps, Secrets []Object
	// Agents are the schemas of the fence agents, by name. [FenceAgents] returns those that are needed.
	Agents map[string]Schema
	// Unusable are the fence agents that cannot be used although they are installed, with the reason.
	Unusable map[string]string
	// NoJobs says that evictd-controller has no image for Jobs: executor=job is a mistake.
	NoJobs bool
	// NoDrills says that it is not known which drills there were: levels that need one have a warning.
	NoDrills bool
	// Unchecked says that it is not known which fence agents are installed: parameters of one without a schema are not
	// checked, with a warning. Otherwise it is a mistake to name such an agent.
	Unchecked bool
}

// Config is the valid part of the configuration.
type Config struct {
	Policy fence.Policy
	Plans  map[string]fence.Plan // by node name; a node with a mistake has none
	// Refused are the nodes that have a fence-config and no plan, sorted.
	Refused []string
	// HistoryTTL is how long a finished NodeFence is kept.
	HistoryTTL time.Duration
}

// The names of the objects, and the data keys of the ConfigMaps.
const (
	policyName     = "cluster-fence-config"
	nodePrefix     = "fence-config-"
	methodPrefix   = "fence-method-"
	templatePrefix = "fence-method-template-"

	configKey   = "config.properties"
	methodKey   = "method.properties"
	templateKey = "template.properties"
)

// Misspelt names of the proposal that are accepted with a warning.
const (
	misspeltPolicyName = "fence-cluster-config"
	misspeltNodePrefix = "fecne-config-"
)

// maxName is the length limit of names of objects and nodes.
const maxName = 253

// parser has the objects, and what was read from them so far.
type parser struct {
	maps, secrets map[string]*Object
	namespace     string
	allowPlain    bool
	schemas       map[string]Schema
	unusable      map[string]string
	unchecked     bool
	noJobs        bool
	noDrills      bool
	executor      fence.Executor // of methods with a fence agent that name none
	jobs          bool           // some method is executed by Jobs
	templates     map[string]*template
	methods       map[string]*method
	problems      []Problem
}

// Parse returns the valid part of the configuration and all mistakes in it, sorted. Objects with other names are
// ignored.
func Parse(objects Objects) (Config, []Problem) {
	p := &parser{
		templates: map[string]*template{}, methods: map[string]*method{},
		schemas: objects.Agents, unusable: objects.Unusable, unchecked: objects.Unchecked, noJobs: objects.NoJobs,
		noDrills: objects.NoDrills,
	}
	for _, o := range slices.Concat(objects.ConfigMaps, objects.Secrets) {
		p.namespace = o.Namespace
		break
	}
	p.maps = p.index("ConfigMap", objects.ConfigMaps)
	p.secrets = p.index("Secret", objects.Secrets)

	c := Config{Plans: map[string]fence.Plan{}}
	c.Policy, c.HistoryTTL = p.policy()
	for _, name := range sortedNames(p.maps) {
		switch {
		case strings.HasPrefix(name, templatePrefix):
			p.template(name)
		case strings.HasPrefix(name, methodPrefix):
			p.method(name)
		}
	}
	nodes := p.nodes()
	p.refuseSharedDevices(nodes)
	for _, n := range nodes {
		if n.broken || n.doc.broken {
			c.Refused = append(c.Refused, n.name)
			continue
		}
		c.Plans[n.name] = n.plan(c.Policy.Timings)
	}
	p.warnUnused()
	p.warnPolicy(c.Policy, len(nodes))
	return c, sorted(p.problems)
}

// index returns the objects by name and reports names that are there twice.
func (p *parser) index(kind string, objects []Object) map[string]*Object {
	byName := make(map[string]*Object, len(objects))
	for i := range objects {
		o := &objects[i]
		if byName[o.Name] != nil {
			p.problems = append(p.problems, Problem{Object: reference(kind, o.Namespace, o.Name),
				Message: "is defined twice", Remedy: "remove one of the two definitions"})
			continue
		}
		byName[o.Name] = o
	}
	return byName
}

// warnUnused reports methods, templates and Secrets that no node uses.
func (p *parser) warnUnused() {
	for _, name := range sortedNames(p.maps) {
		switch {
		case p.methods[name] != nil && !p.methods[name].used:
			m := p.methods[name]
			m.doc.warn(0, "", "no fence-config has a method with this name",
				"the name is fence-method-METHOD-NODE, with a METHOD of a list in fence-config-NODE; rename or delete it")
			if m.action == "" && !m.doc.has("action") {
				m.doc.fail(0, "action", "is missing", "write action=off or action=on")
			}
		case p.templates[name] != nil && !p.templates[name].used:
			p.templates[name].doc.warn(0, "", "no method uses this template", "delete it, or name it in a method: template="+name)
		}
	}
	for _, name := range sortedNames(p.secrets) {
		if p.maps[name] != nil || !strings.HasPrefix(name, methodPrefix) {
			continue
		}
		p.problems = append(p.problems, Problem{Object: reference("Secret", p.secrets[name].Namespace, name), Warning: true,
			Message: "is not used: there is no ConfigMap with this name", Remedy: "name it like the ConfigMap of the method or template that it belongs to"})
	}
}

func sortedNames(objects map[string]*Object) []string { return slices.Sorted(maps.Keys(objects)) }

// hash returns an identification of a plan: equal plans have equal hashes. What is in Secrets is no part of it: a new
// password is not a new plan, and evictctl, which does not have the UIDs of Secrets, prints the same hash.
func hash(p fence.Plan) string {
	p = *p.DeepCopy()
	p.Hash = ""
	for _, levels := range [][]fence.Level{p.Isolation, p.PowerManagement, p.Recovery} {
		for _, l := range levels {
			for i := range l.Methods {
				l.Methods[i].SecretDigest = ""
			}
		}
	}
	text, err := json.Marshal(p) // with sorted keys in maps
	if err != nil {
		panic(fmt.Sprintf("marshal a plan: %v", err)) // it has only strings, booleans and numbers
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}
