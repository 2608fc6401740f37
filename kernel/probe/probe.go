package probe

import (
	"fmt"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// State is whether a feature works here.
type State int

// The states.
const (
	Unknown State = iota // it could not be tried
	No
	Yes
)

func (s State) String() string {
	switch s {
	case Unknown:
		return "unknown"
	case No:
		return "no"
	case Yes:
		return "yes"
	}
	return fmt.Sprintf("State(%d)", int(s))
}

// MarshalText marshals a State as its name.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Feature is the result of probing one feature.
type Feature struct {
	Name      string `json:"name"`
	Supported State  `json:"supported"`
	// Detail is what was found, or why nothing was.
	Detail string `json:"detail,omitempty"`
	// Missing is what would make the feature work, or work better; empty if nothing
	// would, or if it works fully.
	Missing string `json:"missing,omitempty"`
}

// Run probes all features and returns the results, always the same features in the
// same order. The arguments are normally /proc, /sys and /sys/fs/cgroup of the node.
func Run(procfs, sysfs, cgroupfs kernel.FS) []Feature {
	h, hierarchyErr := cgroup.Find(cgroupfs)
	caps, capsErr := readCapabilities(procfs)

	features := []Feature{
		hierarchy(h, hierarchyErr),
		kubepods(h, hierarchyErr),
		ownCgroup(h, hierarchyErr),
		cgroupKill(h, hierarchyErr),
		freezer(h, hierarchyErr),
		HostPIDs(procfs),
		pidfdOpen(),
		processMrelease(),
		realTime(),
		thresholds(h, hierarchyErr),
		memoryEvents(h, hierarchyErr),
		pressure(procfs),
		pressureTriggers(procfs),
		btf(sysfs),
		ringBuffer(),
		lockdown(procfs, sysfs),
		hugetlb(procfs, sysfs),
		swap(procfs),
		memlock(caps, capsErr),
	}
	return append(features, caps.features(capsErr)...)
}

func yes(name, detail string) Feature {
	return Feature{Name: name, Supported: Yes, Detail: detail}
}

func no(name, detail, missing string) Feature {
	return Feature{Name: name, Supported: No, Detail: detail, Missing: missing}
}

func unknown(name string, err error) Feature {
	return Feature{Name: name, Supported: Unknown, Detail: err.Error()}
}
