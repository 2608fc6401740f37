package config

import (
	"strings"

	"github.com/evictd/evictd/agent/config/strict"
)

// Origin is the source of a value in force.
type Origin string

// The origins.
const (
	OriginDefault Origin = "default"
	OriginKubelet Origin = "kubelet" // a KubeletConfiguration
	OriginFile    Origin = "file"    // an AgentConfiguration
	OriginFlag    Origin = "flag"
)

// Origin returns the origin of the value at a path such as
// evictionHard.memory.available. An entry that a map omits, and a 0 or "" that
// means the default, have OriginDefault.
func (c *Config) Origin(field string) Origin {
	if origin, ok := c.origin[field]; ok {
		return origin
	}
	switch d := c.sources.of(field); {
	case d == nil || !d.Has(field):
		return OriginDefault
	case d == c.sources.kubelet:
		return OriginKubelet
	default:
		return OriginFile
	}
}

// WhyDryRun returns why the configuration asks for dry run, "" if it does not.
func (c *Config) WhyDryRun() string {
	if !c.DryRun {
		return ""
	}
	switch origin := c.Origin("dryRun"); origin {
	case OriginFlag:
		return "--dry-run was given"
	case OriginFile:
		return "the configuration says dryRun: true"
	}
	return "no AgentConfiguration was given"
}

// topField returns the first name of a path: a file sets the field of that name as
// a whole or not at all.
func topField(path string) string {
	return path[:strings.IndexAny(path+".", ".[")]
}

// sources are the files that a configuration is read from. Either may be nil.
type sources struct {
	agent   *strict.Decoder
	kubelet *strict.Decoder
	cgroups kubeletCgroups // from the kubelet's file
}

// of returns the file that the field at path was read from, nil for a default.
func (s sources) of(path string) *strict.Decoder {
	for _, d := range []*strict.Decoder{s.agent, s.kubelet} {
		if d != nil && d.Has(topField(path)) {
			return d
		}
	}
	return nil
}

// fromKubelet reports whether the field at path comes from the kubelet's file.
func (s sources) fromKubelet(path string) bool { return s.kubelet != nil && s.of(path) == s.kubelet }

// reporter returns the file to which a problem with the field at path is
// attributed.
func (s sources) reporter(path string) *strict.Decoder {
	if d := s.of(path); d != nil {
		return d
	}
	if s.agent != nil {
		return s.agent
	}
	return s.kubelet
}
