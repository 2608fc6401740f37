package config

import (
	"strings"

	"github.com/evictd/evictd/agent/config/strict"
)

// Origin tells where a value in force comes from.
type Origin string

// The origins.
const (
	OriginDefault Origin = "default"
	OriginKubelet Origin = "kubelet" // a KubeletConfiguration
	OriginFile    Origin = "file"    // an AgentConfiguration
	OriginFlag    Origin = "flag"
)

// Origin returns where the value in force at a field's path comes from, for
// example of evictionHard.memory.available. An entry that a map omits, and a 0
// that stands for a default, come from the defaults.
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

// top returns the first name of a path: a file gives the field of that name as
// a whole or not at all.
func top(path string) string {
	return path[:strings.IndexAny(path+".", ".[")]
}

// sources are the files that a configuration is read from. Either may be nil.
type sources struct {
	agent   *strict.Decoder
	kubelet *strict.Decoder
	cgroups kubeletCgroups // of the kubelet's file
}

// of returns the file that the field at path was read from, nil where it is a
// default's.
func (s sources) of(path string) *strict.Decoder {
	for _, d := range []*strict.Decoder{s.agent, s.kubelet} {
		if d != nil && d.Has(top(path)) {
			return d
		}
	}
	return nil
}

// lenient reports whether the field at path comes from the kubelet's file.
func (s sources) lenient(path string) bool { return s.kubelet != nil && s.of(path) == s.kubelet }

// reporter returns the file to which a problem with the field at path belongs.
func (s sources) reporter(path string) *strict.Decoder {
	if d := s.of(path); d != nil {
		return d
	}
	if s.agent != nil {
		return s.agent
	}
	return s.kubelet
}
