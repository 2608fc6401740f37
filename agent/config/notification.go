package config

import (
	"time"

	"github.com/evictd/evictd/agent/config/strict"
)

// Notification tells in which ways evictd learns of pressure, besides
// polling, which is always there.
type Notification struct {
	// BPF is the sampler in the kernel, Memcg cgroup v1's thresholds of usage,
	// Events cgroup v2's counts, PSI the triggers of pressure stall information,
	// Reclaim the tracepoints of the kernel's reclaim and OOM killer, Forks the count
	// of tasks in the kernel.
	BPF     LaneMode `yaml:"bpf"`
	Memcg   LaneMode `yaml:"memcg"`
	Events  LaneMode `yaml:"events"`
	PSI     LaneMode `yaml:"psi"`
	Reclaim LaneMode `yaml:"reclaim"`
	Forks   LaneMode `yaml:"forks"`
	// BPFFloor and BPFCeiling bound the period of the sampler.
	BPFFloor   time.Duration `yaml:"bpfFloor"`
	BPFCeiling time.Duration `yaml:"bpfCeiling"`
}

// LaneMode tells whether a way of learning of pressure is used.
type LaneMode string

// The modes of a lane.
const (
	LaneAuto    LaneMode = "auto"    // where it can be had
	LaneOff     LaneMode = "off"     // never
	LaneRequire LaneMode = "require" // evictd does not start without
)

// UnmarshalText accepts the modes by name.
func (m *LaneMode) UnmarshalText(text []byte) error {
	return choose(m, text, LaneAuto, LaneOff, LaneRequire)
}

// The bounds of the sampler's period. Below the least the timer itself would
// take a noticeable part of a processor; above the most it is of no use.
const (
	leastBPFFloor  = 100 * time.Microsecond
	mostBPFCeiling = time.Second

	defaultBPFFloor   = 200 * time.Microsecond
	defaultBPFCeiling = 50 * time.Millisecond
)

func defaultNotification() Notification {
	return Notification{
		BPF: LaneAuto, Memcg: LaneAuto, Events: LaneAuto, PSI: LaneAuto, Reclaim: LaneAuto, Forks: LaneAuto,
		BPFFloor: defaultBPFFloor, BPFCeiling: defaultBPFCeiling,
	}
}

func (c *Config) checkNotification() {
	const base = "notification"
	floor, ceiling := strict.Key(base, "bpfFloor"), strict.Key(base, "bpfCeiling")
	n := &c.Notification
	for _, f := range []struct {
		path  string
		value time.Duration
	}{{floor, n.BPFFloor}, {ceiling, n.BPFCeiling}} {
		if !c.failed(f.path) && (f.value < leastBPFFloor || f.value > mostBPFCeiling) {
			c.errorf(f.path, "is %v; want a duration from %v to %v", f.value, leastBPFFloor, mostBPFCeiling)
		}
	}
	if c.failed(floor) || c.failed(ceiling) || n.BPFFloor <= n.BPFCeiling {
		return
	}
	at := ceiling
	if c.Origin(ceiling) == OriginDefault {
		at = floor
	}
	c.errorf(at, "%s is %v and %s is %v; want the first no longer than the second", floor, n.BPFFloor, ceiling, n.BPFCeiling)
}
