package config

import (
	"time"

	"github.com/evictd/evictd/agent/config/strict"
)

// Notification selects the lanes that notify evictd of pressure. Polling is
// always enabled.
type Notification struct {
	// BPF is the sampler in the kernel, Memcg the usage thresholds of cgroup v1,
	// Events the memory.events counters of cgroup v2, PSI the pressure stall
	// triggers, Reclaim the tracepoints of reclaim and the OOM killer, Forks the
	// kernel's count of tasks.
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

// LaneMode selects whether a lane is used.
type LaneMode string

// The modes of a lane.
const (
	LaneAuto    LaneMode = "auto"    // used if the node supports it
	LaneOff     LaneMode = "off"     // never used
	LaneRequire LaneMode = "require" // evictd does not start without it
)

// UnmarshalText accepts the modes by name.
func (m *LaneMode) UnmarshalText(text []byte) error {
	return choose(m, text, LaneAuto, LaneOff, LaneRequire)
}

// The bounds of the sampler's period. Below the minimum the timer itself takes a
// noticeable share of a CPU; above the maximum its samples come too late to help.
const (
	minSamplerPeriod = 100 * time.Microsecond
	maxSamplerPeriod = time.Second
)

func defaultNotification() Notification {
	return Notification{
		BPF: LaneAuto, Memcg: LaneAuto, Events: LaneAuto, PSI: LaneAuto, Reclaim: LaneAuto, Forks: LaneAuto,
		BPFFloor: 200 * time.Microsecond, BPFCeiling: 50 * time.Millisecond,
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
		if !c.failed(f.path) && (f.value < minSamplerPeriod || f.value > maxSamplerPeriod) {
			c.errorf(f.path, "is %v; want a duration from %v to %v", f.value, minSamplerPeriod, maxSamplerPeriod)
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
