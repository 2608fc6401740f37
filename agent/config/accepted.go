package config

import (
	"time"

	"github.com/evictd/evictd/agent/config/strict"
)

// accepted are fields of a KubeletConfiguration that people paste and that mean
// nothing to evictd, or something else.
type accepted struct {
	KernelMemcgNotification       *bool          `yaml:"kernelMemcgNotification"`
	PodPidsLimit                  *int64         `yaml:"podPidsLimit"`
	SingleProcessOOMKill          *bool          `yaml:"singleProcessOOMKill"`
	LocalStorageCapacityIsolation *bool          `yaml:"localStorageCapacityIsolation"`
	VolumeStatsAggPeriod          *time.Duration `yaml:"volumeStatsAggPeriod"`
}

func (a *accepted) explain(d *strict.Decoder) {
	for _, f := range []struct {
		name  string
		given bool
		means string
	}{
		{"kernelMemcgNotification", a.KernelMemcgNotification != nil, "notification tells how evictd learns of pressure"},
		{"podPidsLimit", a.PodPidsLimit != nil, "evictd sets no limits on pods; a threshold on pid.available guards the node"},
		{"singleProcessOOMKill", a.SingleProcessOOMKill != nil, "evictd leaves the kernel's OOM killer as it is, and itself kills all processes of a container"},
		{"localStorageCapacityIsolation", a.LocalStorageCapacityIsolation != nil, "limits on local storage that evictd knows of always count"},
		{"volumeStatsAggPeriod", a.VolumeStatsAggPeriod != nil, "evictd itself chooses when it measures volumes, and never stops"},
	} {
		if f.given {
			d.Noticef(f.name, "has no effect here: %s", f.means)
		}
	}
}

// refuseRemoved makes the fields that an AgentConfiguration once had errors that say
// since when they are gone and why.
func refuseRemoved(d *strict.Decoder) {
	d.Removed("pressure.memory.brake", "before the first release: an evictd that was killed left memory.high of all pods lowered, "+
		"and its benefit was never measured")
}

// explainIdle tells of fields of an AgentConfiguration that are checked and that
// nothing follows, so that nobody relies on them. In a kubelet's file they are
// the kubelet's business.
func (c *Config) explainIdle() {
	const (
		reserved = "is checked, but has no effect here: the limit of the kubepods cgroup counts, as whoever made it set it"
	)
	for _, f := range []struct{ name, means string }{
		{"systemReserved", reserved}, {"kubeReserved", reserved},
	} {
		if d := c.sources.agent; d != nil && d.Has(f.name) {
			c.noticef(f.name, "%s", f.means)
		}
	}
}
