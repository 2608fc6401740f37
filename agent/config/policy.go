package config

import (
	"slices"

	"github.com/evictd/evictd/agent/evict"
)

// Policy returns the policy that agent/evict decides by on a node with the given
// layout of filesystems: the configured thresholds, those derived from them, and
// the configuration's other rules.
func (c *Config) Policy(layout evict.Layout) *evict.Policy {
	return &evict.Policy{
		Thresholds:             evict.WithDerived(c.thresholds, layout, slices.Contains(c.EnforceNodeAllocatable, enforcePods)),
		TransitionPeriod:       c.EvictionPressureTransitionPeriod,
		MaxPodGraceSeconds:     int64(c.EvictionMaxPodGracePeriod),
		MaxVictims:             c.MaxVictims,
		SettleTimeout:          c.SettleTimeout,
		Contention:             evict.ContentionPolicy{Sustained: c.Pressure.Memory.Sustained, Evict: c.Pressure.Memory.Action == PressureEvict},
		Layout:                 layout,
		ProtectUnknownPriority: c.UnknownPriority == SpareUnknownPriority,
		ProtectUnreportable:    c.Kubelet == KubeletAuto,
		RefuseArrivals:         c.Admission == AdmissionEvict && c.Kubelet == KubeletAuto,
		Protected:              c.Protect.protected(),
	}
}
