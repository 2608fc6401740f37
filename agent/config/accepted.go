package config

import (
	"time"

	"github.com/evictd/evictd/agent/config/strict"
)

// accepted are fields of a KubeletConfiguration that operators paste into an
// AgentConfiguration. They are no errors, but have no effect.
type accepted struct {
	KernelMemcgNotification       *bool          `yaml:"kernelMemcgNotification"`
	PodPidsLimit                  *int64         `yaml:"podPidsLimit"`
	SingleProcessOOMKill          *bool          `yaml:"singleProcessOOMKill"`
	LocalStorageCapacityIsolation *bool          `yaml:"localStorageCapacityIsolation"`
	VolumeStatsAggPeriod          *time.Duration `yaml:"volumeStatsAggPeriod"`
}

// notice reports each field that the file sets, and why it has no effect.
func (a *accepted) notice(d *strict.Decoder) {
	for _, f := range []struct {
		name  string
		given bool
		means string
	}{
		{"kernelMemcgNotification", a.KernelMemcgNotification != nil, "notification selects how evictd is notified of pressure"},
		{"podPidsLimit", a.PodPidsLimit != nil, "evictd sets no limits on pods; a threshold on pid.available guards the node"},
		{"singleProcessOOMKill", a.SingleProcessOOMKill != nil, "evictd leaves the kernel's OOM killer as it is, and itself kills all processes of a container"},
		{"localStorageCapacityIsolation", a.LocalStorageCapacityIsolation != nil, "limits on local storage that evictd knows are always enforced"},
		{"volumeStatsAggPeriod", a.VolumeStatsAggPeriod != nil, "evictd chooses itself when it measures volumes, and can't be made to stop"},
	} {
		if f.given {
			d.Noticef(f.name, "has no effect here: %s", f.means)
		}
	}
}

// refuseRemoved makes each removed field of an AgentConfiguration an error that
// states when and why it was removed.
func refuseRemoved(d *strict.Decoder) {
	d.Removed("pressure.memory.brake", "before the first release: if evictd was killed, memory.high of all pods stayed lowered, "+
		"and its benefit was never measured")
}

// noticeIneffective reports the fields of an AgentConfiguration that are validated
// but have no effect. A kubelet's file may set them for the kubelet.
func (c *Config) noticeIneffective() {
	const reserved = "is checked, but has no effect here: evictd uses the limit that the kubepods cgroup has"
	for _, f := range []struct{ name, means string }{
		{"systemReserved", reserved}, {"kubeReserved", reserved},
	} {
		if d := c.sources.agent; d != nil && d.Has(f.name) {
			c.noticef(f.name, "%s", f.means)
		}
	}
}
