package config

import (
	"errors"
	"fmt"
	"io/fs"

	"go.yaml.in/yaml/v3"

	"github.com/evictd/evictd/agent/config/strict"
)

// DefaultPath is the default path of the AgentConfiguration.
const DefaultPath = "/etc/evictd/config.yaml"

// Options name the files that Load reads.
type Options struct {
	// Path is the path of the AgentConfiguration. The file may be missing unless
	// PathGiven is set.
	Path      string
	PathGiven bool
	// KubeletPath is the path of a KubeletConfiguration; empty means none.
	KubeletPath string
	// DryRun switches dry run on, whatever the files say.
	DryRun bool
}

// Load returns the configuration in force: the kubelet's defaults, overridden by
// a KubeletConfiguration, overridden by an AgentConfiguration, field by field; a
// map or list is replaced as a whole. Without an AgentConfiguration it is in dry
// run. Invalid contents of the files are reported as [strict.Problems].
func Load(o Options) (*Config, error) {
	var kubelet []byte
	if o.KubeletPath != "" {
		var err error
		if kubelet, err = strict.ReadFile(o.KubeletPath); err != nil {
			return nil, fmt.Errorf("read kubelet configuration: %w", err)
		}
	}
	agent, err := strict.ReadFile(o.Path)
	if err != nil && (o.PathGiven || !errors.Is(err, fs.ErrNotExist)) {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return parse(o, kubelet, agent)
}

// parse builds the configuration from the contents of the files that o names.
// Nil stands for a missing file.
func parse(o Options, kubelet, agent []byte) (*Config, error) {
	c := base()
	var kubeletErr, agentErr error
	if kubelet != nil {
		kubeletErr = c.readKubelet(o.KubeletPath, kubelet)
	}
	if agent != nil {
		agentErr = c.readAgent(o.Path, agent)
	} else {
		c.DryRun = true
	}
	if err := strict.Join(kubeletErr, agentErr); err != nil {
		return nil, err
	}
	if o.DryRun {
		c.DryRun = true
		c.origin["dryRun"] = OriginFlag
	}
	return c.finish()
}

// FromNode reads a configuration that is a part of another file, without
// apiVersion and kind. It reports problems to d, the decoder of that part, and
// then returns nil. A nil node is an empty configuration.
func FromNode(d *strict.Decoder, n *yaml.Node) *Config {
	c := base()
	c.sources.agent = d
	if n != nil {
		c.decodeAgent(d, n, nil)
	}
	c.validate()
	if d.Failed("") {
		return nil
	}
	c.Notices = d.Notices()
	return c
}

// header identifies the kind of a file.
type header struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
}

// check reports a missing or wrong apiVersion or kind.
func (h header) check(d *strict.Decoder, apiVersion, kind string) {
	for _, f := range []struct{ name, found, want string }{
		{"apiVersion", h.APIVersion, apiVersion}, {"kind", h.Kind, kind},
	} {
		switch {
		case d.Broken("") || d.Failed(f.name) || f.found == f.want:
		case !d.Has(f.name):
			d.Errorf(f.name, "is missing; want %s", f.want)
		default:
			d.Errorf(f.name, "is %s; want %s", strict.Quote(f.found), f.want)
		}
	}
}

// wrongKind returns an error if the kind of a file is one of those in hints. It is
// then the only problem reported, instead of one for each field of the file.
func wrongKind(d *strict.Decoder, n *yaml.Node, kind string, hints map[string]string) error {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if hint, known := hints[value.Value]; known && key.Value == "kind" {
			return strict.Problems{{
				File: d.File(), Line: key.Line, Field: "kind",
				Message: fmt.Sprintf("is %s; want %s (%s)", value.Value, kind, hint),
			}}
		}
	}
	return nil
}

func (c *Config) readAgent(name string, data []byte) error {
	d, root, err := strict.Parse(name, data)
	if err != nil {
		return err
	}
	if err := wrongKind(d, root, Kind, map[string]string{
		kubeletKind: "evictd reads a kubelet's file with --kubelet-config",
		"Scenario":  "evictctl simulate replays scenarios",
	}); err != nil {
		return err
	}
	c.sources.agent = d
	c.Files = append(c.Files, name)
	h := header{}
	c.decodeAgent(d, root, &h)
	h.check(d, APIVersion, Kind)
	return nil
}

// decodeAgent decodes an AgentConfiguration into c, whose fields keep their
// values where the file has none. It reads the header too unless h is nil.
func (c *Config) decodeAgent(d *strict.Decoder, n *yaml.Node, h *header) {
	file := struct {
		Header   *header  `yaml:",inline"`
		Accepted accepted `yaml:",inline"`
		Config   *Config  `yaml:",inline"`
	}{Header: h, Config: c}
	refuseRemoved(d)
	d.Decode(n, &file)
	file.Accepted.notice(d)
}

// validate fills in the defaults and checks each field, and the fields against
// each other.
func (c *Config) validate() {
	c.setDefaults()
	c.check()
}

// finish validates the configuration and returns all problems of the files as one
// error.
func (c *Config) finish() (*Config, error) {
	c.validate()
	var errs []error
	for _, d := range []*strict.Decoder{c.sources.kubelet, c.sources.agent} {
		if d != nil {
			errs = append(errs, d.Err())
			c.Notices = append(c.Notices, d.Notices()...)
		}
	}
	if err := strict.Join(errs...); err != nil {
		return nil, err
	}
	return c, nil
}

// errorf reports a problem with the field at path to the file that sets it.
func (c *Config) errorf(path, format string, args ...any) {
	c.sources.reporter(path).Errorf(path, format, args...)
}

// noticef reports a notice about the field at path to the file that sets it.
func (c *Config) noticef(path, format string, args ...any) {
	c.sources.reporter(path).Noticef(path, format, args...)
}

// failed reports whether the field at path could not be read, so that other
// fields can't be compared with it.
func (c *Config) failed(path string) bool {
	d := c.sources.of(path)
	return d != nil && d.Failed(path)
}
