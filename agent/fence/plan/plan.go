// Package plan turns ConfigMaps and the names of Secrets into validated plans.
package plan

import "github.com/evictd/evictd/agent/fence"

// Object is a ConfigMap or a Secret. The values of a Secret are never kept.
type Object struct {
	Namespace, Name string
	Data            map[string]string
}

// Objects is all configuration of the controller's namespace.
type Objects struct{ ConfigMaps, Secrets []Object }

// Problem is a mistake in the configuration, with its place and its remedy.
type Problem struct {
	Object  string // "ConfigMap evictd/fence-config-host1"
	Line    int    // 0 for the whole object
	Key     string
	Message string
	Remedy  string
	Warning bool
}

// Config is the valid part of the configuration.
type Config struct {
	Policy fence.Policy
	Plans  map[string]fence.Plan // by node name; a node with a mistake has none
}
