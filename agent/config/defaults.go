package config

import "time"

// defaultHard returns the kubelet's hard thresholds on Linux
// (pkg/kubelet/eviction/defaults_linux.go). It has none on PIDs.
func defaultHard() Amounts {
	return Amounts{
		"memory.available":   "100Mi",
		"nodefs.available":   "10%",
		"nodefs.inodesFree":  "5%",
		"imagefs.available":  "15%",
		"imagefs.inodesFree": "5%",
	}
}

// The kubelet's defaults for durations in which 0 means "not set"
// (pkg/kubelet/apis/config/v1beta1/defaults.go).
const (
	defaultTransitionPeriod  = 5 * time.Minute
	defaultImageMinimumGCAge = 2 * time.Minute
)

// base returns the configuration before a file is read. Defaults that the kubelet
// also applies to an explicit 0 are left to setDefaults.
func base() *Config {
	return &Config{
		KubeletFields: KubeletFields{
			EnforceNodeAllocatable:      []string{enforcePods},
			ImageGCHighThresholdPercent: 85,
			ImageGCLowThresholdPercent:  80,
		},
		CgroupRoot:       "/",
		Kubelet:          KubeletAuto,
		UnknownPriority:  SpareUnknownPriority,
		MemoryAccounting: AccountingKubelet,
		MaxVictims:       3,
		SettleTimeout:    time.Second,
		ImageGC:          ImageGCAuto,
		Reclaim:          Reclaim{Memory: ReclaimMemoryAuto},
		OOMScoreAdj:      OOMScoreAdjObserve,
		Admission:        AdmissionOff,
		Notification:     defaultNotification(),
		Pressure:         defaultPressure(),
		Shutdown:         Shutdown{BesideKubelet: ShutdownAuto},
		Kube:             Kube{FenceTimeout: defaultFenceTimeout},
		SelfFencing:      defaultSelfFencing(),
		origin:           map[string]Origin{},
	}
}

// setDefaults fills in the fields that no file sets.
func (c *Config) setDefaults() {
	hard := defaultHard()
	switch {
	case c.EvictionHard == nil:
		c.EvictionHard = hard
	case c.MergeDefaultEvictionSettings:
		for name, text := range hard {
			if _, given := c.EvictionHard[name]; !given {
				c.EvictionHard[name] = text
			}
		}
	}
	if c.EvictionPressureTransitionPeriod == 0 {
		c.EvictionPressureTransitionPeriod = defaultTransitionPeriod
		c.origin["evictionPressureTransitionPeriod"] = OriginDefault
	}
	if c.ImageMinimumGCAge == 0 {
		c.ImageMinimumGCAge = defaultImageMinimumGCAge
		c.origin["imageMinimumGCAge"] = OriginDefault
	}
	if c.CgroupRoot == "" {
		c.CgroupRoot = "/"
		c.origin["cgroupRoot"] = OriginDefault
	}
	for _, m := range []*Amounts{&c.EvictionSoft, &c.EvictionMinimumReclaim, &c.SystemReserved, &c.KubeReserved} {
		if *m == nil {
			*m = Amounts{}
		}
	}
	if c.EvictionSoftGracePeriod == nil {
		c.EvictionSoftGracePeriod = map[string]time.Duration{}
	}
	if c.ShutdownGracePeriodByPodPriority == nil {
		c.ShutdownGracePeriodByPodPriority = []ShutdownGroup{}
	}
	for _, l := range []*[]string{
		&c.TrustAnnotations, &c.Protect.Namespaces, &c.Protect.LabelSelectors, &c.Protect.Names,
	} {
		if *l == nil {
			*l = []string{}
		}
	}
}
