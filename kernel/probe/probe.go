package probe

import (
	"fmt"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// State is the answer to whether something works here.
type State int

// The answers.
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

// MarshalText makes a State a word in JSON too.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Feature is one thing that evictd can make use of.
type Feature struct {
	Name      string `json:"name"`
	Supported State  `json:"supported"`
	// Detail says what was found, or why nothing was.
	Detail string `json:"detail,omitempty"`
	// Missing says what would make it work, or work better; empty where nothing
	// would or nothing is amiss.
	Missing string `json:"missing,omitempty"`
}

// Run tries everything and returns the answers, always the same features in the
// same order. The roots are those of the node: normally /proc, /sys and
// /sys/fs/cgroup.
func Run(procfs, sysfs, cgroupfs kernel.FS) []Feature {
	tree, treeErr := cgroup.Find(cgroupfs)
	held, heldErr := readCapabilities(procfs)

	features := []Feature{
		cgroupTree(tree, treeErr),
		kubepods(tree, treeErr),
		ownCgroup(tree, treeErr),
		cgroupKill(tree, treeErr),
		freezer(tree, treeErr),
		HostPIDs(procfs),
		pidfdOpen(),
		processMrelease(),
		realTime(),
		thresholds(tree, treeErr),
		memoryEvents(tree, treeErr),
		pressure(procfs),
		pressureTriggers(procfs),
		btf(sysfs),
		ringBuffer(),
		lockdown(procfs, sysfs),
		hugetlb(procfs, sysfs),
		swap(procfs),
		memlock(held, heldErr),
	}
	return append(features, held.features(heldErr)...)
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
